"""`baton-swiftkv convert`: a checkpoint rewired, in the published layout."""

import dataclasses

import torch

from baton_swiftkv.decoder import Decoder, trained_names
from baton_swiftkv.errors import UserError
from baton_swiftkv.loading import load_decoder
from baton_swiftkv.modes import dense_logits
from baton_swiftkv.shape import SUFFIX, read_config, read_shape
from baton_swiftkv.tensors import TensorFiles, save_with_shard

IDENTITY_TOLERANCE = 1e-5  # of logits in fp32


def convert(source, full_layers, group_size, out, link=False):
    """Writes the rewired model to `out` and returns its shape.

    Queries are copied, keys and values are means over the group, `norm_swiftkv` is the input norm of the
    first upper layer. With S = L - 1 the result computes what the source does, which is checked.
    """
    plain = read_shape(source)
    if plain.rewired:
        raise UserError(f"{source}: is a SwiftKV model already")
    shape = plain.with_swiftkv(full_layers, group_size)
    files = TensorFiles(source)
    save_with_shard(source, out, swiftkv_config(read_config(source), shape), base_names(plain),
                    initial_tensors(shape, files), link)
    if full_layers == shape.layers - 1:
        difference = identity_difference(out)
        if difference > IDENTITY_TOLERANCE:
            raise UserError(f"{out}: logits differ from the source's by {difference:.2e} where they have "
                            f"to be equal (S = L - 1); the model has parts that are not known here")
    return shape


def initial_tensors(shape, files):
    """The `*_swiftkv` tensors before any training, in the source's type."""
    with torch.device("meta"):
        names = trained_names(Decoder(shape))
    return {name: _initial(name, shape, files) for name in names}


def _initial(name, shape, files):
    if name == "model.norm_swiftkv.weight":
        return files[f"model.layers.{shape.full_layers}.input_layernorm.weight"]
    original = name.replace(SUFFIX, "")
    if ".q_" in name:
        return files[original]
    leader = int(name.split(".")[2])
    members = range(leader, leader + shape.group_size)
    group = [files[original.replace(f".{leader}.", f".{member}.", 1)] for member in members]
    return torch.stack([tensor.float() for tensor in group]).mean(0).to(group[0].dtype)


def base_names(plain):
    """Names of the source's tensors that the layout keeps: all, upper queries, keys and values too."""
    with torch.device("meta"):
        return {name for name, _ in Decoder(plain).named_parameters()}


def swiftkv_config(config, shape):
    """The source's config.json with the fields that make it a SwiftKV model's."""
    return config | {
        "architectures": [shape.family.class_name],
        "model_type": shape.family.model_type + SUFFIX,
        "num_key_value_layers": shape.full_layers,
        "key_value_group_size": shape.group_size,
        "swiftkv": True,
    }


@torch.no_grad()
def identity_difference(directory, tokens=64, seed=0):
    """Largest difference of the two modes' logits on random tokens, in fp32 on the CPU."""
    shape = dataclasses.replace(read_shape(directory), dtype=torch.float32)
    decoder = load_decoder(shape, directory)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(shape.vocabulary, (tokens,), generator=generator)
    plain, rewired = (dense_logits(decoder, ids, mode) for mode in (False, True))
    return (plain - rewired).abs().max().item()
