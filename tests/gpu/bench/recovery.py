"""Distillation of tiny-llama-needle to 6 full layers with groups of 1, 2 and 3, and what it recovered.

    PYTHONPATH=training python3 tests/gpu/bench/recovery.py --out FOLDER [--seconds N] [--groups 1,2,3]
        [--steps N] [--tokens N] [--packs N] [--sequence-length N] [--learning-rate X] [--lengths ...]
        [--limit N] [--held-out N] [--device cuda|cpu]

Synthetic conversations of its own (no evaluation case) train. All public cases judge: the teacher answers
them once, each student those of 512 tokens before and all after. Every group is distilled before any is
judged. What is known is written at once, so a run that is cut short has left in FOLDER

    recovery.jsonl        JSON rows, those of the standard output
    recovery-gN.tar.gz    of each group: what distill wrote, with the loss curve (metrics.jsonl), without the
                          teacher's model-00001-of-00002.safetensors and tokenizer.json
    losses.svg            of all groups so far
    answers.jsonl         rows of evaluate, with their group; some cases at a time, short ones first
    recovery.md           tables of the groups that were judged

Run again with the same --work folder, it goes on where it was. After --seconds no group is begun.
"""

import argparse
import json
import pathlib
import tarfile
import time

import torch

from baton_swiftkv import evaluate, plots
from baton_swiftkv.convert import convert
from baton_swiftkv.corpus import open_corpus
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

    def make_data(self):
        """The conversations' path; they are tokenized as well."""
        options, path = self.options, self.work / "synthetic.jsonl"
        if not path.exists():
            lengths = {length: share for length, share in TRAINING_LENGTHS.items()
                       if length <= options.longest}
            synthesize(path.with_suffix(".tmp"), options.tokens, lengths, 20261, options.workers)
            path.with_suffix(".tmp").rename(path)
        self.row(stage="data", tasks=len(TASKS), bytes=path.stat().st_size)
        corpus = open_corpus(self.work / "data", [path], self.tokenizer, options.sequence_length)
        self.row(stage="tokenized", samples=len(corpus), tokens=corpus.tokens)
        return path

    def ask_teacher(self):
        """What it answers to every case, for all groups."""
        begin = time.perf_counter()
        rows = evaluate.evaluate_cases(self.decoder(TEACHER), self.tokenizer, self.cases, self.stops,
                                       self.options.cached_tokens, ("teacher",), progress=False)
        self.row(stage="teacher", cases=len(rows), seconds=round(time.perf_counter() - begin, 1),
                 teacher_correct=sum(row["teacher"]["correct"] for row in rows))
        return {row["id"]: row["teacher"] for row in rows}

    def decoder(self, directory):
        return load_decoder(read_shape(directory), directory, TEACHER, self.options.device)

    def distill_group(self, group, data):
        converted, trained = self.folders(group)
        convert(TEACHER, FULL_LAYERS, group, converted, link=True)
        begin = time.perf_counter()
        with Processes(self.options.device) as processes:
            distill(converted, TEACHER, [data], trained, self.settings(),
                    Manner(recompute=False, checkpoint_every=200, evaluate_every=100, link=True,
                           data_cache=str(self.work / "data")), processes)
        seconds = time.perf_counter() - begin
        metrics = read_metrics(trained / "metrics.jsonl")
        steps = [row for row in metrics if "loss" in row]
        self.row(stage="distill", group=group, seconds=round(seconds, 1), steps=len(steps),
                 tokens=sum(row["tokens"] for row in steps), learned_tokens=sum(row["rows"] for row in steps),
                 median_tokens_per_s=sorted(row["tokens_per_s"] for row in steps)[len(steps) // 2],
                 final_loss=steps[-1]["loss"], held_out=[
                     {name: row[name] for name in ("step", "held_out_kl", "held_out_top1")}
                     for row in metrics if "held_out_kl" in row])
        self.pack(group, trained)

    def folders(self, group):
        """(converted, trained)"""
        return self.work / f"g{group}", self.work / f"g{group}-distilled"

    def settings(self):
        options = self.options
        dtype = "bfloat16" if options.device == "cuda" else "float32"
        return Settings(sequence_length=options.sequence_length, packs_per_step=options.packs,
                        steps=options.steps, learning_rate=options.learning_rate, weight_decay=0.0,
                        held_out=options.held_out, dtype=dtype)

    def judge(self, group, stage, directory, cases, known):
        """A row for each chunk of cases, then one for all of them. Returns these cases' rows."""
        decoder, rows, begin = self.decoder(directory), [], time.perf_counter()
        for part in evaluate.evaluated_chunks(decoder, self.tokenizer, cases, self.stops,
                                              self.options.cached_tokens, known=known):
            rows += part
            if stage == "after":
                self.append("answers.jsonl", part, group=group)
            self.row(stage=stage, group=group, seconds=round(time.perf_counter() - begin, 1),
                     whole=len(rows) == len(cases), **accuracy(evaluate.summarize(rows)))
        return rows

    def report(self, group, rows):
        """The tables of a group, behind those of the groups before."""
        with open(self.out / "recovery.md", "a", encoding="utf-8") as tables:
            tables.write(f"## g = {group}\n\n{evaluate.markdown(evaluate.summarize(rows))}\n")

    def row(self, **fields):
        fields = {"bench": "recovery"} | fields | {"elapsed_s": round(self.elapsed, 1)}
        print(json.dumps(fields), flush=True)
        self.append("recovery.jsonl", [fields])

    def append(self, name, rows, **more):
        with open(self.out / name, "a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(more | row) + "\n" for row in rows)

    def pack(self, group, directory):
        """What is not the teacher's."""
        with tarfile.open(self.out / f"recovery-g{group}.tar.gz", "w:gz") as archive:
            for path in sorted(directory.iterdir()):
                if path.is_file() and not path.is_symlink() and path.name != "tokenizer.json":
                    archive.add(path, f"g{group}/{path.name}")

    def plot(self):
        found = {f"g = {group}": self.folders(group)[1] / "metrics.jsonl" for group in (1, 2, 3)}
        curves = {label: read_metrics(path) for label, path in found.items() if path.exists()}
        if curves:
            plots.losses(curves, self.out / "losses.svg")


def accuracy(summary):
    """The fields of a row; `points`: what the student lost, or with a minus won, of 100."""
    whole = summary[None, None]
    return {"cases": whole["cases"], "teacher_correct": whole["teacher"], "student_correct": whole["student"],
            "points": round(100 * (whole["teacher"] - whole["student"]) / whole["cases"], 2),
            "kl": whole["kl"] / whole["answer_tokens"], "top1": whole["agreed"] / whole["answer_tokens"],
            "means": means(summary)}


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
    parser.add_argument("--seconds", type=float, default=360)
    parser.add_argument("--groups", default="1,2,3")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=40_000_000)
    parser.add_argument("--longest", type=int, default=14000)
    parser.add_argument("--packs", type=int, default=2)
    parser.add_argument("--sequence-length", type=int, default=32768)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--held-out", type=int, default=128)
    parser.add_argument("--cached-tokens", type=int, default=1 << 20)
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
    bench.row(stage="machine", device=name, torch=torch.__version__)
    data, groups = bench.make_data(), []
    for group in map(int, options.groups.split(",")):
        if bench.elapsed > options.seconds:
            bench.row(stage="left out", group=group, reason="no time left")
            continue
        bench.distill_group(group, data)
        bench.plot()
        groups.append(group)
    known = bench.ask_teacher() if groups else {}
    short = [case for case in bench.cases if case.length == 512]
    for group in groups:
        converted, trained = bench.folders(group)
        bench.report(group, bench.judge(group, "after", trained, bench.cases, known))
        bench.judge(group, "before", converted, short, known)


if __name__ == "__main__":
    main()
