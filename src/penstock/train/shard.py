"""Inside a replica: FSDP2 over the shard dimension, and the precision of compute."""

from collections.abc import Iterator

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
    for module in [*dict.fromkeys(units(model)), model]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss is already divided by the global token count, so gradients are summed, never
            # averaged; plain SUM because gloo has no pre-multiplied sum.
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def units(module: nn.Module) -> Iterator[nn.Module]:
    """The elements of the outermost layer lists; lists of lists are opened, layers are not."""
    for child in module.children():
        if not isinstance(child, nn.ModuleList) or any(
            isinstance(element, nn.ModuleList) for element in child
        ):
            yield from units(child)
        else:
            yield from child
