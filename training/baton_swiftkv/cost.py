"""What a model costs to run, to store and to distill. 2 operations per multiply-add."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """Operations of one layer for one token."""

    queries_output: int
    keys_values: int
    mlp: int
    attention_per_key: int

    @property
    def linear(self):
        return self.queries_output + self.keys_values + self.mlp


def layer_cost(shape):
    width = shape.heads * shape.head_dim
    return LayerCost(4 * shape.hidden * width, 4 * shape.hidden * shape.kv_heads * shape.head_dim,
                     6 * shape.hidden * shape.intermediate, 4 * width)


def prompt_flops(shape, tokens, full_layers=None, groups=0):
    """Of a prompt token on average, causal attention, without the head. `full_layers` None: plain."""
    cost = layer_cost(shape)
    full_layers = shape.layers if full_layers is None else full_layers
    attention = cost.attention_per_key * (tokens + 1) / 2
    return full_layers * (cost.linear + attention) + groups * cost.keys_values


def kv_bytes(shape, stored_layers, item_bytes=2):
    """Of one token."""
    return 2 * stored_layers * shape.kv_heads * shape.head_dim * item_bytes


def trained_parameters(shape, full_layers, group_size):
    """Queries of every upper layer, keys and values of every group, one norm."""
    queries = shape.hidden * shape.heads * shape.head_dim
    pair = 2 * shape.hidden * shape.kv_heads * shape.head_dim
    upper = shape.layers - full_layers
    return upper * queries + upper // group_size * pair + shape.hidden


def parameters(shape):
    """Of the plain model; norms and biases, which are few, left out."""
    cost = layer_cost(shape)
    return shape.layers * cost.linear // 2 + shape.vocabulary * shape.hidden * (1 if shape.tied else 2)


def training_flops(shape, document, learned_share=1.0, recompute=True, full=False):
    """Of a token in distillation, documents of `document` tokens, `learned_share` of them an assistant's.

    The teacher is one pass forward; the student another through the upper layers, for the assistant's
    tokens alone, and back: once for activations, not for frozen weights. `full`: plain fine-tuning, every
    layer forward, again if `recompute`, and twice that back.
    """
    cost = layer_cost(shape)
    attention = cost.attention_per_key * (document + 1) / 2
    head = 2 * shape.hidden * shape.vocabulary
    if full:
        forward = shape.layers * (cost.linear + attention)
        return forward * (4 if recompute else 3) + head * learned_share * 4
    upper = shape.layers - shape.full_layers
    forward = upper * (cost.queries_output + cost.mlp + attention)
    trained = upper * cost.queries_output / 2
    groups = len(shape.leaders) * cost.keys_values
    student = forward * (3 if recompute else 2) + upper * attention + trained
    teacher = shape.layers * (cost.linear + attention)
    return teacher + learned_share * (student + 5 * head) + 2 * groups
