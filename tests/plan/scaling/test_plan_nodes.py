"""The number of nodes for a deadline or a budget, against trying them all."""

from functools import cache

import pytest

import made_plans as made
from penstock.errors import PenstockError
from penstock.plan.scaling import table
from penstock.plan.scaling.nodes import nodes_for_budget, nodes_for_deadline
from penstock.plan.scaling.sweep import ScalePlanner, ScalePoint
from penstock.run.schema.run import Run

DAY_S = 86400.0


def run(**sections: object) -> Run:
    train = {"tokens": "20B", "batch_tokens": 64 * 8192}
    return made.run(**({"train": train} | sections))


@cache
def all_points() -> tuple[ScalePoint, ...]:
    """One to twenty-four nodes, every one."""
    planner = ScalePlanner.of(run(), made.machine(8))
    return tuple(planner.at(8 * nodes) for nodes in range(1, 25))


def wall_s(point: ScalePoint) -> float:
    return point.plan.life.wall_s if point.plan else float("inf")


def late_s(point: ScalePoint) -> float:
    """The end of the band that one run in ten passes."""
    span = point.plan.span("days") if point.plan else None
    return span[1] * DAY_S if span else float("inf")


def usd(point: ScalePoint) -> float:
    return (point.plan.bill.usd or 0.0) if point.plan else float("inf")


@pytest.mark.parametrize("days", [4.0, 1.5, 0.8, 0.5, 0.3])
def test_the_fewest_nodes_meet_the_deadline(days: float) -> None:
    found = nodes_for_deadline(run(), made.machine(8), days * DAY_S)
    fewest = next(point for point in all_points() if late_s(point) <= days * DAY_S)
    assert wall_s(found.point) < late_s(found.point) <= days * DAY_S
    assert found.point.nodes == fewest.nodes
    assert found.point in found.considered


@pytest.mark.parametrize("share", [1.02, 1.1, 1.25])
def test_the_fastest_within_the_budget(share: float) -> None:
    money = share * min(map(usd, all_points()))
    found = nodes_for_budget(run(), made.machine(8), money)
    best = min((p for p in all_points() if usd(p) <= money), key=wall_s)
    assert usd(found.point) <= money
    assert wall_s(found.point) <= 1.02 * wall_s(best)
    assert len({p.accelerators for p in found.considered}) == len(found.considered)


def test_neighbours_are_what_was_tried_around_the_answer() -> None:
    seconds = 1.01 * late_s(all_points()[2])
    found = nodes_for_deadline(run(), made.machine(8), seconds)
    near = found.neighbours(2)
    at = near.index(found.point)
    assert 1 < len(near) <= 5
    assert all(late_s(fewer) > seconds for fewer in near[:at])
    assert found.point.nodes == 3
    text = "\n".join(table.answer_lines(found))
    assert " in nine of ten cases: 3 nodes" in text
    assert "3 nodes, 24 accelerators: " in text
    assert found.to_json()["nodes"] == found.point.nodes


def test_a_deadline_that_nothing_meets_says_how_near_one_gets() -> None:
    seconds = ScalePlanner.of(run(), made.machine(8)).perfect_s / 8 / 1000
    with pytest.raises(PenstockError, match=r"The nearest, [\d,]+ accelerators .*more do not help"):
        nodes_for_deadline(run(), made.machine(8), seconds)


def test_a_deadline_beyond_all_machines_needs_no_search() -> None:
    seen: list[int] = []
    with pytest.raises(PenstockError, match="even if nothing is lost"):
        nodes_for_deadline(run(), made.machine(8), 0.01, lambda count, done: seen.append(count))
    assert seen == []


def test_a_machine_that_cannot_grow_is_the_most_there_is() -> None:
    own = made.machine(8, accelerator="Own")
    alone = late_s(ScalePlanner.of(run(), own).at(8))
    assert nodes_for_deadline(run(), own, 1.01 * alone).point.accelerators == 8
    with pytest.raises(PenstockError, match=r"8 accelerators \(1 node\).*has no more"):
        nodes_for_deadline(run(), own, 0.99 * alone)


def test_a_budget_below_all_says_the_cheapest() -> None:
    with pytest.raises(PenstockError, match=r"budget of 10 USD.*The cheapest, .* cost"):
        nodes_for_budget(run(), made.machine(8), 10.0)


def test_a_budget_needs_a_price() -> None:
    with pytest.raises(PenstockError, match="no price is known"):
        nodes_for_budget(run(cluster={"use": "mine.toml"}), made.machine(8), 1e6)


def test_a_model_that_never_fits_says_why() -> None:
    small = made.machine(8, accelerator="Own", memory_bytes=2**30)
    with pytest.raises(PenstockError, match=r"8 accelerators: out of memory in every layout"):
        nodes_for_deadline(run(), small, 1000 * DAY_S)
    with pytest.raises(PenstockError, match=r"8 accelerators: out of memory in every layout"):
        nodes_for_budget(run(), small, 1e9)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_no_time_and_no_money_are_refused(wrong: float) -> None:
    with pytest.raises(PenstockError, match="above zero"):
        nodes_for_deadline(run(), made.machine(8), wrong)
    with pytest.raises(PenstockError, match="above zero"):
        nodes_for_budget(run(), made.machine(8), wrong)


def test_a_lone_accelerator_is_asked_for_in_whole_nodes() -> None:
    found = nodes_for_deadline(run(), made.machine(1), 1.5 * DAY_S)
    assert all(point.accelerators % 8 == 0 for point in found.considered)
