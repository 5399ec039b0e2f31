"""Distillation of tiny-llama-needle to 6 full layers with groups of 1, 2 and 3, and what it recovered.

    PYTHONPATH=training python3 tests/gpu/bench/recovery.py --out FOLDER [--seconds N] [--groups 1,2,3]
        [--steps N] [--tokens N] [--packs N] [--sequence-length N] [--learning-rate X] [--lengths ...]
        [--limit N] [--device cuda|cpu]

Synthetic conversations of its own (no evaluation case) train; all public cases judge, before (512 tokens
only) and after, beside the teacher. JSON rows on the standard output and in FOLDER/recovery.jsonl; for each
group FOLDER/recovery-gN.tar.gz with the trained shard, loss curve, answers and tables. Run again with the
same --work folder, it goes on where it was. After --seconds no further group is begun.
"""

import argparse
import json
import pathlib
import tarfile
import time

import torch

from baton_swiftkv import evaluate, plots
from baton_swiftkv.convert import convert
from baton_swiftkv.distill import Manner, Settings, distill
from baton_swiftkv.loading import load_decoder
from baton_swiftkv.metrics import read_metrics
from baton_swiftkv.parallel import Processes
from baton_swiftkv.shape import read_shape
from baton_swiftkv.synthetic import TASKS, synthesize
from baton_swiftkv.tokenizer import load_tokenizer

MODELS = pathlib.Path(__file__).resolve().parents[2] / "data/models"
TEACHER = MODELS / "tiny-llama-needle"
GENERATED = ("chain", "copy", "reverse", "sort")
FULL_LAYERS = 6
TRAINING_LENGTHS = {512: 0.4, 2048: 0.25, 8192: 0.25, 14000: 0.1}


class Bench:
    def __init__(self, options):
        self.options = options
        self.out = pathlib.Path(options.out)
        self.work = pathlib.Path(options.work)
        self.begin = time.perf_counter()
        self.tokenizer = load_tokenizer(TEACHER)
        self.cases = evaluate.read_cases([MODELS / "eval"], self.tokenizer, options.lengths, options.limit)
        self.stops = evaluate.stop_ids(TEACHER, self.tokenizer)

    @property
    def elapsed(self):
        return time.perf_counter() - self.begin

    def row(self, **fields):
        line = json.dumps(fields | {"elapsed_s": round(self.elapsed, 1)})
        print(line, flush=True)
        with open(self.out / "recovery.jsonl", "a", encoding="utf-8") as rows:
            rows.write(line + "\n")

    def make_data(self):
        path = self.work / "synthetic.jsonl"
        if not path.exists():
            lengths = {length: share for length, share in TRAINING_LENGTHS.items()
                       if length <= self.options.longest}
            synthesize(path.with_suffix(".tmp"), self.options.tokens, lengths, 20261, self.options.workers)
            path.with_suffix(".tmp").rename(path)
        self.row(bench="recovery", stage="data", tasks=len(TASKS), bytes=path.stat().st_size)
        return path

    def run_group(self, group, data):
        converted, trained = self.work / f"g{group}", self.work / f"g{group}-distilled"
        convert(TEACHER, FULL_LAYERS, group, converted, link=True)
        self.judge(group, converted, "before", [case for case in self.cases if case.length == 512])
        begin = time.perf_counter()
        with Processes(self.options.device) as processes:
            distill(converted, TEACHER, [data], trained, self.settings(),
                    Manner(recompute=False, checkpoint_every=200, evaluate_every=100, link=True,
                           data_cache=str(self.work / "data")), processes)
        seconds = time.perf_counter() - begin
        steps = [row for row in read_metrics(trained / "metrics.jsonl") if "loss" in row]
        self.row(bench="recovery", stage="distill", group=group, seconds=round(seconds, 1), steps=len(steps),
                 tokens=sum(row["tokens"] for row in steps), learned_tokens=sum(row["rows"] for row in steps),
                 median_tokens_per_s=sorted(row["tokens_per_s"] for row in steps)[len(steps) // 2],
                 final_loss=steps[-1]["loss"],
                 **{name: value for row in read_metrics(trained / "metrics.jsonl")[-1:]
                    for name, value in row.items() if name.startswith("held_out")})
        self.judge(group, trained, "after", self.cases)
        self.pack(group, trained)

    def settings(self):
        options = self.options
        return Settings(sequence_length=options.sequence_length, packs_per_step=options.packs,
                        steps=options.steps, learning_rate=options.learning_rate, weight_decay=0.0,
                        held_out=128, dtype="bfloat16" if options.device == "cuda" else "float32")

    def judge(self, group, directory, stage, cases):
        if not cases:
            return
        shape = read_shape(directory)
        decoder = load_decoder(shape, directory, TEACHER, self.options.device)
        begin = time.perf_counter()
        rows = evaluate.evaluate_cases(decoder, self.tokenizer, cases, self.stops,
                                       self.options.cached_tokens, progress=False)
        summary = evaluate.summarize(rows)
        whole = summary[None, None]
        self.row(bench="recovery", stage=stage, group=group, cases=whole["cases"],
                 teacher_correct=whole["teacher"], student_correct=whole["student"],
                 kl=whole["kl"] / whole["answer_tokens"],
                 top1=whole["agreed"] / whole["answer_tokens"], means=means(summary),
                 seconds=round(time.perf_counter() - begin, 1))
        if stage == "after":
            (directory / "evaluation.md").write_text(evaluate.markdown(summary))
            with open(directory / "rows.jsonl", "w", encoding="utf-8") as lines:
                lines.writelines(json.dumps(row) + "\n" for row in rows)

    def pack(self, group, directory):
        """What is not the teacher's."""
        with tarfile.open(self.out / f"recovery-g{group}.tar.gz", "w:gz") as archive:
            for path in sorted(directory.iterdir()):
                if path.is_file() and not path.is_symlink() and path.name != "tokenizer.json":
                    archive.add(path, f"g{group}/{path.name}")

    def plot(self):
        found = {f"g = {group}": self.work / f"g{group}-distilled" / "metrics.jsonl" for group in (1, 2, 3)}
        curves = {label: read_metrics(path) for label, path in found.items() if path.exists()}
        if curves:
            plots.losses(curves, self.out / "losses.svg")


def means(summary):
    """{"retrieval 512": [teacher, student]}: means over the tasks, in %."""
    found = {}
    for length in sorted({length for _, length in summary if length}):
        for kind in ("retrieval", "generation"):
            own = [sums for (task, bucket), sums in summary.items() if bucket == length and
                   (task in GENERATED) == (kind == "generation")]
            if own:
                found[f"{kind} {length}"] = [
                    round(100 * sum(sums[mode] / sums["cases"] for sums in own) / len(own), 1)
                    for mode in ("teacher", "student")]
    return found


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--work", default="build/recovery")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--groups", default="1,2,3")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--tokens", type=int, default=50_000_000)
    parser.add_argument("--longest", type=int, default=14000)
    parser.add_argument("--packs", type=int, default=2)
    parser.add_argument("--sequence-length", type=int, default=32768)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--cached-tokens", type=int, default=1 << 19)
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main():
    options = parse()
    for folder in (options.out, options.work):
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    bench.row(bench="machine", device=name, torch=torch.__version__)
    data = bench.make_data()
    for group in map(int, options.groups.split(",")):
        if bench.elapsed > options.seconds:
            bench.row(bench="recovery", stage="left out", group=group, reason="no time left")
            continue
        bench.run_group(group, data)
        bench.plot()


if __name__ == "__main__":
    main()
