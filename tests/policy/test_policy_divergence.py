"""Who is wrong when replicas differ, and how often the run tries again."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.divergence import LIMIT, DivergenceState, decide, farthest

RIGHT, WRONG, OTHER = (1, 2), (1, 3), (7, 7)


def test_equal_replicas_agree() -> None:
    state, verdict = decide(DivergenceState(), 100, [RIGHT, RIGHT, RIGHT])
    assert (verdict.kind, verdict.replicas) == ("agree", ())
    assert state == DivergenceState(agreed_step=100)


@given(count=st.integers(3, 9), data=st.data())
def test_of_three_or_more_the_majority_is_right(count: int, data: st.DataObject) -> None:
    wrong = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=(count - 1) // 2))
    prints = [(9, r) if r in wrong else RIGHT for r in range(count)]
    state, verdict = decide(DivergenceState(agreed_step=50), 100, prints)
    assert (verdict.kind, verdict.certain) == ("rollback", True)
    assert verdict.replicas == tuple(sorted(wrong))
    assert state.agreed_step == 50


def test_of_two_the_redone_step_tells() -> None:
    """On the way there they are compared too, before saves; that says nothing yet."""
    state, verdict = decide(DivergenceState(agreed_step=90), 100, [WRONG, RIGHT])
    assert (verdict.kind, verdict.replicas, verdict.certain) == ("rollback", (0, 1), False)
    state, verdict = decide(state, 96, [OTHER, OTHER])
    assert (verdict.kind, verdict.replicas) == ("agree", ())
    state, verdict = decide(state, 100, [RIGHT, RIGHT])
    assert (verdict.kind, verdict.replicas, verdict.certain) == ("agree", (0,), True)
    assert state == DivergenceState(agreed_step=100)


def test_steps_that_do_not_repeat_name_nobody_for_certain() -> None:
    state, _ = decide(DivergenceState(), 100, [WRONG, RIGHT])
    _, verdict = decide(state, 100, [OTHER, OTHER])
    assert (verdict.replicas, verdict.certain) == ((0, 1), False)


def test_a_tie_of_four_is_no_majority() -> None:
    _, verdict = decide(DivergenceState(), 10, [RIGHT, RIGHT, WRONG, WRONG])
    assert (verdict.replicas, verdict.certain) == ((0, 1, 2, 3), False)


def test_a_replica_that_is_always_wrong_ends_the_run() -> None:
    state = DivergenceState()
    for _ in range(LIMIT):
        state, verdict = decide(state, 100, [RIGHT, WRONG, RIGHT])
        assert verdict.kind == "rollback"
    assert decide(state, 100, [RIGHT, WRONG, RIGHT])[1].kind == "stop"


def test_faults_with_progress_between_them_do_not() -> None:
    state = DivergenceState()
    for step in range(100, 2000, 100):
        state, verdict = decide(state, step, [RIGHT, WRONG])
        assert verdict.kind == "rollback"
        state, verdict = decide(state, step, [RIGHT, RIGHT])
        assert verdict.replicas == (1,)


def test_who_is_far_from_what_came_out_again_is_named() -> None:
    """Both moved on by gradients that one of them spoiled; only that one is far off."""
    right = (1.0, 2.0)
    assert farthest([(1.001, 2.0), (1.5, 2.0)], right) == (1,)
    assert farthest([(float("nan"), 2.0), (1.001, 2.0)], right) == (0,)
    assert farthest([(1.0, 2.0), (1.0001, 2.0)], right) == (1,)
    assert farthest([(1.001, 2.0), (1.002, 2.0)], right) == ()
    assert farthest([right, (9.0, 2.0), right, (1.0, 8.0)], right) == (1, 3)
