"""`baton-swiftkv evaluate`: what a SwiftKV model lost against its teacher."""

import collections
import dataclasses
import gzip
import json
import pathlib
import time

import numpy as np
import torch
from tqdm import tqdm

from baton_swiftkv.conversations import read_samples
from baton_swiftkv.corpus import encode
from baton_swiftkv.errors import UserError
from baton_swiftkv.generate import greedy
from baton_swiftkv.packing import make_batch
from baton_swiftkv.recovery import Recovery


@dataclasses.dataclass
class Case:
    id: str
    task: str
    length: int  # bucket
    prompt: list  # token ids
    answer: str
    most_tokens: int


def read_cases(paths, tokenizer, lengths=None, limit=None):
    """Cases of JSONL files (gzip allowed) or folders of them; of every task and length at most `limit`."""
    taken = collections.Counter()
    cases = []
    for path in _case_files(paths):
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                case = _case(line, f"{path}:{number}", tokenizer)
                if lengths and case.length not in lengths:
                    continue
                taken[case.task, case.length] += 1
                if limit is None or taken[case.task, case.length] <= limit:
                    cases.append(case)
    if not cases:
        raise UserError(f"no case in {', '.join(map(str, paths))}")
    return cases


def _case_files(paths):
    for path in map(pathlib.Path, paths):
        if path.is_dir():
            yield from sorted(file for file in path.iterdir() if ".jsonl" in file.suffixes)
        elif path.exists():
            yield path
        else:
            raise UserError(f"{path}: not found")


def _case(line, where, tokenizer):
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})") from None
    for name in ("messages", "answer"):
        if name not in row:
            raise UserError(f"{where}: a case needs `{name}`")
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    return Case(row.get("id", where), row.get("task", "all"), row.get("length_bucket", 0), prompt,
                row["answer"], row.get("max_new_tokens", 256))


def stop_ids(directory, tokenizer):
    """As generation_config.json says, else config.json, else the tokenizer."""
    for name in ("generation_config.json", "config.json"):
        path = pathlib.Path(directory) / name
        ids = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        if ids is not None:
            return set(ids if isinstance(ids, list) else [ids])
    return {tokenizer.eos_token_id}


def evaluate_cases(decoder, tokenizer, cases, stops, most_cached, modes=("teacher", "student"),
                   known=None, progress=True):
    """The rows of all cases, see `evaluated_chunks`."""
    bar = tqdm(total=len(cases), unit="case", disable=not progress, mininterval=2.0)
    rows = []
    for part in evaluated_chunks(decoder, tokenizer, cases, stops, most_cached, modes, known):
        rows += part
        bar.update(len(part))
    bar.close()
    return rows


def evaluated_chunks(decoder, tokenizer, cases, stops, most_cached, modes=("teacher", "student"),
                     known=None):
    """Rows of some cases at a time, short ones first. A row of a case: what each mode answered, whether
    that is the answer, and how far the student is from the teacher along the teacher's answer.

    `most_cached`: tokens whose keys are held at once. `known`: {case id: the teacher's part of its row},
    of an earlier evaluation; these are not asked again.
    """
    for chunk in _chunks(cases, most_cached):
        rows = [{"id": case.id, "task": case.task, "length_bucket": case.length,
                 "prompt_tokens": len(case.prompt)} for case in chunk]
        for mode in modes:
            given = (known or {}) if mode == "teacher" else {}
            asked = [case for case in chunk if case.id not in given]
            answers = iter(_answers(decoder, tokenizer, asked, stops, mode))
            for row in rows:
                row[mode] = given[row["id"]] if row["id"] in given else next(answers)
        if len(modes) == 2:
            _add_distances(decoder, chunk, rows, stops)
        yield rows


def _answers(decoder, tokenizer, cases, stops, mode):
    """What this mode answers to each case, and whether that is right."""
    if not cases:
        return []
    begin = time.perf_counter()
    answers = greedy(decoder, [case.prompt for case in cases], [case.most_tokens for case in cases], stops,
                     mode == "student")
    seconds = (time.perf_counter() - begin) / len(cases)
    outputs = [tokenizer.decode(ids, skip_special_tokens=True) for ids in answers]
    return [{"output": output, "token_ids": ids, "correct": output == case.answer, "seconds": seconds}
            for case, ids, output in zip(cases, answers, outputs)]


def read_teacher_answers(path):
    """`known` for `evaluated_chunks` from the rows.jsonl of an earlier evaluation."""
    path = pathlib.Path(path)
    if not path.exists():
        raise UserError(f"{path}: not found; --teacher-answers takes the rows.jsonl of an evaluation")
    known = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                known[row["id"]] = row["teacher"]
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path}:{number}: is no row of an evaluation with a teacher; give the "
                                f"rows.jsonl that evaluate wrote") from None
    return known


def _chunks(cases, most_cached):
    """Cases of like length together; every sequence takes as much as the longest."""
    chunk, longest = [], 0
    for case in sorted(cases, key=lambda case: len(case.prompt) + case.most_tokens):
        longest = len(case.prompt) + case.most_tokens
        if chunk and longest * (len(chunk) + 1) > most_cached:
            yield chunk
            chunk = []
        chunk.append(case)
    if chunk:
        yield chunk


@torch.inference_mode()
def _add_distances(decoder, cases, rows, stops):
    """Sums over the tokens of the teacher's answers, its stop token included."""
    samples, counts = [], []
    for case, row in zip(cases, rows):
        answer = row["teacher"]["token_ids"]
        if len(answer) < case.most_tokens:
            answer = answer + [min(stops)]  # whichever: only what predicts it is compared
        ids = np.array(case.prompt + answer)
        samples.append((ids, np.arange(len(ids)) >= len(case.prompt)))
        counts.append(len(answer))
    batch = make_batch(samples, device=decoder.model.embed_tokens.weight.device)
    found = Recovery(decoder, temperature=1.0).by_row(batch)
    for row, kl, agreed in zip(rows, found.kl.cpu().split(counts), found.agreed.cpu().split(counts)):
        row |= {"kl": kl.sum().item(), "agreed": int(agreed.sum()), "answer_tokens": len(kl)}


@torch.inference_mode()
def evaluate_text(decoder, tokenizer, paths, samples, most_tokens):
    """KL at temperature 1 and top-1 agreement over assistants' tokens of other data."""
    recovery = Recovery(decoder, temperature=1.0)
    device = decoder.model.embed_tokens.weight.device
    kl = agreed = rows = 0
    for number, sample in enumerate(read_samples(paths)):
        if number == samples:
            break
        ids, learned = encode(tokenizer, [sample])[0]
        ids, learned = ids[:most_tokens], learned[:most_tokens]
        if not learned[1:].any():
            continue
        batch = make_batch([(ids, learned)], device=device)
        sums = recovery(batch)
        kl, agreed, rows = kl + sums.kl.item(), agreed + sums.agreed.item(), rows + len(batch.rows)
    if not rows:
        raise UserError(f"no assistant's token in {', '.join(map(str, paths))}")
    return {"kl": kl / rows, "top1": agreed / rows, "tokens": rows}


def summarize(rows, modes=("teacher", "student")):
    """{(task, length): {"cases", each mode: correct, "kl", "top1"}}, with (None, None) for all."""
    table = collections.defaultdict(collections.Counter)
    for row in rows:
        for key in ((row["task"], row["length_bucket"]), (None, None)):
            sums = table[key]
            sums["cases"] += 1
            for mode in modes:
                sums[mode] += row[mode]["correct"]
            for name in ("kl", "agreed", "answer_tokens"):
                sums[name] += row.get(name, 0)
    return {key: dict(sums) for key, sums in table.items()}


def markdown(summary):
    """Tasks down, lengths across: teacher / student correct in %; then KL and agreement of the task."""
    lengths = sorted({length for _, length in summary if length is not None})
    tasks = sorted({task for task, _ in summary if task is not None})
    lines = ["| task | " + " | ".join(f"{length} tokens" for length in lengths) +
             " | KL | top-1 agreement % |", "| --- |" + " --- |" * (len(lengths) + 2)]
    for task in tasks:
        own = [summary.get((task, length)) for length in lengths]
        lines.append(f"| {task} | " + " | ".join(map(_cell, own)) + f" | {_distances(own)} |")
    means = [_task_means(summary, tasks, length) for length in lengths]
    lines.append("| **mean of tasks** | " + " | ".join(means) + f" | {_distances([summary[None, None]])} |")
    whole = summary[None, None]
    lines += ["", f"Cells: correct answers in %, teacher / student. Of all {whole['cases']} cases the "
              f"teacher answers {whole['teacher']}, the student {whole['student']}. KL (nats per token, "
              f"temperature 1) and agreement are along the teacher's answers."]
    return "\n".join(lines) + "\n"


def _cell(sums):
    if not sums:
        return ""
    return " / ".join(f"{100 * sums[mode] / sums['cases']:.0f}" for mode in ("teacher", "student"))


def _distances(parts):
    parts = [sums for sums in parts if sums]
    tokens = max(1, sum(sums["answer_tokens"] for sums in parts))
    return (f"{sum(sums['kl'] for sums in parts) / tokens:.4f} | "
            f"{100 * sum(sums['agreed'] for sums in parts) / tokens:.2f}")


def _task_means(summary, tasks, length):
    own = [summary[task, length] for task in tasks if (task, length) in summary]
    return " / ".join(f"{100 * sum(sums[mode] / sums['cases'] for sums in own) / len(own):.1f}"
                      for mode in ("teacher", "student"))
