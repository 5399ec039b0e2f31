"""Greedy answers of many prompts at once, in either mode.

Prefill in rewired mode runs the upper layers for the last token of each prompt only, as a server does.
"""

import torch

from baton_swiftkv.decoder import Packed
from baton_swiftkv.modes import document_positions
from baton_swiftkv.spans import Spans, dot_product_attention, whole_documents

MASK_ALIGNMENT = 8  # keys; PyTorch's memory-efficient attention copies masks of other widths


@torch.inference_mode()
def greedy(decoder, prompts, most_tokens, stop_ids, rewired):
    """Token ids that follow each prompt, without the stop token; `most_tokens[i]` of prompt i at most."""
    device = decoder.model.embed_tokens.weight.device
    logits, cache = _prefill(decoder, prompts, max(most_tokens), rewired, device)
    answers = [[] for _ in prompts]
    cached, going = list(range(len(prompts))), set(range(len(prompts)))
    while True:
        chosen = logits.argmax(-1)
        for i, token in zip(cached, chosen.tolist()):
            if i not in going:
                continue
            if token not in stop_ids:
                answers[i].append(token)
            if token in stop_ids or len(answers[i]) == most_tokens[i]:
                going.discard(i)
        if not going:
            return answers
        if 2 * len(going) <= len(cached):
            places = [place for place, i in enumerate(cached) if i in going]
            cached = [cached[place] for place in places]
            chosen = cache.keep(places, chosen)
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
        device = next(iter(kept.values()))[0].device
        lengths = [end - begin for begin, end in zip(bounds, bounds[1:])]
        room = -(-(max(lengths) + room) // MASK_ALIGNMENT) * MASK_ALIGNMENT
        self.lengths = torch.tensor(lengths, device=device)
        rows = torch.arange(len(lengths), device=device).repeat_interleave(self.lengths)
        at = rows, document_positions(bounds, device)
        self._layers = {layer: tuple(_padded(part, at, len(lengths), room) for part in pair)
                        for layer, pair in kept.items()}
        self._places = torch.arange(room, device=device)
        self._seen = {}

    def keep(self, places, chosen):
        """Forgets the sequences at other places; returns the rows of `chosen` at these."""
        places = torch.tensor(places, device=chosen.device)
        self.lengths = self.lengths[places]
        for layer, pair in self._layers.items():
            self._layers[layer] = tuple(part[places] for part in pair)
        return chosen[places]

    def advance(self):
        """Every sequence is one token longer; its keys and values are stored next."""
        self.lengths = self.lengths + 1
        self._next = torch.arange(len(self.lengths), device=self.lengths.device), self.lengths - 1
        self._seen = {}

    def store(self, layer, keys, values):
        for cached, new in zip(self._layers[layer], (keys, values)):
            cached[self._next] = new
        return self._layers[layer]

    def attend(self, queries, keys, values, window):
        """Query heads with the same keys attend as if they were rows of one head, so that nobody has to
        repeat the keys for them."""
        if window not in self._seen:
            self._seen[window] = self._mask(window)
        grouped = queries.unflatten(1, (keys.shape[2], -1))
        output = dot_product_attention(grouped, keys.transpose(1, 2), values.transpose(1, 2),
                                       self._seen[window])
        return output.flatten(1, 2)

    def _mask(self, window):
        """Boolean [sequences, 1, 1, room]."""
        distance = self.lengths[:, None] - 1 - self._places[None, :]
        seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        return seen[:, None, None, :]


def _padded(rows, at, sequences, room):
    padded = rows.new_zeros(sequences, room, *rows.shape[1:])
    padded[at] = rows
    return padded
