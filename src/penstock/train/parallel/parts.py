"""The parameters that this rank holds and their gradients, by names that no layout changes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from penstock.errors import PenstockError
from penstock.train.world.world import World

SHOWN = 6  # parameters that are named when they get no gradient
Grads = dict[str, Tensor]  # local parts, by the name of the parameter


@dataclass
class ModelParts:
    """The modules of the model that this rank holds: one, or one for each of its pipeline pieces.

    `copies` names parameters that another rank also holds and is responsible for: they are trained
    here, but neither counted in the gradient norm nor saved.

    `keeps_frozen` is true for the user's own module. The frozen weights of an open model are in its
    files; those of the user's code may come from anywhere, so checkpoints must keep them.

    `stored_names` are the names in the files of an open model, for an export; by our names, and
    only those that differ.
    """

    modules: list[nn.Module]
    copies: set[str] = field(default_factory=set)
    keeps_frozen: bool = False
    stored_names: dict[str, str] = field(default_factory=dict)  # where an open model's files differ

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for module in self.modules:
            yield from module.named_parameters()

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def trained_names(self) -> list[list[str]]:
        """Return the names of the parameters that are trained, by module."""
        return [
            [name for name, p in module.named_parameters() if p.requires_grad]
            for module in self.modules
        ]

    def frozen(self) -> dict[str, nn.Parameter]:
        """Return the frozen parameters that belong to the run's state."""
        if not self.keeps_frozen:
            return {}
        return {name: p for name, p in self.named_parameters() if not p.requires_grad}

    def named_buffers(self) -> dict[str, Tensor]:
        """Return the buffers that belong to the model's state."""
        found: dict[str, Tensor] = {}
        for module in self.modules:
            kept = module.state_dict().keys()
            found |= {name: b for name, b in module.named_buffers() if name in kept}
        return found

    def buffers(self) -> list[Tensor]:
        return [buffer for module in self.modules for buffer in module.buffers()]

    @property
    def single_module(self) -> nn.Module:
        """Return the only module of a rank without pipeline."""
        (module,) = self.modules
        return module

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put the modules into evaluation mode, and back into training mode afterwards."""
        self.train(False)
        try:
            yield
        finally:
            self.train()

    def train(self, mode: bool = True) -> None:
        """Put the modules into training mode, or into evaluation mode.

        FSDP2 keeps some weights gathered for a backward pass, which never comes after an
        evaluation. Training mode drops them: while they exist, they stand in the place of the
        shards.
        """
        for module in self.modules:
            module.train(mode)
            for part in module.modules():
                if mode and isinstance(part, FSDPModule):
                    part.reshard()


def holder_count(param: Tensor, world: World) -> int:
    """Return how many of the ranks that step together hold the same element of a parameter."""
    ranks = world.ranks_together // world.size("pipeline")
    if isinstance(param, DTensor):
        mesh = param.device_mesh
        for dimension, placement in enumerate(param.placements):
            if not isinstance(placement, Replicate):
                ranks //= mesh.size(dimension)
    return ranks


def local_tensor(tensor: Tensor | None) -> Tensor:
    """Return this rank's part of a tensor."""
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_box(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return which part of the whole tensor is on this rank: its first index and its size along
    each dimension. A number counts as one row.
    """
    if not isinstance(tensor, DTensor):
        size = tuple(tensor.shape) or (1,)
        return (0,) * len(size), size
    first, left = [0] * tensor.dim(), list(tensor.shape)
    for axis, dim in cut_axes(tensor):
        place = tensor.device_mesh.get_local_rank(axis)
        sizes = chunk_sizes(left[dim], tensor.device_mesh.size(axis))
        first[dim] += sum(sizes[:place])
        left[dim] = sizes[place]
    assert tuple(left) == tensor.to_local().shape, (tensor.placements, left)
    return tuple(first) or (0,), tuple(left) or (1,)


def cut_axes(tensor: DTensor) -> list[tuple[int, int]]:
    """Return the axes of the mesh that a tensor is cut along, each with the dimension that is cut,
    in the order of the cuts.

    DTensor cuts along the outer axis of the mesh first. Where it says strided it was last: FSDP2 is
    the outer axis and cuts what tensor parallelism has cut before.
    """
    found = [
        (isinstance(placement, _StridedShard), axis, placement.dim)
        for axis, placement in enumerate(tensor.placements)
        if isinstance(placement, Shard | _StridedShard)
    ]
    return [(axis, dim) for _, axis, dim in sorted(found)]


def chunk_sizes(size: int, ranks: int) -> tuple[int, ...]:
    """Return the sizes that `torch.chunk` cuts, and 0 for the ranks that it leaves out."""
    each = -(-size // ranks)
    return tuple(max(0, min(each, size - each * rank)) for rank in range(ranks))


def sharded_like(param: Tensor, values: Tensor) -> Tensor:
    """Return `values`, one for each local element of `param`, as a tensor sharded like it."""
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
def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole tensor; all ranks that hold a part must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def no_gradient_message(names: Sequence[str]) -> str:
    """Say which parameters got no gradient and what to do: a step needs all of them."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    which = f"{', '.join(names[:SHOWN])}{more}"
    return f"no gradient reached {which}; use it in forward, or set requires_grad=False"


class Gradients:
    """The gradients of a step, summed over microbatches and laid out as their parameters are.

    With `wide`, gradients of 16-bit backward passes are summed in fp32.
    """

    def __init__(self, params: Mapping[str, nn.Parameter], wide: bool = False) -> None:
        self.params = params
        self._sums: dict[str, Tensor] = {}
        if wide:
            for name, param in params.items():
                if param.element_size() < 4:
                    param.register_post_accumulate_grad_hook(self._adder(name))

    def _adder(self, name: str):
        def add(param: Tensor) -> None:
            grad, param.grad = param.grad, None
            assert grad is not None
            if name in self._sums:
                self._sums[name] += grad
            else:
                self._sums[name] = grad.float()

        return add

    @torch.no_grad()
    def collect(self) -> Grads:
        """Return all gradients, each laid out as its parameter: partial sums over ranks are added
        up.
        """
        grads = {name: self._sums.get(name, param.grad) for name, param in self.params.items()}
        missing = [name for name, grad in grads.items() if grad is None]
        if missing:
            raise PenstockError(f"model: {no_gradient_message(missing)}")
        return {name: self._settled(name, grad) for name, grad in grads.items() if grad is not None}

    def _settled(self, name: str, grad: Tensor) -> Tensor:
        param = self.params[name]
        if isinstance(grad, DTensor) and grad.placements != param.placements:
            assert isinstance(param, DTensor)
            grad = grad.redistribute(placements=param.placements)
        return local_tensor(grad)

    def clear(self) -> None:
        """Drop all gradients."""
        self._sums = {}
        for param in self.params.values():
            param.grad = None
