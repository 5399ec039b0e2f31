"""What config.json says about a model, read alike for all families."""

import dataclasses
import json
import math
import pathlib

import torch

from baton_swiftkv.errors import UserError

SUFFIX = "_swiftkv"


@dataclasses.dataclass(frozen=True)
class Family:
    """What distinguishes a family from Llama, beyond what its config.json spells out."""

    model_type: str
    class_name: str  # of the SwiftKV model, for `architectures`
    qkv_bias: bool | None  # None: as `attention_bias` says
    output_bias: bool | None
    head_norms: bool  # RMSNorm of every query and key head, before RoPE
    window_needs_flag: bool  # `sliding_window` counts only with `use_sliding_window`


FAMILIES = {
    family.model_type: family
    for family in (
        Family("llama", "LlamaSwiftKVForCausalLM", None, None, False, True),
        Family("qwen2", "Qwen2SwiftKVForCausalLM", True, False, False, True),
        Family("qwen3", "Qwen3SwiftKVForCausalLM", None, None, True, True),
        Family("mistral", "MistralSwiftKVForCausalLM", False, False, False, False),
    )
}


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary positions: the default, or Llama 3's scaling where `factor` is set."""

    theta: float
    factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    def inverse_frequencies(self, head_dim):
        """fp32 [head_dim / 2]."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        inverse = 1.0 / self.theta**exponents
        if self.factor is None:
            return inverse
        wavelength = 2 * math.pi / inverse
        smooth = (self.original_positions / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor)
        smooth = smooth.clamp(0.0, 1.0)
        return (1 - smooth) * inverse / self.factor + smooth * inverse


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes and structure of a model. Plain models have `full_layers` == `layers`."""

    family: Family
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float
    rope: Rope
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied: bool
    windows: tuple  # of each layer: keys that a query sees, itself included; None: all
    dtype: torch.dtype
    full_layers: int
    group_size: int

    @property
    def rewired(self):
        return self.full_layers < self.layers

    @property
    def leaders(self):
        """The upper layers that own keys and values."""
        return range(self.full_layers, self.layers, self.group_size)

    def leader_of(self, layer):
        return layer - (layer - self.full_layers) % self.group_size

    def with_swiftkv(self, full_layers, group_size):
        """The same model rewired. UserError unless 1 <= S < L and g divides L - S."""
        check_rewiring(self.layers, full_layers, group_size)
        return dataclasses.replace(self, full_layers=full_layers, group_size=group_size)


def check_rewiring(layers, full_layers, group_size):
    if not 1 <= full_layers < layers:
        raise UserError(f"{full_layers} full layers: a model of {layers} layers takes 1 to {layers - 1}")
    if group_size < 1 or (layers - full_layers) % group_size:
        raise UserError(f"group size {group_size} does not divide the {layers - full_layers} layers "
                        f"above the {full_layers} full ones")


def read_config(directory):
    """config.json as a dictionary."""
    path = pathlib.Path(directory) / "config.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: not found; a model is a directory in Hugging Face layout") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None


def read_shape(directory):
    """The shape of a model directory, plain or SwiftKV."""
    return shape_of(read_config(directory), str(pathlib.Path(directory) / "config.json"))


def shape_of(config, where="config.json"):
    """The shape that a config.json describes. UserError names what is missing or unknown."""
    fields = _Fields(config, where)
    family = _family(config, where)
    layers, hidden, heads = (fields[name] for name in (
        "num_hidden_layers", "hidden_size", "num_attention_heads"))
    default_head_dim = 128 if family.model_type == "qwen3" else hidden // heads
    if config.get("hidden_act", "silu") != "silu":
        raise UserError(f"{where}: `hidden_act` is {config['hidden_act']}; only silu is known")
    if config.get("quantization_config"):
        raise UserError(f"{where}: the model is quantized; take the bf16 checkpoint")
    full_layers = config.get("num_key_value_layers") or layers
    group_size = config.get("key_value_group_size") or 1
    if full_layers < layers:
        check_rewiring(layers, full_layers, group_size)
    return Shape(
        family=family, layers=layers, hidden=hidden, intermediate=fields["intermediate_size"],
        heads=heads, kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or default_head_dim, vocabulary=fields["vocab_size"],
        eps=config.get("rms_norm_eps", 1e-6), rope=_rope(config, where),
        qkv_bias=_bias(family.qkv_bias, config, "attention_bias"),
        output_bias=_bias(family.output_bias, config, "attention_bias"),
        mlp_bias=family.model_type == "llama" and bool(config.get("mlp_bias")),
        tied=bool(config.get("tie_word_embeddings", False)), windows=_windows(config, family, layers),
        dtype=_dtype(config, where), full_layers=full_layers, group_size=group_size)


class _Fields:
    def __init__(self, config, where):
        self._config = config
        self._where = where

    def __getitem__(self, name):
        if not isinstance(self._config.get(name), int):
            raise UserError(f"{self._where}: `{name}` is missing or no integer")
        return self._config[name]


def _family(config, where):
    name = config.get("model_type", "")
    family = FAMILIES.get(name.removesuffix(SUFFIX))
    if family is None:
        raise UserError(
            f"{where}: `model_type` is \"{name}\"; known are {', '.join(FAMILIES)}. A new family needs an "
            f"entry in FAMILIES (baton_swiftkv/shape.py: biases, head norms, sliding window) and, where "
            f"its layers differ from Llama's in anything else, that difference in decoder.py")
    return family


def _bias(fixed, config, name):
    return bool(config.get(name)) if fixed is None else fixed


def _dtype(config, where):
    name = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    if name not in ("bfloat16", "float16", "float32"):
        raise UserError(f"{where}: weights of type {name}; known are bfloat16, float16 and float32")
    return getattr(torch, name)


def _rope(config, where):
    """Both spellings: `rope_theta` with `rope_scaling`, and `rope_parameters` with all of it."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or config.get("rope_theta") or 10000.0
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return Rope(theta)
    if kind != "llama3":
        raise UserError(f"{where}: rope scaling of type \"{kind}\"; known are the default and llama3")
    return Rope(theta, scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"],
                scaling["original_max_position_embeddings"])


def _windows(config, family, layers):
    """Qwen's windows hold only from layer `max_window_layers` on, Mistral's everywhere."""
    window = config.get("sliding_window")
    if not window or family.model_type == "llama":
        return (None,) * layers
    if not family.window_needs_flag:
        return (window,) * layers
    if not config.get("use_sliding_window"):
        return (None,) * layers
    first = config.get("max_window_layers", layers)
    return tuple(window if layer >= first else None for layer in range(layers))
