"""The pieces of the model that this rank holds, under names that are the same in every layout."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from penstock.train.world.world import World


@dataclass
class Parts:
    """One module, or one for each of this rank's stages of a pipeline.

    `copies` names parameters that another rank holds too and answers for: they are trained here,
    but neither counted in the norm of the gradient nor saved.

    `keeps_frozen` is said of the user's own module. What an open model froze is in its files; what
    their code froze it may have drawn from anywhere, so that it is the checkpoints' to keep.
    """

    modules: list[nn.Module]
    copies: set[str] = field(default_factory=set)
    keeps_frozen: bool = False

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for module in self.modules:
            yield from module.named_parameters()

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def frozen(self) -> dict[str, nn.Parameter]:
        """Those that belong to the run's state although it does not change them."""
        if not self.keeps_frozen:
            return {}
        return {name: p for name, p in self.named_parameters() if not p.requires_grad}

    def named_buffers(self) -> dict[str, Tensor]:
        """Those that belong to the model's state."""
        found: dict[str, Tensor] = {}
        for module in self.modules:
            kept = module.state_dict().keys()
            found |= {name: b for name, b in module.named_buffers() if name in kept}
        return found

    def buffers(self) -> list[Tensor]:
        return [buffer for module in self.modules for buffer in module.buffers()]

    @property
    def whole(self) -> nn.Module:
        """The one module of a rank that is no part of a pipeline."""
        (module,) = self.modules
        return module

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Out of training for a while, however it ends."""
        self.train(False)
        try:
            yield
        finally:
            self.train()

    def train(self, mode: bool = True) -> None:
        """Into training, or out of it for a look at the model.

        FSDP2 keeps some weights gathered for a backward pass, which never comes after a mere look.
        They are given up here: as long as they are there, they stand in the place of the shards.
        """
        for module in self.modules:
            module.train(mode)
            for part in module.modules():
                if mode and isinstance(part, FSDPModule):
                    part.reshard()


def holders(param: Tensor, world: World) -> int:
    """How many ranks hold the same element of it."""
    ranks = world.ranks // world.size("pipeline")
    if isinstance(param, DTensor):
        mesh = param.device_mesh
        for dimension, placement in enumerate(param.placements):
            if not isinstance(placement, Replicate):
                ranks //= mesh.size(dimension)
    return ranks


def local(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def like(param: Tensor, values: Tensor) -> Tensor:
    """`values`, one for each local element of `param`, laid out over the ranks as it is."""
    if not isinstance(param, DTensor):
        return values
    return DTensor.from_local(
        values,
        param.device_mesh,
        param.placements,
        run_check=False,
        shape=param.shape,
        stride=param.stride(),
    )


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """All of it on every rank that holds a part; those ranks must all ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
