"""Principle 3 for mixtures of experts: spread over ranks they compute what one process does.

Losses, norms, gradients and the balance of experts, in float64.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import real_ranks
from equality_cases import (
    Answer,
    assert_equal,
    masked_set,
    on_one_rank,
    on_ranks,
    prepared,
)

MIXTURE = [
    "model.experts=4",
    "model.experts_active=2",
    "model.expert_ffn=8",
    "model.shared_experts=1",
    "train.balance_rate=0.02",  # enough to change choices within a few steps
]
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "mixture": ("plain", MIXTURE),
    # 5 sequences do not divide by 2 or 4 ranks; one active expert leaves others without tokens.
    "uneven": ("plain", [*MIXTURE, "model.experts_active=1", "train.batch_tokens=80"]),
    # 3 sequences on 4 ranks: one has nothing but fillers, which must not count.
    "idle rank": ("plain", [*MIXTURE, "train.batch_tokens=48", "model.shared_experts=0"]),
    # The first stage of a pipeline has nothing to balance.
    "sigmoid": ("plain", [*MIXTURE, "model.router=sigmoid", "model.dense_layers=1"]),
    "packed": ("masked", [*MIXTURE, "data.across_documents=false", "model.tied=false"]),
}
# Layouts, and the variants that each of them is tried on.
LAYOUTS: dict[int, list[tuple[dict[str, Any], list[str]]]] = {
    2: [
        ({"shard": 2, "expert": 2}, list(VARIANTS)),
        ({"shard": 2, "microbatch": 2}, ["mixture", "packed"]),
        ({"replicate": 2}, ["uneven", "mixture"]),
        ({"shard": 2, "expert": 2, "recompute": "full"}, ["mixture"]),
        ({"shard": 2, "expert": 2, "recompute": "selective"}, ["mixture"]),
        ({"replicate": 2, "recompute": "selective"}, ["uneven"]),
        ({"tensor": 2, "expert": 2}, ["packed", "mixture"]),
        ({"tensor": 2}, ["mixture", "uneven"]),
        ({"context": 2, "expert": 2}, ["mixture", "packed"]),
        ({"pipeline": 2, "microbatch": 2, "recompute": "full"}, ["sigmoid", "uneven"]),
    ],
    4: [
        ({"shard": 4, "expert": 4}, ["mixture", "uneven", "idle rank"]),
        ({"shard": 4, "expert": 2, "microbatch": 2}, ["idle rank", "mixture"]),
        ({"replicate": 2, "shard": 2, "expert": 2}, ["packed", "idle rank"]),
        ({"shard": 2, "tensor": 2, "expert": 4}, ["uneven"]),
        ({"shard": 2, "tensor": 2, "expert": 2}, ["packed"]),
        ({"shard": 2, "tensor": 2}, ["mixture"]),
        ({"shard": 2, "context": 2, "expert": 4}, ["packed", "uneven"]),
        ({"context": 2, "tensor": 2, "expert": 2}, ["mixture"]),
        ({"pipeline": 2, "shard": 2, "expert": 2}, ["sigmoid", "idle rank"]),
        ({"pipeline": 2, "tensor": 2, "expert": 2, "microbatch": 2}, ["packed"]),
    ],
}


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, home: Path, tiny: str) -> str:
    datasets = {"plain": tiny, "masked": masked_set(home, "equality-experts-masked"), "kept": tiny}
    return prepared(tmp_path_factory.mktemp("equality-experts"), datasets)


@pytest.fixture(scope="module")
def alone(where: str, ranks: Callable[..., list[Any]]) -> dict[str, Answer]:
    return on_one_rank(ranks, where, VARIANTS)


@pytest.mark.parametrize(
    ("count", "first"),
    [
        pytest.param(count, first, marks=() if first and count == 2 else pytest.mark.slow)
        for count in LAYOUTS
        for first in (True, False)
    ],
)
def test_experts_on_several_ranks_equal_one_process(
    count: int, first: bool, where: str, alone: dict[str, Answer], ranks: Callable[..., list[Any]]
) -> None:
    """Each layout on its first variant; on the others where there are minutes for it."""
    chosen = slice(0, 1) if first else slice(1, None)
    named = [(name, layout) for layout, names in LAYOUTS[count] for name in names[chosen]]
    answers = on_ranks(ranks, count, where, VARIANTS, named)
    for (name, layout), *found in zip(named, *answers, strict=True):
        assert_equal(alone[name], found, f"{name}, layout {layout}")


def test_losses_fall_and_experts_are_balanced(alone: dict[str, Answer]) -> None:
    """What the test above compares is real training, not a constant."""
    for name, answer in alone.items():
        assert answer["losses"][-1] < answer["losses"][0], name
        for part in ("experts.gate", "experts.up", "experts.down", "router.weight"):
            assert abs(answer["grads"][f"layers.1.ffn.{part}"]).max() > 0
        layers = [1] if name == "sigmoid" else [0, 1]
        assert answer["buffers"].keys() == {f"layers.{i}.ffn.balance" for i in layers}
        assert all(len(set(balance)) > 1 for balance in answer["buffers"].values()), name


def some_steps(path: str, layout: dict[str, int], attempt: int, until: int) -> list[float]:
    """From the newest checkpoint of the run `kept` to a checkpoint of step `until`; the losses."""

    from penstock.guard.detect.pulse import Pulse
    from penstock.ledger.journal.writer import Journal
    from penstock.meter.clock import StepClock
    from penstock.plan.job.layout import Layout
    from penstock.run.folder import RunFolder
    from penstock.run.load import load
    from penstock.train.loop import build
    from penstock.train.rank_context import RankContext
    from penstock.train.replicas.reduce import REQUESTS, Vote
    from penstock.train.step import unguarded_step
    from penstock.train.world.world import join

    os.environ["PENSTOCK_ATTEMPT"] = str(attempt)
    run, folder = load(path, MIXTURE), RunFolder(Path(path).parent / "kept")
    world = join(Layout(**layout), "cpu", 60.0)
    journal = Journal(folder.journal, attempt, range(world.rank, world.rank + 1))
    pulse = Pulse(folder.make_scratch(), world.rank, attempt)
    trainer = build(RankContext(folder, run, Layout(**layout), world, journal, pulse))
    trainer.resume()
    done = trainer.progress.step
    feed = trainer.batches.feed(after_step=done)
    losses = []
    for _ in range(done, until):
        batch, clock = trainer.batches.micros(feed.next()), StepClock(cuda=False)
        vote = unguarded_step(trainer.engine.stepper, batch, run.batch_tokens, 1e-2, clock)
        losses.append(vote.loss)
    feed.close()
    trainer.saver.save_if_due(until, Vote(0.0, 0.0, dict.fromkeys(REQUESTS, False)), last=True)
    trainer.saver.finish()
    real_ranks.leave()
    return losses


def test_a_checkpoint_goes_on_with_the_experts_spread_otherwise(
    where: str, alone: dict[str, Answer], ranks: Callable[..., list[Any]]
) -> None:
    """Weights, moments and balance: two ranks, one, then four."""
    losses = ranks(2, some_steps, where, {"shard": 2, "expert": 2}, 1, 1)[0]
    losses += ranks(1, some_steps, where, {}, 2, 2)[0]
    losses += ranks(4, some_steps, where, {"shard": 4, "expert": 2}, 3, 3)[0]
    assert losses == pytest.approx(alone["mixture"]["losses"], rel=1e-10)
