"""Live mode's decisions, without processes."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.quorum import (
    BREAKS,
    EndAttempt,
    FormGeneration,
    HealingPlan,
    LeaveOutReplica,
    LinkBroken,
    QuorumState,
    ReplicaLost,
    ReplicaReady,
    ReplicaStanding,
    StartReplica,
    decide,
    plan_healing,
)

NEW = ReplicaStanding()


def at(step: int) -> ReplicaStanding:
    return ReplicaStanding(step, whole=True)


def test_the_furthest_gives_and_who_is_behind_takes() -> None:
    assert plan_healing({0: at(7), 1: at(8), 2: at(8)}) == HealingPlan(donor=1, healed=(0,))


def test_nobody_takes_where_all_are_equal() -> None:
    assert plan_healing({0: at(3), 2: at(3)}) == HealingPlan(0, ())


def test_half_a_state_is_none() -> None:
    assert plan_healing({0: ReplicaStanding(9, whole=False), 1: at(5), 2: NEW}) == HealingPlan(
        1, (0, 2)
    )


def test_where_nobody_has_a_state_the_first_loads_it_for_all() -> None:
    assert plan_healing({1: NEW, 2: ReplicaStanding(9)}) == HealingPlan(1, (2,), load=True)


def test_a_run_that_has_passed_no_step_yet_has_a_state_all_the_same() -> None:
    assert plan_healing({0: NEW, 1: at(0)}) == HealingPlan(1, (0,))


@given(
    st.dictionaries(
        st.integers(0, 9), st.builds(ReplicaStanding, st.integers(0, 3), st.booleans()), min_size=1
    )
)
def test_after_healing_all_stand_where_the_furthest_stood(
    standings: dict[int, ReplicaStanding],
) -> None:
    found = plan_healing(standings)
    assert found.donor not in found.healed
    assert found.load == (not any(s.whole for s in standings.values()))
    step = standings[found.donor].step
    if not found.load:
        assert standings[found.donor].whole
        assert step == max(s.step for s in standings.values() if s.whole)
    for number in standings.keys() - set(found.healed) - {found.donor}:
        assert standings[number] == at(step)


def test_the_others_go_on_and_the_lost_one_is_started_and_taken_back() -> None:
    state = QuorumState.new(3, allowed=1)
    state, actions = decide(state, ReplicaLost(1, passed=True))
    assert actions == (FormGeneration(1, (0, 2)), StartReplica(1, 1))
    state, actions = decide(state, ReplicaReady(1, life=1))
    assert actions == (FormGeneration(2, (0, 1, 2)),)


def test_the_word_of_a_life_that_is_over_is_not_heard() -> None:
    state, _ = decide(QuorumState.new(2, allowed=3), ReplicaLost(0, passed=True))
    state, actions = decide(state, ReplicaLost(0))  # before it was ready
    assert actions == (StartReplica(0, 2),)
    assert decide(state, ReplicaReady(0, life=1)) == (state, ())
    assert decide(state, ReplicaReady(0, life=2))[1] == (FormGeneration(2, (0, 1)),)


def test_one_that_never_gets_anywhere_is_left_out() -> None:
    state = QuorumState.new(2, allowed=1)
    state, _ = decide(state, ReplicaLost(0, passed=True))
    state, actions = decide(state, ReplicaLost(0))
    assert actions == (StartReplica(0, 2),)
    state, actions = decide(state, ReplicaLost(0))
    assert actions == (LeaveOutReplica(0),)
    assert state.members == (1,)
    assert decide(state, ReplicaLost(0)) == (state, ())


def test_a_life_that_passed_a_step_counts_anew() -> None:
    state = QuorumState.new(2, allowed=1)
    for _ in range(5):
        state, _ = decide(state, ReplicaLost(0, passed=True))
        state, actions = decide(state, ReplicaLost(0))
        assert isinstance(actions[0], StartReplica)
        state, _ = decide(state, ReplicaReady(0, state.replicas[0].life))


def test_without_a_member_the_attempt_is_over() -> None:
    state, _ = decide(QuorumState.new(2, allowed=9), ReplicaLost(0))
    state, actions = decide(state, ReplicaLost(1))
    assert isinstance(actions[0], EndAttempt)


def test_a_break_without_a_death_makes_a_new_generation_of_the_same() -> None:
    state = QuorumState.new(2, allowed=0)
    state, actions = decide(state, LinkBroken(0, step=4))
    assert actions == (FormGeneration(1, (0, 1)),)
    assert decide(state, LinkBroken(0, step=4)) == (state, ())  # the other one noticed it too


def test_breaks_are_bounded_while_nothing_moves() -> None:
    state = QuorumState.new(2, allowed=0)
    for number in range(BREAKS):
        state, actions = decide(state, LinkBroken(number, step=4))
        assert isinstance(actions[0], FormGeneration)
    assert isinstance(decide(state, LinkBroken(BREAKS, step=4))[1][0], EndAttempt)
    assert isinstance(decide(state, LinkBroken(BREAKS, step=5))[1][0], FormGeneration)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=20))
def test_generations_only_grow_and_hold_those_that_are_up(
    events: list[tuple[int, bool, bool]],
) -> None:
    state = QuorumState.new(3, allowed=2)
    for number, lost, passed in events:
        life = state.replicas[number].life
        event = ReplicaLost(number, passed) if lost else ReplicaReady(number, life)
        before = state.generation
        state, actions = decide(state, event)
        for action in actions:
            if isinstance(action, FormGeneration):
                assert action == FormGeneration(before + 1, state.members)
            if isinstance(action, EndAttempt):
                return
        assert all(state.replicas[n].up for n in state.members)
