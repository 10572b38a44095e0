"""Live mode's decisions, without processes."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.quorum import (
    BREAKS,
    Broken,
    End,
    Form,
    Healing,
    LeaveOut,
    Lost,
    Ready,
    Standing,
    Start,
    State,
    decide,
    healing,
)

NEW = Standing()


def at(step: int) -> Standing:
    return Standing(step, whole=True)


def test_the_furthest_gives_and_who_is_behind_takes() -> None:
    assert healing({0: at(7), 1: at(8), 2: at(8)}) == Healing(donor=1, healed=(0,))


def test_nobody_takes_where_all_are_equal() -> None:
    assert healing({0: at(3), 2: at(3)}) == Healing(0, ())


def test_half_a_state_is_none() -> None:
    assert healing({0: Standing(9, whole=False), 1: at(5), 2: NEW}) == Healing(1, (0, 2))


def test_where_nobody_has_a_state_the_first_loads_it_for_all() -> None:
    assert healing({1: NEW, 2: Standing(9)}) == Healing(1, (2,), load=True)


def test_a_run_that_has_passed_no_step_yet_has_a_state_all_the_same() -> None:
    assert healing({0: NEW, 1: at(0)}) == Healing(1, (0,))


@given(
    st.dictionaries(
        st.integers(0, 9), st.builds(Standing, st.integers(0, 3), st.booleans()), min_size=1
    )
)
def test_after_healing_all_stand_where_the_furthest_stood(standings: dict[int, Standing]) -> None:
    found = healing(standings)
    assert found.donor not in found.healed
    assert found.load == (not any(s.whole for s in standings.values()))
    step = standings[found.donor].step
    if not found.load:
        assert standings[found.donor].whole
        assert step == max(s.step for s in standings.values() if s.whole)
    for number in standings.keys() - set(found.healed) - {found.donor}:
        assert standings[number] == at(step)


def test_the_others_go_on_and_the_lost_one_is_started_and_taken_back() -> None:
    state = State.new(3, allowed=1)
    state, actions = decide(state, Lost(1, passed=True))
    assert actions == (Form(1, (0, 2)), Start(1, 1))
    state, actions = decide(state, Ready(1, life=1))
    assert actions == (Form(2, (0, 1, 2)),)


def test_the_word_of_a_life_that_is_over_is_not_heard() -> None:
    state, _ = decide(State.new(2, allowed=3), Lost(0, passed=True))
    state, actions = decide(state, Lost(0))  # before it was ready
    assert actions == (Start(0, 2),)
    assert decide(state, Ready(0, life=1)) == (state, ())
    assert decide(state, Ready(0, life=2))[1] == (Form(2, (0, 1)),)


def test_one_that_never_gets_anywhere_is_left_out() -> None:
    state = State.new(2, allowed=1)
    state, _ = decide(state, Lost(0, passed=True))
    state, actions = decide(state, Lost(0))
    assert actions == (Start(0, 2),)
    state, actions = decide(state, Lost(0))
    assert actions == (LeaveOut(0),)
    assert state.members == (1,)
    assert decide(state, Lost(0)) == (state, ())


def test_a_life_that_passed_a_step_counts_anew() -> None:
    state = State.new(2, allowed=1)
    for _ in range(5):
        state, _ = decide(state, Lost(0, passed=True))
        state, actions = decide(state, Lost(0))
        assert isinstance(actions[0], Start)
        state, _ = decide(state, Ready(0, state.replicas[0].life))


def test_without_a_member_the_attempt_is_over() -> None:
    state, _ = decide(State.new(2, allowed=9), Lost(0))
    state, actions = decide(state, Lost(1))
    assert isinstance(actions[0], End)


def test_a_break_without_a_death_makes_a_new_generation_of_the_same() -> None:
    state = State.new(2, allowed=0)
    state, actions = decide(state, Broken(0, step=4))
    assert actions == (Form(1, (0, 1)),)
    assert decide(state, Broken(0, step=4)) == (state, ())  # the other one noticed it too


def test_breaks_are_bounded_while_nothing_moves() -> None:
    state = State.new(2, allowed=0)
    for number in range(BREAKS):
        state, actions = decide(state, Broken(number, step=4))
        assert isinstance(actions[0], Form)
    assert isinstance(decide(state, Broken(BREAKS, step=4))[1][0], End)
    assert isinstance(decide(state, Broken(BREAKS, step=5))[1][0], Form)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=20))
def test_generations_only_grow_and_hold_those_that_are_up(
    events: list[tuple[int, bool, bool]],
) -> None:
    state = State.new(3, allowed=2)
    for number, lost, passed in events:
        life = state.replicas[number].life
        event = Lost(number, passed) if lost else Ready(number, life)
        before = state.generation
        state, actions = decide(state, event)
        for action in actions:
            if isinstance(action, Form):
                assert action == Form(before + 1, state.members)
            if isinstance(action, End):
                return
        assert all(state.replicas[n].up for n in state.members)
