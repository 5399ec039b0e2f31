"""Greedy answers of many prompts at once, in either mode.

Prefill in rewired mode runs the upper layers for the last token of each prompt only, as a server does.
"""

import torch

from baton_swiftkv.decoder import Packed
from baton_swiftkv.modes import document_positions
from baton_swiftkv.spans import Spans, dot_product_attention, whole_documents


@torch.inference_mode()
def greedy(decoder, prompts, most_tokens, stop_ids, rewired):
    """Token ids that follow each prompt, without the stop token; `most_tokens[i]` of prompt i at most."""
    device = decoder.model.embed_tokens.weight.device
    logits, cache = _prefill(decoder, prompts, max(most_tokens), rewired, device)
    answers = [[] for _ in prompts]
    going = set(range(len(prompts)))
    while True:
        chosen = logits.argmax(-1)
        for i, token in enumerate(chosen.tolist()):
            if i not in going:
                continue
            if token in stop_ids:
                going.discard(i)
                continue
            answers[i].append(token)
            if len(answers[i]) == most_tokens[i]:
                going.discard(i)
        if not going:
            return answers
        logits = _decode(decoder, chosen, cache, rewired)


def _prefill(decoder, prompts, room, rewired, device):
    """(logits of the last tokens, cache)"""
    lengths = [len(prompt) for prompt in prompts]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    bounds = [0, *ends]
    ids = torch.tensor([token for prompt in prompts for token in prompt], device=device)
    kept = {}
    context = Packed(whole_documents(bounds, device), kept)
    angles = decoder.angles(document_positions(bounds, device))
    x = decoder.lower(ids, angles, context)
    last = torch.tensor(ends, device=device) - 1
    if rewired:
        groups = decoder.fan_out(x, angles, context)
        runs = [(i, i + 1, begin, end) for i, (begin, end) in enumerate(zip(bounds, bounds[1:]))]
        own_angles = tuple(part[last] for part in angles)
        x = decoder.upper(x[last], own_angles, Packed(Spans(runs, device)), groups)[1]
    else:
        x = decoder.upper(x, angles, context)[1][last]
    return decoder.logits(x), Cache(kept, bounds, room)


def _decode(decoder, ids, cache, rewired):
    cache.advance()
    angles = decoder.angles(cache.lengths - 1)
    x = decoder.lower(ids, angles, cache)
    groups = decoder.fan_out(x, angles, cache) if rewired else None
    return decoder.logits(decoder.upper(x, angles, cache, groups)[1])


class Cache:
    """The context of one new token per sequence: keys and values [sequences, room, heads, head_dim]."""

    def __init__(self, kept, bounds, room):
        lengths = [end - begin for begin, end in zip(bounds, bounds[1:])]
        any_keys = next(iter(kept.values()))[0]
        self.lengths = torch.tensor(lengths, device=any_keys.device)
        self._room = max(lengths) + room
        self._layers = {layer: tuple(self._padded(part, bounds) for part in pair)
                        for layer, pair in kept.items()}
        self._places = torch.arange(self._room, device=any_keys.device)
        self._sequences = torch.arange(len(lengths), device=any_keys.device)

    def _padded(self, rows, bounds):
        padded = rows.new_zeros(len(bounds) - 1, self._room, *rows.shape[1:])
        for i, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            padded[i, :end - begin] = rows[begin:end]
        return padded

    def advance(self):
        """Every sequence is one token longer; its keys and values are stored next."""
        self.lengths = self.lengths + 1

    def store(self, layer, keys, values):
        for cached, new in zip(self._layers[layer], (keys, values)):
            cached[self._sequences, self.lengths - 1] = new
        return self._layers[layer]

    def attend(self, queries, keys, values, window):
        distance = self.lengths[:, None] - 1 - self._places[None, :]
        seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        output = dot_product_attention(queries[:, :, None], keys.transpose(1, 2), values.transpose(1, 2),
                                       seen[:, None, None, :])
        return output[:, :, 0]
