"""Rounds: when replicas agree, and when the parts of the model leave and arrive."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.rounds import Rounds


@st.composite
def calendars(draw: st.DrawFn) -> Rounds:
    length = draw(st.integers(1, 12))
    return Rounds(draw(st.integers(length, 60)), length, draw(st.integers(1, length)))


@given(calendars())
def test_a_round_ends_every_so_many_steps_and_with_the_run(rounds: Rounds) -> None:
    ends = [step for step in range(1, rounds.steps + 1) if rounds.ends(step)]
    assert ends[-1] == rounds.steps
    last = 0
    for step in ends:
        assert step - last == rounds.length or step == rounds.steps
        for inner in range(last + 1, step + 1):
            assert rounds.before(inner) == last
        last = step


@given(calendars())
def test_every_part_leaves_once_a_round_and_arrives_before_it_leaves_again(rounds: Rounds) -> None:
    flying: dict[int, int] = {}
    left: dict[int, list[int]] = {part: [] for part in range(rounds.parts)}
    for step in range(1, rounds.steps + 1):
        for part in rounds.arriving(step):
            if part in flying:
                late = step - flying.pop(part)
                assert late == rounds.late_steps or step == rounds.steps
                assert late <= rounds.length // 2 or rounds.parts == 1
        for part in rounds.leaving(step):
            assert part not in flying
            flying[part] = step
            left[part].append(step)
        if not rounds.late_steps:
            flying.clear()
    assert all(step == rounds.steps for step in flying.values())  # sent last, and waited for
    for steps in left.values():
        assert steps[-1] == rounds.steps
        regular = [step for step in steps if step < rounds.steps]
        assert all(b - a == rounds.length for a, b in pairwise(regular))


@given(calendars())
def test_of_several_parts_one_leaves_at_a_time(rounds: Rounds) -> None:
    for step in range(1, rounds.steps):
        assert len(list(rounds.leaving(step))) <= 1


def test_plain_training_is_rounds_of_one_step() -> None:
    rounds = Rounds(3)
    assert [rounds.ends(step) for step in (1, 2, 3)] == [True] * 3
    assert [rounds.before(step) for step in (1, 2, 3)] == [0, 1, 2]
