"""A run that is asked to stop: what is done at every moment of its grace."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.preempt import LAST_S, PreemptState, decide

TIMES = st.floats(0, 1e4)


@given(TIMES, st.none() | st.floats(0, 600), TIMES)
def test_before_the_first_step_there_is_nothing_to_save(
    asked_s: float, grace_s: float | None, later_s: float
) -> None:
    assert decide(PreemptState(asked_s, grace_s, begun=False), asked_s + later_s) == "end"


@given(TIMES, TIMES)
def test_a_person_waits_for_as_long_as_the_save_takes(asked_s: float, later_s: float) -> None:
    assert decide(PreemptState(asked_s, None, begun=True), asked_s + later_s) == "wait"


@given(st.floats(LAST_S, 600), st.floats(0, 700))
def test_a_notice_leaves_its_grace_and_no_more(grace_s: float, later_s: float) -> None:
    action = decide(PreemptState(0.0, grace_s, begun=True), later_s)
    assert action == ("wait" if later_s < grace_s - LAST_S else "kill")


def test_a_grace_of_nothing_is_over_at_once() -> None:
    assert decide(PreemptState(5.0, 0.0, begun=True), 5.0) == "kill"
