"""Muon: matrices of the layers get orthogonal updates, all other parameters use AdamW.

The update of a matrix is its momentum with every singular value brought near 1, so that a few
directions of the gradient do not drown the others. It is scaled so that an element moves about as
much as under AdamW: learning rate and weight decay mean the same for both. Sources and figures are
in docs/design/optimizers.md. Suffixes: n matrices, r rows, c columns.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from penstock.errors import PenstockError
from penstock.run.schema.train import TrainSection
from penstock.train.optim.adamw import AdamW, at_least_fp32, round_stochastically
from penstock.train.optim.owners import MatrixCut, map_whole_matrices, matrix_cuts
from penstock.train.parallel.parts import Grads, local_tensor, sharded_like

# x → ax + bx³ + cx⁵ on singular values: steep at 0, so that five rounds lift small ones to about 1.
QUINTIC = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
LEAST_NORM = 1e-7  # a matrix that got no gradient (an expert without tokens) has no update either
RMS = 0.2  # of the elements of an update, before the rate: what is usual under AdamW
# Whole matrices that a rank works on at once: bounds the memory of an update beside the state.
STACK_BYTES = 256 << 20


class Muon:
    """Muon with AdamW's weight decay. For a 16-bit parameter the master is what is updated."""

    def __init__(
        self,
        params: Mapping[str, nn.Parameter],
        masters: Mapping[str, Tensor],
        train: TrainSection,
    ) -> None:
        self.train = train
        refuse_no_matrix(params)
        self.params = {name: p for name, p in params.items() if is_layer_matrix(name, p)}
        self.rest = AdamW({n: p for n, p in params.items() if n not in self.params}, masters, train)
        self.moments = {n: {"master": masters[n]} if n in masters else {} for n in self.params}
        for name, param in self.params.items():
            weight = self.weight(name)
            dtype = torch.bfloat16 if train.states == "bf16" else at_least_fp32(weight)
            self.moments[name]["momentum"] = sharded_like(
                param, torch.zeros_like(weight, dtype=dtype)
            )
        self.moments |= self.rest.moments
        self.stacks = matrix_stacks(self.params)

    @property
    def updates(self) -> int:
        return self.rest.updates

    @updates.setter
    def updates(self, count: int) -> None:
        self.rest.updates = count

    def warm_up(self, grads: Grads) -> None:
        self.rest.warm_up({name: grads[name] for name in self.rest.params})

    def prepare(self, grads: Grads) -> None:
        self.rest.prepare({name: grads[name] for name in self.rest.params})

    @torch.no_grad()
    def step(self, grads: Grads, rate: float, scale: float) -> None:
        self.rest.step({name: grads[name] for name in self.rest.params}, rate, scale)
        for stack in self.stacks:
            aims = [self._nesterov(name, grads[name], scale) for name in stack.names]
            done_nrc = map_whole_matrices(orthogonalize, torch.cat(aims), stack.cuts, stack.first)
            updates = done_nrc.split([len(aim) for aim in aims])
            for name, update_nrc in zip(stack.names, updates, strict=True):
                self._apply_update(name, update_nrc, rate)

    def _nesterov(self, name: str, grad: Tensor, scale: float) -> Tensor:
        """Return Nesterov's momentum as a stack, in the format of the matrix work."""
        momentum, dtype = (
            local_tensor(self.moments[name]["momentum"]),
            at_least_fp32(self.weight(name)),
        )
        grad = grad.to(dtype) * scale
        mean = momentum.to(dtype).lerp_(grad, 1 - self.train.muon_momentum)
        momentum.copy_(mean)
        aim = grad.lerp_(mean, self.train.muon_momentum)
        if aim.is_cuda and dtype == torch.float32:
            aim = aim.bfloat16()
        return aim if aim.dim() == 3 else aim.unsqueeze(0)

    def _apply_update(self, name: str, update_nrc: Tensor, rate: float) -> None:
        param, weight = self.params[name], self.weight(name)
        moved = weight.to(at_least_fp32(weight))  # the weight itself, unless it is bf16
        moved.mul_(1 - rate * self.train.weight_decay)
        longer = max(param.shape[-2:])
        moved.add_(update_nrc.view_as(moved), alpha=-rate * RMS * longer**0.5)
        if moved is not weight:
            weight.copy_(round_stochastically(moved, f"{name}:{self.updates}"))
        if "master" in self.moments[name]:
            local_tensor(param.detach()).copy_(weight)

    def weight(self, name: str) -> Tensor:
        """Return the tensor that is updated: the master, or the parameter itself."""
        return local_tensor(self.moments[name].get("master", self.params[name].detach()))

    @torch.no_grad()
    def copy_masters(self) -> None:
        """Copy the masters into the parameters, after they have been loaded."""
        self.rest.copy_masters()
        for name, param in self.params.items():
            if "master" in self.moments[name]:
                local_tensor(param.detach()).copy_(self.weight(name))


def refuse_no_matrix(params: Mapping[str, Tensor]) -> None:
    """Refuse a model that has no matrix for Muon to update."""
    if not any(is_layer_matrix(name, param) or is_adapter(name) for name, param in params.items()):
        raise PenstockError(
            'train.optimizer = "muon": the model has no matrix for it, which is one in a list '
            f"of layers, such as layers.0.up.weight; found {', '.join(list(params)[:3])}; "
            'write optimizer = "adamw"'
        )


def is_layer_matrix(name: str, param: Tensor) -> bool:
    """Return whether this is a matrix of a layer, or a layer's experts; layers are in a list,
    `layers.7`.

    Not a router: its rows are classes, as a head's are. Not an adapter: its two matrices are one
    product, and making each of them orthogonal does not make the product so.
    """
    within = name.split(".")[:-1]
    if not any(part.isdigit() for part in within) or within[-1] == "router" or is_adapter(name):
        return False
    return param.dim() == (3 if within[-1] == "experts" else 2)


def is_adapter(name: str) -> bool:
    return name.rpartition(".")[2].startswith("adapter_")


@dataclass(frozen=True)
class MatrixStack:
    """Parameters of one shape and layout, whose matrices are worked on at once."""

    names: list[str]
    cuts: list[MatrixCut]
    first: int  # place of the rank that gets the first of its matrices


def matrix_stacks(params: Mapping[str, Tensor]) -> list[MatrixStack]:
    """Group parameters into stacks, large matrices first; each stack begins with the rank after the
    last one's.
    """
    alike: dict[object, list[str]] = {}
    for name, param in params.items():
        where = (param.device_mesh, param.placements) if isinstance(param, DTensor) else None
        alike.setdefault((param.shape, param.dtype, where), []).append(name)
    found: list[MatrixStack] = []
    first = 0
    for names in sorted(alike.values(), key=lambda names: -params[names[0]].numel()):
        param = params[names[0]]
        made_by = matrix_cuts(param)
        owners = math.prod(len(cut.sizes) for cut in made_by)
        # As many as all ranks hold together: ranks that share a cut must all count the same.
        matrices = len(param) if param.dim() == 3 else 1
        each = math.prod(param.shape[-2:]) * param.element_size() * matrices
        together = max(1, STACK_BYTES // each) * owners
        for start in range(0, len(names), together):
            some = names[start : start + together]
            found.append(MatrixStack(some, made_by, first))
            first += len(some) * matrices
    return found


def orthogonalize(x_nrc: Tensor) -> Tensor:
    """Bring singular values to about 0.7 to 1.2 and keep the singular vectors (Newton-Schulz)."""
    a, b, c = QUINTIC
    tall = x_nrc.shape[-2] > x_nrc.shape[-1]
    x_nrc = x_nrc.mT if tall else x_nrc  # the product below is then the smaller of the two
    x_nrc = x_nrc / x_nrc.norm(dim=(-2, -1), keepdim=True).clamp(min=LEAST_NORM)
    for _ in range(ROUNDS):
        gram_nrr = x_nrc @ x_nrc.mT
        factor_nrr = torch.baddbmm(gram_nrr, gram_nrr, gram_nrr, beta=b, alpha=c)
        x_nrc = torch.baddbmm(x_nrc, factor_nrr, x_nrc, beta=a)
    return x_nrc.mT if tall else x_nrc
