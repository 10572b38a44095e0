"""Inside a replica: FSDP2 over the shard dimension, and the precision of compute."""

from collections.abc import Iterator
from functools import partial

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from penstock.model.decoder import Decoder
from penstock.train.parallel.expert import expert_shard_placement, moe_layers
from penstock.train.parallel.precision import COMPUTE, MASTER
from penstock.train.world.world import World


def apply_fsdp(model: nn.Module, world: World, precision: str) -> None:
    """Shard the model in place: each element of its layer lists is a unit, the rest is the root's.

    Master weights and the reduction stay in `MASTER[precision]`; matmuls are `COMPUTE[precision]`.
    """
    policy = MixedPrecisionPolicy(COMPUTE[precision], MASTER[precision])

    def cut(module: nn.Module, mesh: DeviceMesh) -> None:
        along = partial(expert_shard_placement, ways=mesh.size())
        fully_shard(module, mesh=mesh, mp_policy=policy, shard_placement_fn=along)

    if world.experts is not None:  # before the layers that hold them, and by ranks of their own
        for moe in moe_layers([model]):
            cut(moe.experts, world.experts["expert_shard"])
    for module in [*dict.fromkeys(fsdp_units(model)), model]:
        cut(module, world.fsdp_mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss is already divided by the global token count, so gradients are summed, never
            # averaged; plain SUM because gloo has no pre-multiplied sum.
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def fsdp_units(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the elements of the outermost layer lists; nested lists are opened, layers are not."""
    if isinstance(module, Decoder):
        yield from module.layers.values()
        return
    for child in module.children():
        if not isinstance(child, nn.ModuleList) or any(
            isinstance(element, nn.ModuleList) for element in child
        ):
            yield from fsdp_units(child)
        else:
            yield from child
