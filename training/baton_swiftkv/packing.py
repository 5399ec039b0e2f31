"""Which samples make up which pack, and packs as tensors.

The plan follows from lengths and seed alone, so a position in the data is one number.
"""

import dataclasses

import numpy as np
import torch

from baton_swiftkv.spans import Spans, whole_documents

OPEN_PACKS = 16  # that a sample may still go into


@dataclasses.dataclass(frozen=True)
class Pack:
    samples: tuple
    joined: bool  # one long document: positions go on, attention reaches back over the samples before


class Plan:
    """Packs of at most `most_tokens` tokens, numbered through all epochs, each epoch in its own order.

    A share of `long_share` of the packs is joined, to train on long contexts.
    """

    def __init__(self, lengths, most_tokens, seed, long_share=0.0):
        self._lengths = np.minimum(lengths, most_tokens)
        self._most_tokens = most_tokens
        self._seed = seed
        self._long_share = long_share
        self._epochs = []
        self._starts = [0]

    def __getitem__(self, number):
        while number >= self._starts[-1]:
            self._epochs.append(self._pack_epoch(len(self._epochs)))
            self._starts.append(self._starts[-1] + len(self._epochs[-1]))
        epoch = int(np.searchsorted(self._starts, number, "right")) - 1
        return self._epochs[epoch][number - self._starts[epoch]]

    def packs_in(self, epochs):
        """How many packs the first `epochs` epochs have."""
        while len(self._epochs) < epochs:
            self[self._starts[-1]]
        return self._starts[epochs]

    def _pack_epoch(self, epoch):
        random = np.random.default_rng([self._seed, epoch])
        done, opened = [], []
        for sample in random.permutation(len(self._lengths)):
            length = int(self._lengths[sample])
            fitting = [pack for pack in opened if pack[0] >= length]
            if fitting:
                pack = min(fitting, key=lambda pack: pack[0])
            else:
                if len(opened) == OPEN_PACKS:
                    done.append(opened.pop(0)[1])
                pack = [self._most_tokens, []]
                opened.append(pack)
            pack[0] -= length
            pack[1].append(int(sample))
        done += [samples for _, samples in opened]
        joined = random.random(len(done)) < self._long_share
        return [Pack(tuple(samples), bool(join)) for samples, join in zip(done, joined)]


@dataclasses.dataclass
class Batch:
    """One pack on a device. `rows`: where the next token is an assistant's, in runs of documents."""

    ids: torch.Tensor
    positions: torch.Tensor
    documents: Spans
    rows: torch.Tensor
    queries: Spans  # of `rows`
    targets: torch.Tensor  # the next token of each row


def make_batch(samples, joined=False, device="cpu"):
    """`samples`: [(ids, learned)]."""
    ids = np.concatenate([sample[0] for sample in samples]).astype(np.int64)
    learned = np.concatenate([sample[1] for sample in samples]).astype(bool)
    bounds = [0, len(ids)] if joined else [0, *np.cumsum([len(sample[0]) for sample in samples]).tolist()]
    runs = list(_learned_runs(learned, bounds))
    rows = np.concatenate([np.arange(first, end) for first, end, _ in runs] or [np.zeros(0, int)])
    positions = np.concatenate([np.arange(end - begin) for begin, end in zip(bounds, bounds[1:])])
    ids, rows, positions = (torch.from_numpy(part.astype(np.int64)) for part in (ids, rows, positions))
    targets = ids[rows + 1]
    ids, rows, positions, targets = (part.to(device, non_blocking=True)
                                     for part in (ids, rows, positions, targets))
    return Batch(ids, positions, whole_documents(bounds, device), rows,
                 Spans(list(_query_runs(runs)), device), targets)


def _learned_runs(learned, bounds):
    """(first row, end, begin of its document): a row t counts if token t + 1 is learned and of the same
    document."""
    for begin, end in zip(bounds, bounds[1:]):
        counts = np.concatenate(([False], learned[begin + 1:end], [False]))
        edges = np.flatnonzero(counts[1:] != counts[:-1])
        for first, last in zip(edges[::2], edges[1::2]):
            yield begin + int(first), begin + int(last), begin


def _query_runs(runs):
    row = 0
    for first, end, begin in runs:
        yield row, row + end - first, begin, end
        row += end - first
