"""Losses against perfect scaling: they add up, and the largest is named."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_plans as made
from penstock.ledger.causes import Cause
from penstock.plan.job.layout import Layout
from penstock.plan.life import life
from penstock.plan.scaling import limits
from penstock.plan.step import step

LAYOUTS = [
    Layout(shard=8),
    Layout(replicate=16, shard=4, tensor=4, recompute="full"),
    Layout(replicate=4, tensor=8, pipeline=4, microbatch=2),
    Layout(shard=96, microbatch=2),
    Layout(replicate=2, shard=16, context=4, recompute="selective"),
]


@settings(max_examples=20)
@given(st.sampled_from(LAYOUTS), st.integers(10, 100_000))
def test_losses_work_and_evaluation_add_up_to_one(layout: Layout, steps: int) -> None:
    job = made.job(layout.ranks, layout)
    found = step.predict(job)
    perfect = min(map(step.predict, limits.alone(job)), key=lambda s: s.step_s)
    lived = life.predict(made.run(), job, found, steps)
    lost = limits.losses(job, found, perfect, lived)
    work = perfect.step_s * steps / lived.ledger.total
    evaluated = lived.ledger.share(Cause.EVALUATE) or 0.0
    assert sum(lost.values()) + work + evaluated == pytest.approx(1.0)
    assert min(lost.values()) > -1e-9
    assert list(lost.values()) == sorted(lost.values(), reverse=True)


def lost_of(layout: Layout, **parts: float) -> dict[str, float]:
    """Of a step by hand against ten seconds of matmuls on one accelerator."""
    job = made.job(layout.ranks, layout)
    found = made.step(**parts)
    lived = life.predict(made.run(), job, found, 10_000)
    return limits.losses(job, found, made.step(matmul=10.0), lived)


@pytest.mark.parametrize(
    ("part", "layout", "name"),
    [
        ("reduce", Layout(replicate=64), "network between nodes"),
        ("tensor", Layout(replicate=8, tensor=8), "network inside the node"),
        ("tensor", Layout(replicate=4, tensor=16), "network between nodes"),
        ("bubble", Layout(replicate=8, pipeline=8), "pipeline bubble"),
        ("launch", Layout(replicate=64), "kernel launches"),
        ("jitter", Layout(replicate=64), "waiting for slower peers"),
        ("recompute", Layout(replicate=64), "memory: work done twice to fit"),
        ("data", Layout(replicate=64), "waiting for data"),
        ("elementwise", Layout(replicate=64), "memory bandwidth"),
    ],
)
def test_every_loss_has_its_name(part: str, layout: Layout, name: str) -> None:
    each = 10.0 / layout.ranks
    lost = lost_of(layout, matmul=each, **{part: each})
    assert next(iter(lost)) == name
    assert limits.limit(made.step(matmul=each), lost)[0] == name


def test_small_matmuls_are_a_loss_only_beyond_the_work_itself() -> None:
    layout = Layout(replicate=64)
    assert lost_of(layout, matmul=10 / 64)["small matmuls"] == pytest.approx(0.0)
    assert next(iter(lost_of(layout, matmul=20 / 64))) == "small matmuls"


def test_sequences_that_do_not_fill_the_ranks_are_a_loss_of_the_batch() -> None:
    """128 sequences over 96 ranks: two rounds, the second one third full."""
    lost = lost_of(Layout(replicate=96), matmul=15 / 96)
    total = sum(lost.values())
    assert lost[limits.TOO_FEW_SEQUENCES] == pytest.approx(total, rel=0.2)
    assert next(iter(lost)) == limits.TOO_FEW_SEQUENCES


def test_failures_are_a_loss() -> None:
    job = made.job(8)
    often = replace(job, machine=replace(job.machine, node_mtbf_s=1e5))
    found = made.step(matmul=10 / 8)
    lived = life.predict(made.run(), often, found, 10_000)
    lost = limits.losses(often, found, made.step(matmul=10.0), lived)
    assert limits.limit(found, lost)[0] == limits.FAILURES


def test_without_a_loss_worth_naming_the_work_is_the_limit() -> None:
    small = {"saving": 0.15, "pipeline bubble": 0.05}
    assert limits.limit(made.step(matmul=8.0, elementwise=2.0), small)[0] == "matmuls"
    assert limits.limit(made.step(matmul=2.0, elementwise=8.0), small)[0] == "memory bandwidth"
    assert limits.limit(made.step(matmul=8.0), small | {"saving": 0.20})[0] == "saving"
