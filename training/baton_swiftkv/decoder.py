"""The decoder of all families, in two modes over one copy of the weights.

`plain` mode is the source model. In `rewired` mode the layers above the full ones use their
`*_swiftkv` projections, and all keys and values of these layers come from the hidden state that leaves
the full ones. Names of modules are the tensor names of the published checkpoints.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from baton_swiftkv.shape import SUFFIX


class RmsNorm(nn.Module):
    """Mean of squares in fp32; rounded to the input's type before the weight, as in transformers."""

    def __init__(self, width, eps, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=dtype))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight.to(x.dtype) * normed.to(x.dtype)


class Linear(nn.Linear):
    """Computes in the input's type, so that trained weights may be kept in fp32."""

    def forward(self, x):
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class Attention(nn.Module):
    """Projections of one layer; how queries meet keys is the context's affair."""

    def __init__(self, shape, layer, trained_dtype):
        super().__init__()
        self.layer = layer
        self.shape = shape
        queries, pairs = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self._add_projections({"q": queries, "k": pairs, "v": pairs}, "", shape.dtype)
        self.o_proj = nn.Linear(queries, shape.hidden, shape.output_bias, dtype=shape.dtype)
        if shape.rewired and layer >= shape.full_layers:
            own = {"q": queries}
            if layer in shape.leaders:
                own |= {"k": pairs, "v": pairs}
            self._add_projections(own, SUFFIX, trained_dtype)

    def _add_projections(self, widths, suffix, dtype):
        shape = self.shape
        for name, width in widths.items():
            linear = Linear(shape.hidden, width, shape.qkv_bias, dtype=dtype)
            setattr(self, f"{name}_proj{suffix}", linear)
            if shape.family.head_norms and name != "v":
                setattr(self, f"{name}_norm{suffix}", RmsNorm(shape.head_dim, shape.eps, dtype))

    def _heads(self, x, name, suffix, angles):
        heads = getattr(self, f"{name}_proj{suffix}")(x).unflatten(-1, (-1, self.shape.head_dim))
        if name == "v":
            return heads
        if self.shape.family.head_norms:
            heads = getattr(self, f"{name}_norm{suffix}")(heads)
        return rotate(heads, angles)

    def keys_values(self, x, angles, suffix=""):
        return self._heads(x, "k", suffix, angles), self._heads(x, "v", suffix, angles)

    def forward(self, x, angles, context, shared):
        suffix = "" if shared is None else SUFFIX
        if shared is None:
            shared = context.store(self.layer, *self.keys_values(x, angles))
        queries = self._heads(x, "q", suffix, angles)
        attended = context.attend(queries, *shared, self.shape.windows[self.layer])
        return self.o_proj(attended.flatten(-2))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        sizes = shape.hidden, shape.intermediate, shape.mlp_bias
        self.gate_proj = nn.Linear(*sizes, dtype=shape.dtype)
        self.up_proj = nn.Linear(*sizes, dtype=shape.dtype)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, shape.mlp_bias, dtype=shape.dtype)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape, layer, trained_dtype):
        super().__init__()
        self.input_layernorm = RmsNorm(shape.hidden, shape.eps, shape.dtype)
        self.self_attn = Attention(shape, layer, trained_dtype)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.eps, shape.dtype)
        self.mlp = Mlp(shape)

    def forward(self, x, angles, context, shared=None):
        """`shared`: keys and values of the layer's group in rewired mode, None in plain mode."""
        x = x + self.self_attn(self.input_layernorm(x), angles, context, shared)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers and head. Rows of all tensors are tokens; a context knows their documents.

    `trained_dtype` is the type in which the `*_swiftkv` parameters are kept; they compute in the
    others' type.
    """

    def __init__(self, shape, trained_dtype=None):
        super().__init__()
        trained_dtype = trained_dtype or shape.dtype
        self.shape = shape
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden, dtype=shape.dtype)
        self.model.layers = nn.ModuleList(
            Layer(shape, layer, trained_dtype) for layer in range(shape.layers))
        self.model.norm = RmsNorm(shape.hidden, shape.eps, shape.dtype)
        if shape.rewired:
            self.model.norm_swiftkv = RmsNorm(shape.hidden, shape.eps, trained_dtype)
        if not shape.tied:
            self.lm_head = nn.Linear(shape.hidden, shape.vocabulary, bias=False, dtype=shape.dtype)

    def forward(self, compute, *arguments):
        """`compute(decoder, *arguments)`: what is computed in there finds the weights, also those of
        embedding and head, gathered where they are spread over GPUs."""
        return compute(self, *arguments)

    @property
    def full_layers(self):
        return self.model.layers[:self.shape.full_layers]

    @property
    def upper_layers(self):
        return self.model.layers[self.shape.full_layers:]

    def angles(self, positions):
        """(cosines, sines) [rows, head_dim / 2], fp32 rounded to the activations' type."""
        inverse = self.shape.rope.inverse_frequencies(self.shape.head_dim).to(positions.device)
        turns = positions[:, None].float() * inverse
        return turns.cos().to(self.shape.dtype), turns.sin().to(self.shape.dtype)

    def lower(self, ids, angles, context):
        """The hidden state that enters the first upper layer."""
        x = self.model.embed_tokens(ids)
        for layer in self.full_layers:
            x = layer(x, angles, context)
        return x

    def upper(self, x, angles, context, groups=None, recompute=False):
        """(hidden state that enters the last layer, one that leaves it). `groups`: what `fan_out` gave,
        for rewired mode. `recompute` keeps no activations of a layer for the backward pass."""
        before_last = x
        for index, layer in enumerate(self.upper_layers):
            shared = None if groups is None else groups[index // self.shape.group_size]
            before_last = x
            if recompute:
                x = checkpoint(layer, x, angles, context, shared, use_reentrant=False)
            else:
                x = layer(x, angles, context, shared)
        return before_last, x

    def fan_out(self, x, angles, context):
        """Keys and values of every group of upper layers, from the state that enters the first."""
        normed = self.model.norm_swiftkv(x)
        groups = []
        for leader in self.shape.leaders:
            attention = self.model.layers[leader].self_attn
            groups.append(context.store(leader, *attention.keys_values(normed, angles, SUFFIX)))
        return groups

    def logits(self, x):
        x = self.model.norm(x)
        if self.shape.tied:
            return functional.linear(x, self.model.embed_tokens.weight)
        return self.lm_head(x)


class Packed:
    """The context of whole packed documents: keys and values are used as they come.

    `kept` collects them by layer where it is a dictionary.
    """

    def __init__(self, spans, kept=None):
        self._spans = spans
        self._kept = kept

    def store(self, layer, keys, values):
        if self._kept is not None:
            self._kept[layer] = keys, values
        return keys, values

    def attend(self, queries, keys, values, window):
        return self._spans.attend(queries, keys, values, window)


def rotate(heads, angles):
    """RoPE of [rows, heads, head_dim]: element i turns with i + head_dim / 2."""
    cosines, sines = (part[:, None, :] for part in angles)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


def trained_names(decoder):
    """Names of what distillation trains, in order."""
    return [name for name, _ in decoder.named_parameters() if SUFFIX in name]
