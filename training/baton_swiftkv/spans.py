"""Attention of packed documents: runs of queries, each with the keys of its own document."""

import functools
import warnings

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

# cuDNN's, which is left out, may turn a shape down only when it runs.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Spans:
    """(query begin, query end, key begin, key end) of every run of queries, rows of packed tensors.

    The last query of a run sees the last key, the one before it one key less, and so on. Queries of all
    runs together are all rows in order; keys of different runs may overlap.
    """

    def __init__(self, runs, device):
        self.runs = runs
        self.device = torch.device(device)

    @functools.cached_property
    def _query_starts(self):
        return self._starts([end - begin for begin, end, _, _ in self.runs])

    @functools.cached_property
    def _key_starts(self):
        return self._starts([end - begin for _, _, begin, end in self.runs])

    @functools.cached_property
    def _key_rows(self):
        """Rows of the keys run by run; None where they lie so already."""
        ends = [0] + [run[3] for run in self.runs]
        if all(run[2] == end for run, end in zip(self.runs, ends)):
            return None
        rows = [torch.arange(begin, end) for _, _, begin, end in self.runs]
        return torch.cat(rows).to(self.device)

    def _starts(self, lengths):
        starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        starts[1:] = torch.tensor(lengths).cumsum(0)
        return starts.to(self.device)

    def attend(self, queries, keys, values, window=None):
        """[query rows, heads, head_dim]; `window` keys at most, the query's own included."""
        if self.runs and _has_varlen(queries.device, queries.dtype, queries.shape[-1]):
            return self._attend_varlen(queries, keys, values, window)
        outputs = [_attend_run(queries[run[0]:run[1]], keys[run[2]:run[3]], values[run[2]:run[3]], window)
                   for run in self.runs]
        return torch.cat(outputs) if outputs else queries

    def _attend_varlen(self, queries, keys, values, window):
        rows = self._key_rows
        if rows is not None:
            keys, values = keys.index_select(0, rows), values.index_select(0, rows)
        else:
            keys, values = keys[:self.runs[-1][3]], values[:self.runs[-1][3]]
        return _varlen(queries, keys, values, self._query_starts, self._key_starts,
                       max(run[1] - run[0] for run in self.runs),
                       max(run[3] - run[2] for run in self.runs), window)


def whole_documents(bounds, device):
    """Spans in which every row is a query: document i is rows bounds[i] to bounds[i + 1]."""
    return Spans([(begin, end, begin, end) for begin, end in zip(bounds, bounds[1:])], device)


def causal_mask(queries, keys, window, device):
    """Boolean [queries, keys], the last query at the last key."""
    distance = (torch.arange(keys - queries, keys, device=device)[:, None] -
                torch.arange(keys, device=device)[None, :])
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def _attend_run(queries, keys, values, window):
    rows, columns = queries.shape[0], keys.shape[0]
    plain = rows == columns and (window is None or window >= columns)
    mask = None if plain else causal_mask(rows, columns, window, queries.device)
    batch = (part.transpose(0, 1)[None] for part in (queries, keys, values))
    return dot_product_attention(*batch, mask, plain)[0].transpose(0, 1)


def dot_product_attention(queries, keys, values, mask=None, causal=False):
    """PyTorch's; [batch, heads, rows, head_dim], fewer heads of keys and values than of queries."""
    with sdpa_kernel(_BACKENDS):
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask,
                                                       is_causal=causal,
                                                       enable_gqa=queries.shape[1] != keys.shape[1])


def _varlen(queries, keys, values, query_starts, key_starts, most_queries, most_keys, window):
    from torch.nn.attention.varlen import varlen_attn
    left = -1 if window is None else window - 1
    return varlen_attn(queries.contiguous(), keys.contiguous(), values.contiguous(), query_starts,
                       key_starts, most_queries, most_keys, window_size=(left, 0))


@functools.lru_cache
def _has_varlen(device, dtype, head_dim):
    """Whether PyTorch's kernel for packed sequences is there and gives, gradients included, what
    `_attend_run` gives."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[device]):
        torch.manual_seed(0)
        inputs = [torch.randn(rows, heads, head_dim, device=device, dtype=dtype, requires_grad=True)
                  for rows, heads in ((7, 4), (24, 2), (24, 2))]
        spans = Spans([(0, 3, 0, 8), (3, 7, 8, 24)], device)
        try:
            for window in (None, 5):
                expected = torch.cat([_attend_run(inputs[0][a:b], inputs[1][c:d], inputs[2][c:d], window)
                                      for a, b, c, d in spans.runs])
                found = spans._attend_varlen(*inputs, window)
                for pair in zip((found, *torch.autograd.grad(found.square().sum(), inputs)),
                                (expected, *torch.autograd.grad(expected.square().sum(), inputs))):
                    torch.testing.assert_close(*pair, atol=5e-2, rtol=5e-2)
        except (ImportError, TypeError, RuntimeError, AssertionError) as error:
            warnings.warn(f"packed attention runs document by document, which is slower: {error}")
            return False
    return True
