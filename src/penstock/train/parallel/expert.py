"""Expert parallel: each rank holds some whole experts, and tokens travel to the experts they chose.

On `World.experts`, the ranks of "expert" together hold one set of experts. The ranks of
"expert_shard" hold the same experts, or with FSDP2 parts of them. All other weights (router, shared
experts, attention) are laid out as in any other model.

Tokens travel by two all-to-alls, there and back, of exactly the rows that were chosen: nothing is
padded or dropped. The host must know the row counts before it can start them, so it waits for the
device once a layer. That is the price of dropless experts on several ranks.

Shape suffixes as in `model/moe.py`; g ranks of the group, m rows that arrive from n rows sent.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from penstock.model.experts import Experts
from penstock.model.moe import MoE
from penstock.model.rows import ReorderRows, inverse_order
from penstock.train.world.world import World

# Ranks of a replica along these hold the same layers, and each has tokens of its own.
SAME_LAYERS = ("shard", "context", "tensor")


def apply_expert_parallel(model: nn.Module, world: World) -> None:
    """Keep this rank's experts of every layer and send tokens to the others, in place."""
    if world.experts is None:
        return
    mesh, placements = world.experts["expert_shard", "expert"], [Replicate(), Shard(0)]
    if world.sharded:  # FSDP2 cuts along "expert_shard" by itself, and wants to find the rest only
        mesh, placements = world.experts["expert"], [Shard(0)]
    for moe in moe_layers([model]):
        for name, param in list(moe.experts.named_parameters()):
            part = distribute_tensor(param.detach(), mesh, placements, src_data_rank=None)
            setattr(moe.experts, name, nn.Parameter(part, param.requires_grad))
        if mesh["expert"].size() > 1:
            moe.run_experts = RunExpertsAcrossRanks(mesh.get_group("expert"))


def expert_shard_placement(param: nn.Parameter, ways: int) -> Shard | None:
    """Return how FSDP2 cuts a stack of experts; None is its usual way, along the first dimension.

    That gives whole experts if they divide evenly. If not, some ranks would hold nothing and all
    would gather room for it: then it cuts the rows of every matrix.
    """
    if param.dim() != 3:
        return None
    held = param.to_local().shape if isinstance(param, DTensor) else param.shape
    return Shard(1) if held[0] % ways and held[1] % ways == 0 else None


class RunExpertsAcrossRanks:
    """A call of experts on other ranks: rows go to the ranks of their experts, and the results come
    back.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    @torch._disable_dynamo
    def __call__(self, experts: Experts, rows_nd: Tensor, end_e: Tensor) -> Tensor:
        sent_ge = end_e.diff(prepend=end_e.new_zeros(1)).view(self.group.size(), -1)
        got_ge = torch.empty_like(sent_ge)
        dist.all_to_all_single(got_ge, sent_ge, group=self.group)
        sent, got = torch.stack((sent_ge.sum(1), got_ge.sum(1))).tolist()
        came_md = AllToAllRows.apply(rows_nd, sent, got, self.group)
        # They come by rank and in that by expert; experts want theirs together.
        each_e = torch.arange(got_ge.shape[1], device=end_e.device)
        expert_m = each_e.repeat(len(got)).repeat_interleave(got_ge.flatten(), output_size=sum(got))
        order_m = expert_m.argsort(stable=True)
        back_m = inverse_order(order_m)
        here_e = got_ge.sum(0).cumsum(0, dtype=torch.int32)
        made_md = experts(ReorderRows.apply(came_md, order_m, back_m), here_e)
        return AllToAllRows.apply(
            ReorderRows.apply(made_md, back_m, order_m), got, sent, self.group
        )


class AllToAllRows(torch.autograd.Function):
    """An all-to-all with given row counts; gradients go the opposite way."""

    @staticmethod
    def forward(
        ctx: Any, rows_nd: Tensor, sent: list[int], got: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.sent, ctx.got, ctx.group = sent, got, group
        return _all_to_all(rows_nd, sent, got, group)

    @staticmethod
    def backward(ctx: Any, grad_md: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(grad_md, ctx.got, ctx.sent, ctx.group), None, None, None


def _all_to_all(
    rows_nd: Tensor, sent: list[int], got: list[int], group: dist.ProcessGroup
) -> Tensor:
    came_md = rows_nd.new_empty(sum(got), rows_nd.shape[1])
    dist.all_to_all_single(came_md, rows_nd.contiguous(), got, sent, group=group)
    return came_md


@dataclass
class ExpertBalancer:
    """An update of `MoE.balance` after each step, so that experts get equally many tokens.

    Experts with less than the mean load get a better score, by `rate`; the others a worse one.
    Loads are integers of the whole global batch, so the result is the same in every layout. They
    are exchanged before the step is voted on: after a vote the weights change on all ranks or on
    none, and no rank waits for another.
    """

    mixtures: list[MoE]
    world_sum: Callable[[Tensor], Tensor]  # over all ranks that hold these layers
    rate: float
    _load_le: Tensor | None = None

    def exchange(self) -> None:
        """Sum the loads over all ranks."""
        if self.mixtures:
            self._load_le = self.world_sum(torch.stack([moe.load for moe in self.mixtures]))

    @torch.no_grad()
    def apply(self) -> None:
        """Change the balances by the loads of the last exchange, and set the loads to zero."""
        load_le, self._load_le = self._load_le, None
        if load_le is None:
            return
        short_le = load_le.sum(1, keepdim=True) - load_le * load_le.shape[1]
        for moe, short_e in zip(self.mixtures, short_le, strict=True):
            moe.balance += self.rate * short_e.sign()
            moe.load.zero_()


def build_balancer(modules: list[nn.Module], world: World, rate: float) -> ExpertBalancer | None:
    """Return the balancer of a model's experts; None without experts or with a frozen router."""
    trained = [moe for moe in moe_layers(modules) if moe.router.weight.requires_grad]
    return ExpertBalancer(trained, sum_over_same_layers(world), rate) if rate and trained else None


def moe_layers(modules: Iterable[nn.Module]) -> list[MoE]:
    """Return all mixtures of experts in the modules."""
    return [found for module in modules for found in module.modules() if isinstance(found, MoE)]


def sum_over_same_layers(world: World) -> Callable[[Tensor], Tensor]:
    """Return a function that sums a tensor, in place, over all ranks that hold the same layers as
    this one.
    """

    def add(values: Tensor) -> Tensor:
        for dimension in SAME_LAYERS:
            if world.size(dimension) > 1:
                dist.all_reduce(values, group=world.group(dimension))
        return world.sum_replicas_(values)

    return add
