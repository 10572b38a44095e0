"""`layout.reshard`: the same numbers, with weights gathered and gradients reduced less often."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import real_ranks
from equality_cases import prepared

PASSES, UNITS = 2, 3  # microbatches of a rank; two layers and the root
LAYER, BACKWARD, STEP = 3, 2, 1  # ZeRO stages


def counted(real: Callable[..., Any], name: str, calls: Counter[str]) -> Callable[..., Any]:
    """The same function, which counts its calls."""

    def call(*args: Any, **more: Any) -> Any:
        calls[name] += 1
        return real(*args, **more)

    return call


def steps_of_every_kind(path: str) -> dict[int, dict[str, Any]]:
    """Two steps of two microbatches on this rank, by the ZeRO stage."""
    import torch
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp

    from penstock.meter.clock import StepClock
    from penstock.plan.job.layout import Layout
    from penstock.run.load import load
    from penstock.train.engine import build_engine
    from penstock.train.parallel.microbatch import Microbatch
    from penstock.train.step import unguarded_step
    from penstock.train.world.world import join

    os.environ["PENSTOCK_ATTEMPT"] = "reshard"
    run, found = load(path, []), {}
    world = join(Layout(shard=2), "cpu", 60.0)
    calls: Counter[str] = Counter()
    for name in ("foreach_all_gather", "foreach_reduce"):  # a call is one collective
        setattr(fsdp, name, counted(getattr(fsdp, name), name, calls))
    draw = torch.Generator().manual_seed(world.rank)
    tokens = torch.randint(64, (PASSES, 17), generator=draw)
    batch = [Microbatch(one[None, :-1], one[None, 1:], 1.0) for one in tokens]
    for zero in (LAYER, BACKWARD, STEP):
        engine = build_engine(run, Layout(shard=2, zero=zero), 64, world)
        shards = engine.parts.trained()
        votes = []
        for _ in range(2):
            calls.clear()
            votes.append(unguarded_step(engine.stepper, batch, 4 * 16, 1e-2, StepClock(False)))
        assert all(engine.parts.trained()[name] is param for name, param in shards.items())
        found[zero] = {
            "losses": [vote.loss for vote in votes],
            "norms": [vote.grad_norm for vote in votes],
            "weights": {n: p.to_local().tolist() for n, p in shards.items()},
            "gathers": calls["foreach_all_gather"],
            "reductions": calls["foreach_reduce"],
        }
    real_ranks.leave()
    return found


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory, ranks: Callable[..., list[Any]]
) -> list[dict[int, dict[str, Any]]]:
    where: Path = tmp_path_factory.mktemp("reshard")
    return ranks(2, steps_of_every_kind, prepared(where, {}))


@pytest.mark.parametrize("zero", [BACKWARD, STEP])
def test_the_numbers_are_those_of_sharding_after_every_layer(found: Any, zero: int) -> None:
    for of_rank in found:
        usual, other = of_rank[LAYER], of_rank[zero]
        assert other["losses"] == pytest.approx(usual["losses"], rel=1e-12)
        assert other["norms"] == pytest.approx(usual["norms"], rel=1e-12)
        assert usual["losses"][1] != usual["losses"][0]
        for name, values in usual["weights"].items():
            near = [pytest.approx(row, rel=1e-9, abs=1e-12) for row in values]
            assert other["weights"][name] == near, name


def test_weights_are_gathered_and_gradients_reduced_less_often(found: Any) -> None:
    for of_rank in found:
        gathers = {zero: one["gathers"] for zero, one in of_rank.items()}
        reductions = {zero: one["reductions"] for zero, one in of_rank.items()}
        assert gathers[LAYER] > PASSES * UNITS  # the layers twice in every pass
        assert gathers[BACKWARD] == gathers[STEP] == UNITS
        assert reductions[LAYER] == reductions[BACKWARD] == PASSES * UNITS
        assert reductions[STEP] == UNITS
