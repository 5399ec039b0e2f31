"""Weights into decoders, whole or sharded over GPUs."""

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from baton_swiftkv.decoder import Decoder
from baton_swiftkv.errors import UserError
from baton_swiftkv.shape import SUFFIX
from baton_swiftkv.tensors import TensorFiles


def load_decoder(shape, directory, teacher=None, device="cpu", trained_dtype=None, shard=None):
    """A decoder with the weights of `directory`; those of its original layers come from `teacher`,
    where one is given. `shard` is called with the empty decoder, to spread it over GPUs."""
    decoder = empty_decoder(shape, device, trained_dtype, shard)
    own = TensorFiles(directory)
    originals = TensorFiles(teacher) if teacher else own
    if teacher and shape.rewired:
        check_same_base(own, originals, shape)
    for name, parameter in decoder.named_parameters():
        source = own if SUFFIX in name else originals
        tensor = source[name]
        if tensor.shape != parameter.shape:
            raise UserError(f"{source.directory}: {name} has shape {list(tensor.shape)}; config.json makes "
                            f"it {list(parameter.shape)}")
        fill(parameter, tensor)
    return decoder


def empty_decoder(shape, device="cpu", trained_dtype=None, shard=None):
    """A decoder whose weights are memory of `device` that nothing was written to."""
    with torch.device("meta"):
        decoder = Decoder(shape, trained_dtype)
    decoder.requires_grad_(False)
    if shard is not None:
        shard(decoder)
    return decoder.to_empty(device=device)


@torch.no_grad()
def fill(parameter, tensor):
    """Copies `tensor`, or this process' part of it."""
    if isinstance(parameter, DTensor):
        whole = tensor.to(device=parameter.device, dtype=parameter.dtype)
        part = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(part.to_local())
    else:
        parameter.copy_(tensor)


def check_same_base(own, teacher, shape):
    """UserError if a SwiftKV directory was not made from `teacher`: its frozen norms tell."""
    names = [f"model.layers.{layer}.{norm}.weight" for layer in range(shape.layers)
             for norm in ("input_layernorm", "post_attention_layernorm")]
    for name in names + ["model.norm.weight"]:
        if not torch.equal(own[name], teacher[name]):
            raise UserError(f"{own.directory}: {name} is not that of {teacher.directory}; give as teacher "
                            f"the model that the directory was converted from")

