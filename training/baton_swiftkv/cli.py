"""The command line: `baton-swiftkv COMMAND`, or `python -m baton_swiftkv COMMAND`.

Commands import what they need when they run, so that help needs no PyTorch.
"""

import argparse
import dataclasses
import os
import sys

from baton_swiftkv.errors import UserError


def main(arguments=None):
    parsed = _parser().parse_args(arguments)
    try:
        parsed.run(parsed)
    except UserError as error:
        print(f"baton-swiftkv: {error}", file=sys.stderr)
        return 1
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="baton-swiftkv", description="SwiftKV for checkpoints: what it saves, costs and loses.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_inspect, _add_convert, _add_distill, _add_evaluate, _add_synthesize):
        add(commands)
    return parser


def _add_inspect(commands):
    parser = commands.add_parser("inspect", help="what rewiring would save, and how many layers it may take")
    parser.add_argument("model", help="model directory")
    parser.add_argument("--data", nargs="+", metavar="FILE", help="samples for the similarity of layers")
    parser.add_argument("--samples", type=int, default=50, help="of --data (default %(default)s)")
    parser.add_argument("--sequence-length", type=int, default=4096, help="tokens of a sample at most")
    parser.add_argument("--prompt", type=int, default=8000, help="tokens of the prompt that savings are of")
    parser.add_argument("--out", metavar="FOLDER", help="inspect.md, inspect.json and similarity.svg go here")
    _add_device(parser)
    parser.set_defaults(run=_inspect)


def _add_convert(commands):
    parser = commands.add_parser("convert", help="a checkpoint rewired, not yet trained")
    parser.add_argument("model", help="directory of the source model")
    parser.add_argument("--layers", type=int, required=True, metavar="S", help="full layers")
    parser.add_argument("--group", type=int, default=1, metavar="g", help="upper layers that share their "
                        "keys and values (default %(default)s)")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--link", action="store_true", help="link the source's weight files, don't copy")
    parser.set_defaults(run=_convert)


def _add_distill(commands):
    parser = commands.add_parser(
        "distill", help="train what rewiring changed, from the source's logits",
        description="Start it with torchrun for several GPUs. Run the same command again to go on after a "
        "break.")
    parser.add_argument("model", help="directory that convert wrote")
    parser.add_argument("--teacher", required=True, metavar="MODEL", help="what it was converted from")
    parser.add_argument("--data", nargs="+", required=True, metavar="FILE",
                        help="JSONL of conversations, text files, or Hugging Face data sets on disk")
    parser.add_argument("--out", required=True, metavar="DIR")
    _add_settings(parser)
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--evaluate-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--no-gradient-checkpointing", dest="recompute", action="store_false",
                        help="keep the upper layers' activations: faster, more memory")
    parser.add_argument("--link", action="store_true", help="link the teacher's weight files, don't copy")
    parser.add_argument("--data-cache", metavar="FOLDER", help="for tokenized data; several runs may use it, "
                        "also with other data or another --sequence-length (default: DIR/data)")
    _add_device(parser)
    parser.set_defaults(run=_distill)


def _add_settings(parser):
    parser.add_argument("--sequence-length", type=int, default=8192, metavar="TOKENS", help="of a pack")
    parser.add_argument("--packs-per-step", type=int, default=32, metavar="N", help="over all GPUs")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="instead of --epochs")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--warmup-share", type=float, default=0.05)
    parser.add_argument("--schedule", choices=("cosine", "constant"), default="cosine")
    parser.add_argument("--clip-norm", type=float, default=1.0)
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--hidden-weight", type=float, default=0.0, help="of the mean squared error of the "
                        "hidden state that enters the last layer, added to the loss (default %(default)s)")
    parser.add_argument("--long-share", type=float, default=0.0, help="of packs that are one long document")
    parser.add_argument("--held-out", type=int, default=64, metavar="SAMPLES",
                        help="of --data, to measure on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="of frozen weights and "
                        "activations (default: the checkpoint's)")


def _add_evaluate(commands):
    parser = commands.add_parser("evaluate", help="what a SwiftKV model lost against its teacher")
    parser.add_argument("model", help="SwiftKV directory")
    parser.add_argument("--teacher", required=True, metavar="MODEL")
    parser.add_argument("--cases", nargs="+", metavar="PATH", help="JSONL files of cases, or folders of them")
    parser.add_argument("--data", nargs="+", metavar="FILE", help="samples for KL and top-1 agreement")
    parser.add_argument("--samples", type=int, default=256, help="of --data")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="TOKENS", help="only these length buckets")
    parser.add_argument("--limit", type=int, metavar="N", help="cases of each task and length")
    parser.add_argument("--cached-tokens", type=int, default=65536, help="keys held at once, in tokens")
    parser.add_argument("--teacher-answers", metavar="FILE", help="rows.jsonl of another student's "
                        "evaluation with the same teacher and --dtype: the teacher is not asked again")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--harness", nargs="+", metavar="TASK", help="tasks of lm-eval-harness, if installed")
    parser.add_argument("--out", required=True, metavar="FOLDER",
                        help="evaluation.md, evaluation.json, rows.jsonl and evaluation.svg go here")
    _add_device(parser)
    parser.set_defaults(run=_evaluate)


def _add_synthesize(commands):
    parser = commands.add_parser("synthesize", help="training data in the style of tiny-llama-needle's cases")
    parser.add_argument("--out", required=True, metavar="FILE")
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--lengths", default="512:0.5,2048:0.25,8192:0.25",
                        help="prompt tokens and their share of all tokens (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.set_defaults(run=_synthesize)


def _add_device(parser):
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU if there is one")


def _inspect(options):
    from baton_swiftkv import inspection
    from baton_swiftkv.parallel import Processes
    report = inspection.inspect(options.model, options.data, options.samples, options.sequence_length,
                                options.prompt, Processes(options.device).device)
    print(report.markdown())
    if options.out:
        report.save(options.out)


def _convert(options):
    from baton_swiftkv.convert import convert
    shape = convert(options.model, options.layers, options.group, options.out, options.link)
    print(f"{options.out}: {shape.full_layers} of {shape.layers} layers for prompts, keys and values of "
          f"{shape.full_layers + len(shape.leaders)}")
    if shape.full_layers == shape.layers - 1:
        print("checked: logits are those of the source model")


def _distill(options):
    from baton_swiftkv.distill import Manner, Settings, distill
    from baton_swiftkv.parallel import Processes
    with Processes(options.device) as processes:
        distill(options.model, options.teacher, options.data, options.out, _pick(Settings, options),
                _pick(Manner, options), processes)


def _evaluate(options):
    from baton_swiftkv.evaluation_report import evaluate
    print(evaluate(options))


def _synthesize(options):
    from baton_swiftkv.synthetic import synthesize
    try:
        lengths = {int(length): float(share) for length, share in
                   (pair.split(":") for pair in options.lengths.split(","))}
    except ValueError:
        raise UserError(f"--lengths {options.lengths}: wanted TOKENS:SHARE,TOKENS:SHARE,...") from None
    synthesize(options.out, options.tokens, lengths, options.seed, options.workers)


def _pick(kind, options):
    """A dataclass from the options that have the names of its fields."""
    return kind(**{field.name: getattr(options, field.name) for field in dataclasses.fields(kind)})


if __name__ == "__main__":
    sys.exit(main())
