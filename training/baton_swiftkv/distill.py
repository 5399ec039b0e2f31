"""`baton-swiftkv distill`: recovers what rewiring lost."""

import dataclasses
import math
import pathlib

import numpy as np
import torch

from baton_swiftkv import checkpoints
from baton_swiftkv.convert import base_names
from baton_swiftkv.corpus import open_corpus
from baton_swiftkv.errors import UserError
from baton_swiftkv.loading import load_decoder
from baton_swiftkv.metrics import Metrics, Stopwatch
from baton_swiftkv.packing import Plan, make_batch
from baton_swiftkv.recovery import Recovery
from baton_swiftkv.shape import SUFFIX, read_config, read_shape
from baton_swiftkv.tensors import save_with_shard
from baton_swiftkv.tokenizer import load_tokenizer


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that the result depends on, apart from model and data."""

    sequence_length: int = 8192
    packs_per_step: int = 32  # over all processes
    epochs: int = 2
    steps: int | None = None  # instead of epochs
    learning_rate: float = 3e-4
    weight_decay: float = 0.05
    warmup_share: float = 0.05
    schedule: str = "cosine"  # or "constant"
    clip_norm: float = 1.0
    temperature: float = 2.0
    hidden_weight: float = 0.0
    long_share: float = 0.0
    seed: int = 0
    held_out: int = 64  # samples
    dtype: str | None = None  # of frozen weights and activations; None: the checkpoint's


@dataclasses.dataclass(frozen=True)
class Manner:
    """How it is run; the result is the same but for rounding."""

    recompute: bool = True
    checkpoint_every: int = 100
    evaluate_every: int = 50
    link: bool = False
    data_cache: str | None = None  # folder for tokenized data; None: OUT/data


def distill(directory, teacher, data, out, settings, manner, processes):
    """Trains the `*_swiftkv` weights of `directory` and writes the result to `out`. Goes on from the newest
    checkpoint in `out`, if there is one."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    run = _Run(directory, teacher, data, out, settings, manner, processes)
    first = checkpoints.restore(out / "checkpoints", run.decoder, run.optimizer, run.facts, processes)
    with Metrics(out / "metrics.jsonl" if processes.first else None, run.steps, first) as metrics:
        run.train(first, metrics)
    weights = checkpoints.trained_weights(run.decoder)
    if processes.first:
        save_model(directory, teacher, out, weights, manner.link)
    processes.wait()


def save_model(directory, teacher, out, weights, link=False):
    """The teacher's files and one shard with the trained weights, in the checkpoint's type."""
    dtype = read_shape(directory).dtype
    save_with_shard(teacher, out, read_config(directory), base_names(read_shape(teacher)),
                    {name: tensor.to(dtype) for name, tensor in weights.items()}, link)


class _Part:
    """Some samples of a corpus, packed."""

    def __init__(self, numbers, corpus, most_tokens, seed, long_share):
        self._numbers, self._corpus = numbers, corpus
        self.plan = Plan(corpus.lengths[numbers], most_tokens, seed, long_share)

    def batch(self, number, device):
        """Pack `number` on a device."""
        pack = self.plan[number]
        samples = [self._corpus[self._numbers[sample]] for sample in pack.samples]
        return make_batch(samples, pack.joined, device)


class _Run:
    """Data, model and optimizer of a run, and what a step does with them."""

    def __init__(self, directory, teacher, data, out, settings, manner, processes):
        self.settings, self.manner, self.processes, self.out = settings, manner, processes, out
        if settings.packs_per_step % processes.count:
            raise UserError(f"{settings.packs_per_step} packs a step can't be shared by {processes.count} "
                            f"processes alike")
        torch.manual_seed(settings.seed)
        shape = read_shape(directory)
        if not shape.rewired:
            raise UserError(f"{directory}: is no SwiftKV model; `baton-swiftkv convert` makes one")
        if settings.dtype:
            shape = dataclasses.replace(shape, dtype=getattr(torch, settings.dtype))
        if shape.dtype == torch.float16:
            raise UserError(f"{directory}: float16 has too little range for gradients; give --dtype bfloat16")
        self._open_data(teacher, data)
        self.decoder = load_decoder(shape, directory, teacher, processes.device, torch.float32,
                                    processes.shard)
        for name, parameter in self.decoder.named_parameters():
            parameter.requires_grad_(SUFFIX in name)
        self.recovery = Recovery(self.decoder, settings.temperature, settings.hidden_weight,
                                 manner.recompute)
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.learning_rate, betas=(0.9, 0.999),
            weight_decay=settings.weight_decay, fused=processes.device.type == "cuda")
        self.facts = dataclasses.asdict(settings) | {
            "data": self.corpus.facts["fingerprint"], "full_layers": shape.full_layers,
            "group_size": shape.group_size}

    @property
    def parameters(self):
        return [parameter for parameter in self.decoder.parameters() if parameter.requires_grad]

    def _open_data(self, teacher, data):
        """The first process makes the files, the others find them."""
        settings = self.settings
        tokenizer = load_tokenizer(teacher)
        folder = self.manner.data_cache or self.out / "data"
        for turn in (True, False):
            if turn == self.processes.first:
                self.corpus = open_corpus(folder, data, tokenizer, settings.sequence_length)
            self.processes.wait()
        if len(self.corpus) <= settings.held_out:
            raise UserError(f"the data has {len(self.corpus)} samples; {settings.held_out} are held out "
                            f"(--held-out), and none is left to train on")
        order = np.random.default_rng(0).permutation(len(self.corpus))  # whatever the seed of the run
        held_out, training = np.sort(order[:settings.held_out]), np.sort(order[settings.held_out:])
        self.held_out = _Part(held_out, self.corpus, settings.sequence_length, 0, 0.0)
        self.training = _Part(training, self.corpus, settings.sequence_length, settings.seed,
                              settings.long_share)
        self.steps = settings.steps or self._steps_of_epochs()

    def _steps_of_epochs(self):
        settings = self.settings
        packs = self.training.plan.packs_in(settings.epochs)
        if packs < settings.packs_per_step:
            raise UserError(f"the data fills {packs} packs, fewer than the {settings.packs_per_step} of one "
                            f"step; lower --packs-per-step")
        return packs // settings.packs_per_step

    def train(self, first, metrics):
        watch = Stopwatch()
        if first == 0:
            self._note_evaluation(0, metrics)
        for step in range(first, self.steps):
            watch.lap()
            row = self._step(step)
            if not math.isfinite(row["loss"]):
                raise UserError(f"the loss of step {step + 1} is {row['loss']}; lower --learning-rate and "
                                f"run again, with another --out")
            row["tokens_per_s"] = row["tokens"] / watch.lap()
            done = step + 1
            metrics.step({"step": done} | row)
            if done % self.manner.evaluate_every == 0 or done == self.steps:
                self._note_evaluation(done, metrics)
            if done % self.manner.checkpoint_every == 0:
                self.save(done)

    def _note_evaluation(self, step, metrics):
        if self.settings.held_out:
            metrics.note({"step": step} | self.evaluate())

    def save(self, step):
        checkpoints.save(self.out / "checkpoints", step, self.decoder, self.optimizer, self.facts,
                         self.processes)

    def _step(self, step):
        """One update; the mean is over all rows of all packs, whichever process has them."""
        batches = self._own_batches(step)
        rows, tokens = self.processes.sum(sum(len(batch.rows) for batch in batches),
                                          sum(len(batch.ids) for batch in batches))
        totals = torch.zeros(3, device=self.processes.device)
        for batch in batches:
            sums = self.recovery(batch)
            (self.recovery.loss(sums) * (self.processes.count / rows)).backward()
            totals += torch.stack([sums.kl, sums.hidden, sums.agreed]).detach()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm)
        rate = self._set_learning_rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        kl, hidden, agreed = (total / rows for total in self.processes.sum(*totals.tolist()))
        return {"loss": kl + self.settings.hidden_weight * hidden, "kl": kl, "hidden_mse": hidden,
                "top1": agreed, "grad_norm": _whole(norm), "learning_rate": rate, "tokens": int(tokens),
                "rows": int(rows)}

    def _own_batches(self, step):
        first = step * self.settings.packs_per_step
        return [self.training.batch(number, self.processes.device) for number in range(
            first + self.processes.rank, first + self.settings.packs_per_step, self.processes.count)]

    def _set_learning_rate(self, step):
        rate = self.settings.learning_rate * schedule(step, self.steps, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    @torch.no_grad()
    def evaluate(self):
        """Held-out loss and agreement. Every process takes as many packs, some of them twice."""
        count, processes = self.held_out.plan.packs_in(1), self.processes
        own = [(first + processes.rank) % count for first in range(0, count, processes.count)]
        sums = [0.0] * 4
        for turn, number in enumerate(own):
            batch = self.held_out.batch(number, processes.device)
            part = self.recovery(batch)
            if turn * processes.count + processes.rank < count:
                values = part.kl.item(), part.hidden.item(), part.agreed.item(), len(batch.rows)
                sums = [total + value for total, value in zip(sums, values)]
        kl, hidden, agreed, rows = processes.sum(*sums)
        return {"held_out_kl": kl / rows, "held_out_hidden_mse": hidden / rows,
                "held_out_top1": agreed / rows}


def schedule(step, steps, settings):
    """The share of the learning rate: a linear warm-up, then a cosine to zero, or constant."""
    warmup = max(1, round(steps * settings.warmup_share))
    if step < warmup:
        return (step + 1) / warmup
    if settings.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def _whole(norm):
    return (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item()
