"""Whole documents through a decoder in either mode, every token through every layer."""

import torch

from baton_swiftkv.decoder import Packed
from baton_swiftkv.spans import whole_documents


def dense_logits(decoder, ids, rewired, bounds=None):
    """Logits [tokens, vocabulary] of packed documents (`bounds`: see whole_documents)."""
    bounds = bounds or [0, len(ids)]
    context = Packed(whole_documents(bounds, ids.device))
    angles = decoder.angles(document_positions(bounds, ids.device))
    x = decoder.lower(ids, angles, context)
    groups = decoder.fan_out(x, angles, context) if rewired else None
    return decoder.logits(decoder.upper(x, angles, context, groups)[1])


def document_positions(bounds, device):
    return torch.cat([torch.arange(end - begin) for begin, end in zip(bounds, bounds[1:])]).to(device)
