"""Stragglers: told once when a rank becomes one, once when it is none any more."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.straggler import (
    FEWEST_STEPS,
    FINE,
    KEPT_STEPS,
    SLOW,
    StragglerChange,
    decide,
)

STEPS = 16


def even(ranks: int, seconds: float = 0.1) -> dict[int, list[float]]:
    return {rank: [seconds] * STEPS for rank in range(ranks)}


def test_a_slow_rank_is_told_once_and_once_when_it_is_over() -> None:
    slow = even(4) | {2: [0.2] * STEPS}
    state, changes = decide(frozenset(), slow)
    assert (state, changes) == ({2}, [StragglerChange(2, 2.0, slow=True)])
    assert decide(state, slow) == (state, [])
    state, changes = decide(state, even(4))
    assert (state, changes) == (frozenset(), [StragglerChange(2, 1.0, slow=False)])


def test_of_two_ranks_the_slower_one() -> None:
    state, changes = decide(frozenset(), {0: [0.1] * STEPS, 1: [0.14] * STEPS})
    assert state == {1}
    assert [change.rank for change in changes] == [1]


def test_at_the_border_nothing_changes() -> None:
    between = even(2) | {1: [0.1 * (SLOW + FINE) / 2] * STEPS}
    assert decide(frozenset(), between) == (frozenset(), [])
    assert decide(frozenset({1}), between) == ({1}, [])


def test_one_slow_step_makes_no_straggler_and_neither_do_few_steps_or_microseconds() -> None:
    assert decide(frozenset(), even(2) | {1: [0.1] * (STEPS - 1) + [9.0]})[0] == frozenset()
    assert decide(frozenset(), even(2) | {1: [9.0] * (FEWEST_STEPS - 1)})[0] == frozenset()
    assert decide(frozenset(), even(2, 1e-4) | {1: [1e-3] * STEPS})[0] == frozenset()


def test_ranks_that_are_slow_in_turn_are_no_stragglers() -> None:
    fast, slow = [0.2] * 8, [0.3] * 8
    in_turn = {0: [*slow, *fast, *slow, *slow], 1: [*fast, *slow, *fast, *fast]}
    assert decide(frozenset(), in_turn) == (frozenset(), [])


def test_a_straggler_was_slower_in_every_window() -> None:
    def slow_for(steps: int) -> frozenset[int]:
        own_s = [0.2] * (KEPT_STEPS - steps) + [0.3] * steps
        return decide(frozenset(), {0: own_s, 1: [0.2] * KEPT_STEPS})[0]

    assert slow_for(KEPT_STEPS * 3 // 4) == frozenset()
    assert slow_for(KEPT_STEPS) == {0}


def test_a_rank_alone_is_no_straggler() -> None:
    assert decide(frozenset(), {0: [1.0] * STEPS}) == (frozenset(), [])


WORK = st.dictionaries(
    st.integers(0, 5), st.lists(st.floats(1e-3, 10), min_size=0, max_size=20), max_size=6
)


@given(st.frozensets(st.integers(0, 5)), WORK)
def test_every_change_of_the_state_is_told_and_nothing_else(
    before: frozenset[int], work_s: dict[int, list[float]]
) -> None:
    after, changes = decide(before, work_s)
    assert {c.rank for c in changes if c.slow} == after - before
    assert {c.rank for c in changes if not c.slow} == before - after
    assert len(after - before) < max(1, len(work_s))  # somebody is as fast as usual
    assert decide(after, work_s)[0] == after or changes  # settles
