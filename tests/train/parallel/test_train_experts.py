"""The balance of experts: it evens a skewed router out, by the loads of all ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import real_ranks
from penstock.catalog.shapes import ModelShape
from penstock.model.moe import MoE
from penstock.train.parallel.expert import ExpertBalancer, moe_layers

SHAPE = ModelShape(
    layers=1,
    hidden=16,
    heads=4,
    kv_heads=2,
    ffn=24,
    vocab=50,
    experts=8,
    experts_active=2,
    expert_ffn=8,
)


def alone(values: Tensor) -> Tensor:
    return values


def skewed() -> tuple[MoE, Tensor]:
    """Tokens with a common part, which the router takes for three of its experts."""
    moe = MoE(SHAPE).double()
    draw = torch.Generator().manual_seed(0)
    x_bsd = torch.randn(4, 64, SHAPE.hidden, dtype=torch.float64, generator=draw)
    x_bsd[..., 0] = 1.0
    with torch.no_grad():
        moe.router.weight.normal_(0.0, 0.2, generator=draw)
        moe.router.weight[:3, 0] += 2.0
    return moe, x_bsd


def spread(moe: MoE, x_bsd: Tensor) -> float:
    """Load of the busiest expert against the mean."""
    moe.load.zero_()
    moe(x_bsd).sum().backward()
    return float(moe.load.max() / moe.load.double().mean())


def balance(mixtures: list[MoE], world_sum: Callable[[Tensor], Tensor], rate: float) -> None:
    balancer = ExpertBalancer(mixtures, world_sum, rate)
    balancer.exchange()
    balancer.apply()


def test_a_skewed_router_is_evened_out() -> None:
    moe, x_bsd = skewed()
    before = spread(moe, x_bsd)
    assert before > 2
    for _ in range(300):
        balance([moe], alone, 2e-3)
        after = spread(moe, x_bsd)
    assert after < 1.15


def test_one_step_moves_each_expert_by_the_rate_towards_the_mean() -> None:
    moe = MoE(SHAPE)
    moe.load.copy_(torch.tensor([10, 2, 6, 6, 6, 6, 12, 0]))
    balance([moe], alone, 0.5)
    assert moe.balance.tolist() == [-0.5, 0.5, 0.0, 0.0, 0.0, 0.0, -0.5, 0.5]
    assert not moe.load.any()
    balance([moe], alone, 0.5)  # nothing was counted: nothing moves
    assert moe.balance.tolist() == [-0.5, 0.5, 0.0, 0.0, 0.0, 0.0, -0.5, 0.5]


def test_loads_are_those_of_all_ranks_and_each_layer_has_its_own() -> None:
    one, other = MoE(SHAPE), MoE(SHAPE)
    one.load[0], other.load[1] = 8, 8
    elsewhere = torch.zeros(2, 8, dtype=torch.int64)
    elsewhere[0] = torch.tensor([0, 8, 8, 8, 8, 8, 4, 12])
    balance([one, other], lambda load_le: load_le + elsewhere, 1.0)
    assert one.balance.tolist() == [0, 0, 0, 0, 0, 0, 1, -1]
    assert other.balance.tolist() == [1, -1, 1, 1, 1, 1, 1, 1]


def test_a_model_without_experts_has_nothing_to_balance() -> None:
    def never(values: Tensor) -> Tensor:
        raise AssertionError("ranks of dense stages would wait for nobody")

    assert moe_layers([torch.nn.Linear(2, 2)]) == []
    balance([], never, 1.0)


def travels(cases: list[list[list[int]]]) -> list[tuple[list[float], list[float], list[float]]]:
    """Rows of each case to the experts' ranks and back; what the experts of this rank saw."""

    from penstock.plan.job.layout import Layout
    from penstock.train.parallel.expert import RunExpertsAcrossRanks
    from penstock.train.world.world import join

    world = join(Layout(shard=2, expert=2), "cpu", 60.0)
    assert world.experts is not None
    visit = RunExpertsAcrossRanks(world.experts.get_group("expert"))

    class Double(torch.nn.Module):
        """Doubles its rows; knows which it saw and how many were each expert's."""

        def forward(self, rows_nd: Tensor, end_e: Tensor) -> Tensor:
            self.saw = [rows_nd.flatten().tolist(), end_e.tolist()]
            return 2 * rows_nd

    answers = []
    for counts in cases:
        own = torch.tensor(counts[world.rank])
        value = 100.0 * world.rank + torch.arange(int(own.sum()), dtype=torch.float64)
        rows_nd = value.unsqueeze(1).requires_grad_()
        double = Double()
        out_nd = visit(double, rows_nd, own.cumsum(0, dtype=torch.int32))
        (out_nd * (1 + rows_nd.detach())).sum().backward()
        assert rows_nd.grad is not None
        answers.append((*double.saw, out_nd.flatten().tolist(), rows_nd.grad.flatten().tolist()))
    real_ranks.leave()
    return answers


def test_rows_travel_to_their_experts_and_back(ranks: Callable[..., list[Any]]) -> None:
    """Of four experts, rank 0 holds the first two. Any number of rows, none at all too."""
    cases = [
        [[1, 2, 1, 0], [2, 0, 3, 1]],
        [[0, 0, 0, 3], [0, 0, 2, 0]],  # rank 0's experts get nothing
        [[0, 0, 0, 0], [1, 1, 0, 1]],  # rank 0 sends nothing
        [[0, 0, 0, 0], [0, 0, 0, 0]],
    ]
    answers = ranks(2, travels, cases)
    for at, counts in enumerate(cases):
        owned = [
            [[100.0 * r + sum(row[:e]) + i for i in range(row[e])] for r, row in enumerate(counts)]
            for e in range(4)
        ]
        for rank in range(2):
            saw, ends, out, grad = answers[rank][at]
            mine = owned[2 * rank : 2 * rank + 2]
            assert saw == [value for expert in mine for part in expert for value in part]
            sizes = [sum(map(len, expert)) for expert in mine]
            assert ends == [sizes[0], sum(sizes)]
            sent = [100.0 * rank + i for i in range(sum(counts[rank]))]
            assert out == [2 * value for value in sent]
            assert grad == pytest.approx([2 * (1 + value) for value in sent])
