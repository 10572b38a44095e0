"""A run begins at its first step only when there is nothing that it could lose by that."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.resume import Search, decide

STEPS = st.none() | st.integers(0, 10**6)


@given(st.integers(0, 3), st.integers(0, 3), STEPS)
def test_a_usable_checkpoint_is_always_used(
    damaged: int, unreadable: int, step: int | None
) -> None:
    assert decide(Search(True, damaged, unreadable, step)) == "resume"


@given(st.integers(0, 3), st.integers(0, 3), STEPS)
def test_a_run_begins_only_where_nothing_can_be_lost(
    damaged: int, unreadable: int, step: int | None
) -> None:
    nothing = not damaged and not unreadable and step is None
    assert decide(Search(False, damaged, unreadable, step)) == ("begin" if nothing else "refuse")
