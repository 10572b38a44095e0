"""The best evaluation, and when to stop: exact after any restart."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.best import SPARE, BestState, judge, stops, words

LOSSES = st.lists(st.floats(0, 10) | st.just(math.nan) | st.just(math.inf), max_size=30)


def fold(losses: list[float], keep: int = 1, delta: float = 0.0, from_json: int = -1) -> BestState:
    """The state after evaluations at steps 0, 1, 2, …; saved and loaded before one of them."""
    state = BestState()
    for step, loss in enumerate(losses):
        if step == from_json:
            state = BestState.from_json(json.loads(json.dumps(state.to_json())))
        state = judge(state, step, loss, keep, delta)
    return state


@given(LOSSES, st.integers(1, 3), st.sampled_from([0.0, 0.1, 3.0]), st.integers(0, 30))
def test_a_state_that_was_saved_goes_on_exactly(
    losses: list[float], keep: int, delta: float, place: int
) -> None:
    assert fold(losses, keep, delta, place) == fold(losses, keep, delta)


@given(LOSSES, st.integers(1, 3))
def test_the_lowest_are_kept_and_of_equal_ones_the_first(losses: list[float], keep: int) -> None:
    finite = [(loss, step) for step, loss in enumerate(losses) if math.isfinite(loss)]
    expected = [step for _, step in sorted(finite)][: keep + SPARE]
    assert list(fold(losses, keep).steps()) == expected


def test_patience_counts_evaluations_since_the_last_improvement() -> None:
    losses = [5.0, 4.0, 4.5, 4.0, 3.95, math.nan]
    assert [fold(losses[: n + 1]).waited for n in range(6)] == [0, 0, 1, 2, 0, 1]
    assert [fold(losses[: n + 1], delta=0.1).waited for n in range(6)] == [0, 0, 1, 2, 3, 4]
    assert [stops(fold(losses[: n + 1], delta=0.1), 3) for n in range(6)] == [False] * 4 + [
        True
    ] * 2
    assert not stops(fold(losses), None)
    assert fold(losses[:5]).improved
    assert not fold(losses).improved


def test_a_run_that_is_taken_back_evaluates_a_step_again() -> None:
    state = fold([5.0, 4.0])
    assert judge(state, 1, 4.0, 1, 0.0).steps() == (1, 0)


def test_the_reason_names_the_best() -> None:
    said = words(fold([5.0, 4.0, 4.5, 4.6]), 2)
    assert said == (
        "no improvement in 2 evaluations (evaluate.patience = 2); the best validation loss was "
        "4.0000 at step 1"
    )
