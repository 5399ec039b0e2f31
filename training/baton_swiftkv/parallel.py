"""One process or several: `torchrun` starts one for each GPU, and FSDP spreads the weights."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from baton_swiftkv.shape import SUFFIX


class Processes:
    """Rank, number and device of this process; a context manager, for what has to be closed."""

    def __init__(self, device=None):
        self.rank = int(os.environ.get("RANK", 0))
        self.count = int(os.environ.get("WORLD_SIZE", 1))
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda":
            device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
            torch.cuda.set_device(device)
        self.device = torch.device(device)

    def __enter__(self):
        if self.count > 1:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        return self

    def __exit__(self, *_):
        if self.count > 1:
            dist.destroy_process_group()

    @property
    def first(self):
        return self.rank == 0

    def wait(self):
        if self.count > 1:
            dist.barrier()

    def sum(self, *values):
        """Sums over all processes, as floats."""
        total = torch.tensor([float(value) for value in values], dtype=torch.float64)
        if self.count > 1:
            total = total.to(self.device)
            dist.all_reduce(total)
        return total.tolist()

    def shard(self, decoder):
        """Spreads a decoder's weights: a unit for each trained module, which is kept in another type and may
        be used outside its layer, one for each layer, and one for the rest. Gradients are summed in fp32."""
        if self.count == 1:
            return
        policy = MixedPrecisionPolicy(param_dtype=decoder.shape.dtype, reduce_dtype=torch.float32,
                                      cast_forward_inputs=False)
        mesh = dist.device_mesh.init_device_mesh(self.device.type, (self.count,))
        trained = [module for name, module in decoder.named_modules() if name.endswith(SUFFIX)]
        for module in (*trained, *decoder.model.layers, decoder):
            fully_shard(module, mesh=mesh, mp_policy=policy)
