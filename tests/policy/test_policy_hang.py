"""Hangs: never while somebody gets on, always named when nobody does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.guard.detect.pulse import PHASES
from penstock.policy import hang
from penstock.policy.hang import (
    LONG_S,
    ORDER,
    Hang,
    RankObservation,
    allowed_s,
    blame,
    decide,
    usual_s,
)

TIMEOUT_S = 120.0
SEEN = st.builds(
    RankObservation,
    rank=st.integers(0, 7),
    phase=st.sampled_from(PHASES),
    step=st.integers(0, 5),
    still_s=st.floats(0, 2 * LONG_S),
    stopped=st.booleans(),
)
WORLD = st.lists(SEEN, min_size=1, max_size=8, unique_by=lambda s: s.rank)
STEP_S = st.none() | st.floats(1e-3, 100)


def test_every_phase_has_its_place() -> None:
    assert set(ORDER) == set(PHASES)


@given(WORLD, STEP_S)
def test_a_hang_is_named_only_when_all_who_could_be_to_blame_are_still(
    seen: list[RankObservation], step_s: float | None
) -> None:
    found = decide(seen, step_s, TIMEOUT_S)
    by_rank = {s.rank: s for s in seen}
    if found is None:
        suspects = [by_rank[rank] for rank in blame(seen, {}).ranks] or seen
        assert any(s.still_s <= allowed_s(s, step_s, TIMEOUT_S) for s in suspects)
        return
    for rank in found.ranks:
        s = by_rank[rank]
        assert s.still_s > allowed_s(s, step_s, TIMEOUT_S)
        assert s.stopped or all(s.place <= other.place for other in seen)
        assert (s.phase, s.step) == (found.phase, found.step) or s.stopped
    assert found.why


@given(WORLD, STEP_S, st.floats(0, 1))
def test_ranks_that_give_signs_never_hang(
    seen: list[RankObservation], step_s: float | None, share: float
) -> None:
    calm = [
        RankObservation(s.rank, s.phase, s.step, share * allowed_s(s, step_s, TIMEOUT_S), s.stopped)
        for s in seen
    ]
    assert decide(calm, step_s, TIMEOUT_S) is None


def test_the_wait_follows_the_pace_of_the_run() -> None:
    at = RankObservation(0, "forward", 9, 0.0)
    assert allowed_s(at, None, TIMEOUT_S) == LONG_S  # nobody knows yet
    assert allowed_s(RankObservation(0, "reduce", 1, 0.0), None, TIMEOUT_S) == TIMEOUT_S
    assert allowed_s(at, 0.05, TIMEOUT_S) == hang.FLOOR_S
    assert allowed_s(at, 4.0, TIMEOUT_S) == 40.0
    assert allowed_s(at, 60.0, TIMEOUT_S) == 600.0  # longer than a timeout may be usual
    assert allowed_s(at, 0.05, 3.0) == 3.0  # who asks for less than the floor gets it


def test_what_takes_long_is_given_long() -> None:
    for phase in ("build", "load", "warm_up", "evaluate", "save", "end"):
        assert allowed_s(RankObservation(0, phase, 9, 0.0), 0.05, TIMEOUT_S) == LONG_S
    for phase in ("start", "join", "fetch"):  # peers wait under this bound anyway
        assert allowed_s(RankObservation(0, phase, 9, 0.0), 0.05, TIMEOUT_S) == TIMEOUT_S


def test_a_stopped_rank_is_not_given_long() -> None:
    for phase in PHASES:
        assert (
            allowed_s(RankObservation(0, phase, 9, 0.0, stopped=True), 0.05, TIMEOUT_S)
            == hang.FLOOR_S
        )
        assert (
            allowed_s(RankObservation(0, phase, 9, 0.0, stopped=True), None, TIMEOUT_S)
            == hang.FLOOR_S
        )


def world(*places: tuple[str, int], still_s: float = 50.0, stopped: tuple[int, ...] = ()) -> list:
    return [
        RankObservation(rank, phase, step, still_s, rank in stopped)
        for rank, (phase, step) in enumerate(places)
    ]


@pytest.mark.parametrize(
    ("seen", "waits", "ranks", "why"),
    [
        (world(("reduce", 4), ("forward", 4), ("reduce", 4)), {}, (1,), "come further"),
        (world(("vote", 4), ("forward", 5)), {}, (0,), "come further"),
        (world(("reduce", 4), ("reduce", 4), stopped=(1,)), {}, (1,), "stopped by a signal"),
        (world(("save", 4), ("evaluate", 4)), {}, (1,), "come further"),
        (world(("forward", 4), ("forward", 4)), {0: True, 1: False}, (1,), "in a collective"),
        (world(("forward", 4), ("forward", 4)), {0: True, 1: None}, (1,), "does not answer"),
        (world(("forward", 4), ("forward", 4)), {0: True, 1: True}, (), "network"),
        (world(("reduce", 4), ("reduce", 4)), {}, (), "network"),
        (world(("forward", 4)), {0: False}, (0,), "no sign"),
    ],
)
def test_the_rank_at_fault_is_named(
    seen: list[RankObservation], waits: dict[int, bool | None], ranks: tuple[int, ...], why: str
) -> None:
    found = blame(seen, waits)
    assert found.ranks == ranks
    assert why in found.why


def test_a_hang_says_where() -> None:
    found = decide(world(("reduce", 4), ("forward", 4)), 0.1, TIMEOUT_S)
    assert found == Hang((1,), "forward", 4, 50.0, found.why if found else "")


def test_what_is_usual_is_the_median_of_the_last_steps() -> None:
    assert usual_s([0.5] * (hang.FEWEST_STEPS - 1)) is None
    assert usual_s([0.5, 0.6, 9.0]) == 0.6
    assert usual_s([9.0] * 500 + [0.1] * hang.KEPT_STEPS) == 0.1


def test_a_newcomer_hides_no_hang_and_is_watched_by_itself() -> None:
    new = RankObservation(2, "build", 0, 1.0, newcomer=True)
    stuck = [RankObservation(0, "reduce", 4, 50.0), RankObservation(1, "forward", 4, 50.0)]
    found = decide([*stuck, new], 0.1, TIMEOUT_S)
    assert found is not None
    assert found.ranks == (1,)
    fine = [RankObservation(0, "forward", 4, 0.1), RankObservation(1, "forward", 4, 0.1)]
    assert decide([*fine, new], 0.1, TIMEOUT_S) is None
    found = decide(
        [*fine, RankObservation(2, "join", 0, 2 * TIMEOUT_S, newcomer=True)], 0.1, TIMEOUT_S
    )
    assert found is not None
    assert found.ranks == (2,)


def test_stacks_name_the_one_of_several_and_never_a_newcomer_in_its_place() -> None:
    stuck = [RankObservation(0, "forward", 4, 50.0), RankObservation(1, "forward", 4, 50.0)]
    new = RankObservation(2, "build", 0, 1.0, newcomer=True)
    found = decide([*stuck, new], 0.1, TIMEOUT_S, {0: True, 1: False, 2: False})
    assert found is not None
    assert found.ranks == (1,)
