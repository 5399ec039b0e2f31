"""The state of a run on disk: `OUT/checkpoints/step-N.pt`, the newest whole one counts."""

import os
import pathlib

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict)
from torch.distributed.tensor import DTensor

from baton_swiftkv.errors import UserError
from baton_swiftkv.loading import fill

KEPT = 2
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_FROM_FIRST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def save(folder, step, decoder, optimizer, facts, processes):
    """Trained weights, optimizer, random state and `facts`. Every process calls this; the first writes."""
    state = {
        "step": step,
        "facts": facts,
        "weights": trained_weights(decoder),
        "optimizer": get_optimizer_state_dict(decoder, optimizer, options=_WHOLE),
        "random": torch.get_rng_state(),
        "cuda_random": torch.cuda.get_rng_state() if processes.device.type == "cuda" else None,
    }
    if processes.first:
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"step-{step}.tmp"
        torch.save(state, temporary)
        os.replace(temporary, folder / f"step-{step}.pt")
        for path in _found(folder)[:-KEPT]:
            path.unlink()
    processes.wait()


def restore(folder, decoder, optimizer, facts, processes):
    """The step to go on from, 0 without a checkpoint. UserError if the run was started otherwise."""
    found = _found(pathlib.Path(folder))
    if not found:
        return 0
    state = torch.load(found[-1], map_location="cpu", weights_only=True)
    changed = [name for name in facts if facts[name] != state["facts"].get(name)]
    if changed:
        raise UserError(f"{found[-1]}: was made with another {', '.join(changed)}; give the same again, or "
                        f"another --out")
    parameters = dict(decoder.named_parameters())
    for name, tensor in state["weights"].items():
        fill(parameters[name], tensor)
    options = _FROM_FIRST if processes.count > 1 else StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(decoder, optimizer, state["optimizer"], options=options)
    torch.set_rng_state(state["random"])
    if state["cuda_random"] is not None and processes.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_random"])
    return state["step"]


def trained_weights(decoder):
    """{name: whole tensor on the CPU} of what is trained. Every process has to call this."""
    weights = {}
    for name, parameter in decoder.named_parameters():
        if parameter.requires_grad:
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            weights[name] = whole.detach().cpu().clone()
    return weights


def _found(folder):
    return sorted(folder.glob("step-*.pt"), key=lambda path: int(path.stem.removeprefix("step-")))
