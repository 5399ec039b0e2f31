"""Runs an evaluation and writes its files."""

import dataclasses
import json
import pathlib

import torch

from baton_swiftkv import evaluate as evaluation
from baton_swiftkv import plots
from baton_swiftkv.errors import UserError
from baton_swiftkv.loading import load_decoder
from baton_swiftkv.parallel import Processes
from baton_swiftkv.shape import read_shape
from baton_swiftkv.tensors import write_json
from baton_swiftkv.tokenizer import load_tokenizer


def evaluate(options):
    """Everything that the command's options ask for; returns the Markdown text."""
    if not (options.cases or options.data or options.harness):
        raise UserError("nothing to evaluate on: give --cases, --data or --harness")
    shape = read_shape(options.model)
    if not shape.rewired:
        raise UserError(f"{options.model}: is no SwiftKV model")
    if options.dtype:
        shape = dataclasses.replace(shape, dtype=getattr(torch, options.dtype))
    decoder = load_decoder(shape, options.model, options.teacher, Processes(options.device).device)
    tokenizer = load_tokenizer(options.teacher)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    names = [pathlib.Path(directory).name for directory in (options.model, options.teacher)]
    parts, numbers = ["# {} beside {}\n".format(*names)], {}
    if options.cases:
        parts.append(_cases(decoder, tokenizer, options, out, numbers))
    if options.data:
        numbers["data"] = evaluation.evaluate_text(decoder, tokenizer, options.data, options.samples,
                                                   options.cached_tokens)
        parts.append("On {tokens} assistants' tokens of the data: KL {kl:.4f} nats per token, top-1 "
                     "agreement {top1:.2%}.\n".format(**numbers["data"]))
    if options.harness:
        from baton_swiftkv.harness import run_harness
        numbers["harness"] = run_harness(decoder, tokenizer, options)
        parts.append(_harness_table(numbers["harness"]))
    text = "\n".join(parts)
    (out / "evaluation.md").write_text(text)
    write_json(out / "evaluation.json", numbers)
    return text


def _cases(decoder, tokenizer, options, out, numbers):
    cases = evaluation.read_cases(options.cases, tokenizer, options.lengths, options.limit)
    stops = evaluation.stop_ids(options.teacher, tokenizer)
    known = evaluation.read_teacher_answers(options.teacher_answers) if options.teacher_answers else None
    rows = evaluation.evaluate_cases(decoder, tokenizer, cases, stops, options.cached_tokens, known=known)
    with open(out / "rows.jsonl", "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    summary = evaluation.summarize(rows)
    numbers["cases"] = [{"task": task, "length_bucket": length} | sums
                        for (task, length), sums in summary.items()]
    plots.accuracy(summary, out / "evaluation.svg")
    return evaluation.markdown(summary)


def _harness_table(results):
    lines = ["| lm-eval task and metric | teacher | student |", "| --- | --- | --- |"]
    for name, pair in results.items():
        lines.append(f"| {name} | {pair['teacher']:.4f} | {pair['student']:.4f} |")
    return "\n".join(lines) + "\n"
