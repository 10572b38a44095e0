"""Inside a replica: FSDP2 over the shard dimension, and the precision of compute."""

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from penstock.train.world import World

MASTER = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.float32}
COMPUTE = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


def shard(model: nn.Module, world: World, precision: str) -> None:
    """Shard the model in place: each element of its layer lists is a unit, the rest is the root's.

    Master weights and the reduction stay in `MASTER[precision]`; matmuls are `COMPUTE[precision]`.
    """
    policy = MixedPrecisionPolicy(COMPUTE[precision], MASTER[precision])
    mesh = world.mesh["shard"]
    units = [
        unit for child in model.modules() if isinstance(child, nn.ModuleList) for unit in child
    ]
    for module in [*units, model]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss is already divided by the global token count, so gradients are summed, never
            # averaged; plain SUM because gloo has no pre-multiplied sum.
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
