"""What distillation makes small: the distance of rewired mode from plain mode, on one pack."""

import dataclasses

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from baton_swiftkv.decoder import Packed

LOGITS_AT_A_TIME = 1 << 28  # elements of logits held at once


@dataclasses.dataclass
class Sums:
    """Sums over the rows of a pack, to be divided by their number; or the rows themselves (`by_row`).
    `kl` has its temperature's square in it."""

    kl: torch.Tensor
    hidden: torch.Tensor  # squared distance, mean over the width
    agreed: torch.Tensor  # rows with the same most likely token


class Recovery:
    """Teacher and student of one decoder.

    Layers below the rewiring are frozen and alike in both modes, so they run once. Above it, the student's
    keys and values come from there too; its other states are needed, and computed, only for the rows
    that count.
    """

    def __init__(self, decoder, temperature=2.0, hidden_weight=0.0, recompute=False):
        self.decoder = decoder
        self.temperature = temperature
        self.hidden_weight = hidden_weight
        self.recompute = recompute

    def __call__(self, batch):
        """Sums of a pack, `kl` and `hidden` with gradients where they are enabled."""
        return Sums(*(part.sum() for part in self.decoder(self._rows, batch)))

    def by_row(self, batch):
        """The same of each row, tensors [rows]."""
        return Sums(*self.decoder(self._rows, batch))

    def loss(self, sums):
        return sums.kl + self.hidden_weight * sums.hidden

    def _rows(self, decoder, batch):
        with torch.no_grad():
            whole = Packed(batch.documents)
            angles = decoder.angles(batch.positions)
            x = decoder.lower(batch.ids, angles, whole)
            teacher = [state.index_select(0, batch.rows) for state in decoder.upper(x, angles, whole)]
        queries = Packed(batch.queries)
        groups = decoder.fan_out(x, angles, queries)
        own_angles = tuple(part.index_select(0, batch.rows) for part in angles)
        student = decoder.upper(x.index_select(0, batch.rows), own_angles, queries, groups, self.recompute)
        hidden = (student[0].float() - teacher[0].float()).square().mean(-1)
        kl, agreed = self._compare_logits(student[1], teacher[1])
        return kl, hidden, agreed

    def _compare_logits(self, student, teacher):
        """(kl, agreed) of each row, some rows at a time; the backward pass computes their logits again."""
        step = max(1, LOGITS_AT_A_TIME // self.decoder.shape.vocabulary)
        parts = [checkpoint(self._compare_rows, *pair, use_reentrant=False)
                 for pair in zip(student.split(step), teacher.split(step))]
        return tuple(torch.cat(part) for part in zip(*parts))

    def _compare_rows(self, student, teacher):
        student, teacher = self.decoder.logits(student), self.decoder.logits(teacher)
        agreed = (student.argmax(-1) == teacher.argmax(-1)).float()
        kl = functional.kl_div(functional.log_softmax(student.float() / self.temperature, -1),
                               functional.log_softmax(teacher.float() / self.temperature, -1),
                               reduction="none", log_target=True).sum(-1)
        return kl * self.temperature**2, agreed
