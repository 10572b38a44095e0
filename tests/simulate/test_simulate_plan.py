"""The planner's mean values against the lives of the simulator, over random clusters."""

import random
from math import sqrt
from typing import NamedTuple

import numpy as np
import pytest

from penstock.ledger.causes import Cause
from penstock.plan.assemble import product_band
from penstock.plan.job.outcome import Band
from penstock.plan.life.life import DAY_S, failure_bands
from penstock.plan.life.rates import fleet_factor
from penstock.run.clusters.file import FailuresSection
from penstock.run.load import load_table
from penstock.run.save import to_table
from penstock.run.schema.run import Run
from penstock.simulate.result import LOST, Simulation
from penstock.simulate.simulate import Question, planned, simulate

LIVES = 30
NEAR = 3.0  # standard errors of the mean of the lives


class RandomCluster(NamedTuple):
    """One case: nodes, model, sequences of a step, mode, spares, failures per 1000 node-days, days,
    saves.
    """

    nodes: int
    preset: str
    sequences: int
    mode: str
    spares: int
    rate: float
    days: float
    checkpoint: str


def draw(seed: int, spared: bool = False) -> RandomCluster:
    luck = random.Random(seed)
    nodes = luck.choice([1, 2, 8, 32, 128, 512])
    some = [max(1, nodes // 16), max(1, nodes // 8)]
    return RandomCluster(
        nodes,
        luck.choice(["llama-8b", "llama-70b"] if nodes >= 8 else ["llama-1b", "llama-8b"]),
        max(256, 4 * nodes) * luck.choice([1, 2, 4]),
        luck.choice(["restart", "restart", "live"]),
        luck.choice(some if spared else [0, *some]),
        luck.choice([2.5, 4.0, 8.0, 16.0]),
        luck.choice([5.0, 20.0, 60.0]),
        luck.choice(["auto", "auto", "1 h"]),
    )


def lived(case: RandomCluster, given: FailuresSection, lives: int = LIVES) -> Simulation:
    """Live the case for as many steps as its days have."""
    run: Run = load_table(
        {
            "name": "random",
            "model": {"preset": case.preset},
            "data": {"sequence": 8192},
            "train": {
                "steps": 1000,
                "batch_tokens": case.sequences * 8192,
                "precision": "bf16",
            },
            "cluster": {"use": "H100", "nodes": case.nodes},
            "guard": {"spares": case.spares, "mode": case.mode, "checkpoint": case.checkpoint},
        }
    )
    plan, _ = planned(run, given)
    steps = max(20, int(case.days * DAY_S / plan.step.step_s))
    return simulate(load_table(to_table(run), [f"train.steps={steps}"]), Question(lives), given)


def stated(case: RandomCluster) -> FailuresSection:
    table = {"node_mtbf": f"{1000 / case.rate} days", "software_mtbf": "1 day"}
    return FailuresSection.model_validate(table)


def hold_to_the_lives(case: RandomCluster) -> tuple[float, float]:
    """Compare with stated rates; return how far effective time and days are off."""
    done = lived(case, stated(case))
    plan, counts = done.plan.life, done.counts.sum(axis=1)
    effective, days = 1 - done.share(*LOST), done.wall_s / DAY_S
    noise = NEAR / sqrt(LIVES)
    # Without spares, losing one node may halve the speed: rare, and by steps of the batch.
    points, per_cent = (1.0, 0.02) if case.spares else (4.0, 0.08)
    off = plan.effective - effective.mean()
    longer = plan.days / days.mean() - 1
    assert abs(off) < points / 100 + noise * effective.std(), (case, off)
    assert abs(longer) < per_cent + noise * days.std() / days.mean(), (case, longer)
    within = 0.1 * counts.mean() + noise * sqrt(counts.mean() + 1)
    assert abs(plan.interruptions - counts.mean()) < within, (case, counts.mean())
    return off, longer


def test_mean_values_are_those_of_the_lives() -> None:
    off = np.array([hold_to_the_lives(draw(seed)) for seed in range(14)])
    assert abs(off.mean(axis=0)) == pytest.approx([0, 0], abs=0.01)


@pytest.mark.slow
def test_mean_values_are_those_of_the_lives_in_many_clusters() -> None:
    off = np.array([hold_to_the_lives(draw(seed)) for seed in range(100, 160)])
    assert abs(off.mean(axis=0)) == pytest.approx([0, 0], abs=0.01)


@pytest.mark.parametrize("seed", [2, 5, 11])
def test_the_band_of_an_unknown_fleet_is_that_of_the_lives(seed: int) -> None:
    case = draw(seed, spared=True)
    done = lived(case, FailuresSection(), 80)
    plan, longer, share = done.plan, Band(1.0, 1.0), Band(1.0, 1.0)
    for days, effective in failure_bands(done.run, plan.job, plan.step, plan.life):
        longer, share = product_band(longer, days), product_band(share, effective)
    low, high = np.percentile(done.wall_s / DAY_S, (10, 90)) / plan.life.days
    assert (longer.low, longer.high) == pytest.approx((low, high), rel=0.02)
    low, high = np.percentile(1 - done.share(*LOST), (10, 90)) / plan.life.effective
    assert (share.low, share.high) == pytest.approx((low, high), rel=0.02)


def test_each_cause_is_near_that_of_the_lives() -> None:
    """Causes one by one, where failures are frequent enough to be counted."""
    case = RandomCluster(512, "llama-70b", 4096, "restart", 64, 8.0, 60.0, "1 h")
    done = lived(case, stated(case))
    for cause, within in ((Cause.DOWN, 0.1), (Cause.REDO, 0.3), (Cause.CHECKPOINT, 0.05)):
        mean_s = done.seconds[:, list(Cause).index(cause)].mean()
        planned_s = done.plan.life.ledger.seconds[cause] / done.own.ranks
        assert planned_s == pytest.approx(mean_s, rel=within), (cause, planned_s, mean_s)


def test_four_of_five_fleets_lie_between() -> None:
    assert fleet_factor(0.5) == pytest.approx(1.0, rel=0.2)
    assert 0.5 < fleet_factor(0.1) < 0.75
    assert 4 < fleet_factor(0.9) < 7
