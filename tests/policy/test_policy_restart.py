"""What follows the end of an attempt, over every way that ranks can end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.restart import Action, AttemptEnd, RestartState, decide

FINE = ("done", "stopped")
RESULTS = st.lists(
    st.sampled_from([*FINE, "failed", "refused", "oom", None]), min_size=1, max_size=6
)
STATES = st.builds(RestartState, st.integers(0, 5), st.integers(0, 5), st.integers(0, 100))


@given(STATES, RESULTS, st.integers(0, 200))
def test_every_end_has_the_action_it_should(
    state: RestartState, results: list[str | None], step: int
) -> None:
    after, action = decide(state, AttemptEnd(tuple(results), step))
    if set(results) <= set(FINE):
        assert action == "finish"
    elif "refused" in results:
        assert action == "give_up"
    elif "oom" in results:  # the same layout would run out again; another try is not spent on it
        assert action == "replan"
        assert after.fruitless == state.fruitless
    else:
        fruitless = 0 if step > state.best_step else state.fruitless + 1
        assert action == ("restart" if fruitless <= state.allowed else "give_up")
        assert after.fruitless == fruitless
    assert after.allowed == state.allowed
    assert after.best_step == max(state.best_step, step)


@given(st.integers(0, 5), st.lists(st.integers(0, 30), max_size=60))
def test_a_run_ends_only_after_allowed_tries_in_a_row_without_a_new_step(
    allowed: int, steps: list[int]
) -> None:
    """Faults for ever: the run goes on exactly as long as it gets further now and then."""
    state, best, fruitless = RestartState(allowed), 0, 0
    for step in steps:
        state, action = decide(state, AttemptEnd((None, "failed"), step))
        fruitless = 0 if step > best else fruitless + 1
        best = max(best, step)
        assert action == ("give_up" if fruitless > allowed else "restart")
        if action == "give_up":
            return


def test_a_run_that_crashes_at_once_is_tried_allowed_times_more() -> None:
    state = RestartState(allowed=3)
    actions: list[Action] = []
    while not actions or actions[-1] == "restart":
        state, action = decide(state, AttemptEnd((None,), step=0))
        actions.append(action)
    assert actions == ["restart", "restart", "restart", "give_up"]


def test_no_restarts_allowed_still_goes_on_after_progress() -> None:
    state, action = decide(RestartState(allowed=0), AttemptEnd((None,), step=1))
    assert action == "restart"
    assert decide(state, AttemptEnd((None,), step=1))[1] == "give_up"


@pytest.mark.parametrize("result", FINE)
def test_one_silent_rank_is_a_fault_even_when_the_others_are_done(result: str) -> None:
    ended = AttemptEnd((result, None, result), step=10)
    assert decide(RestartState(allowed=1), ended)[1] == "restart"
