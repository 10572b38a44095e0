"""The drill's own clock, on lives that are written down by hand and on drawn ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.drill.clock import AttemptBeats, PhaseBeat, account, agree, next_new_step

STEP = ("fetch", "forward", "reduce", "vote", "voted", "update", "updated")


def lived(start: float, resumed: int, last: int, save: int = 0) -> list[PhaseBeat]:
    """Ready 1 s after its start; steps of 0.7 s, and 0.5 s for a copy after every `save`th."""
    beats = [PhaseBeat(0, "start", start), PhaseBeat(resumed, "ready", start + 1.0)]
    t = start + 1.0
    for step in range(resumed + 1, last + 1):
        for phase in STEP:
            beats.append(PhaseBeat(step, phase, t))
            t += 0.1
        if save and step % save == 0:
            beats.append(PhaseBeat(step, "stage", t))
            t += 0.5
    return [*beats, PhaseBeat(last, "end", t)]


def cut(beats: list[PhaseBeat], at: float) -> list[PhaseBeat]:
    return [beat for beat in beats if beat.t <= at]


def test_a_calm_run_has_only_its_saves() -> None:
    spent = account([AttemptBeats({0: lived(0.0, 0, 6, save=3), 1: lived(0.0, 0, 6, save=3)})])
    assert (spent.down, spent.redo, spent.redone) == (0.0, 0.0, 0)
    assert spent.checkpoint == pytest.approx(4 * 0.5)
    assert spent.highest == 6


def test_a_kill_costs_the_step_it_fell_into_the_way_back_and_what_is_redone() -> None:
    whole = lived(0.0, 0, 9, save=3)
    died = 1.0 + 5 * 0.7 + 0.5 + 0.3  # in step 6, after the copy of step 3
    first = AttemptBeats({0: cut(whole, died), 1: cut(whole, died)}, died)
    second = lived(died + 2.0, 3, 9)
    spent = account([first, AttemptBeats({0: second, 1: second}, opens=False)])
    assert spent.down == pytest.approx(2 * 3.0)
    assert spent.redo == pytest.approx(2 * (0.3 + 2 * 0.7))
    assert spent.redone == 2
    assert spent.highest == 9
    lives = [first, AttemptBeats({0: second, 1: second}, opens=False)]
    assert next_new_step(lives, 0, died) == pytest.approx(died + 3.0 + 3 * 0.7)


def test_a_rank_that_is_killed_before_it_is_ready_was_down_until_then() -> None:
    first = AttemptBeats({0: cut(lived(0.0, 0, 4), 2.2)}, 2.2)
    second = AttemptBeats({0: [PhaseBeat(0, "start", 2.5)]}, died=3.0, opens=False)
    third = AttemptBeats({0: lived(3.5, 0, 4)}, opens=False)
    spent = account([first, second, third])
    assert spent.down == pytest.approx((3.0 - 2.2) + (4.5 - 3.0))


def test_what_follows_a_killed_supervisor_is_a_start_and_not_down() -> None:
    first = AttemptBeats({0: cut(lived(0.0, 0, 4), 3.0)}, 3.0, cut=True)
    spent = account([first, AttemptBeats({0: lived(10.0, 0, 4)})])
    assert spent.down == 0.0
    assert spent.redo == pytest.approx(2 * 0.7)  # the two steps that had been done
    assert spent.redone == 2


def test_a_rollback_in_one_life_is_redone_too() -> None:
    first, again = lived(0.0, 0, 5)[:-1], lived(20.0, 3, 8)[2:]
    shift = first[-1].t + 0.1 - again[0].t
    again = [PhaseBeat(beat.step, beat.phase, beat.t + shift) for beat in again]
    spent = account([AttemptBeats({0: [*first, *again]})])
    assert spent.redo == pytest.approx(2 * 0.7)


@given(st.lists(st.tuples(st.integers(0, 8), st.floats(1.1, 8.0), st.floats(0.1, 3.0)), max_size=4))
@settings(max_examples=80, deadline=None)
def test_what_is_lost_is_never_more_than_the_time_there_was(
    faults: list[tuple[int, float, float]],
) -> None:
    lives, t, resumed = [], 0.0, 0
    for _, lasted, pause in faults:
        beats = lived(t, resumed, 12, save=3)
        died = t + lasted
        lives.append(AttemptBeats({0: cut(beats, died)}, died, opens=not lives))
        t = died + pause
    lives.append(AttemptBeats({0: lived(t, 0, 12, save=3)}, opens=not lives))
    spent = account(lives)
    assert spent.highest == 12
    assert spent.down >= 0
    assert spent.redo >= 0
    assert spent.down + spent.redo + spent.checkpoint <= lives[-1].beats[0][-1].t + 1e-9


def test_ledger_and_clock_agree_within_five_per_cent_or_what_cannot_be_told_apart() -> None:
    assert agree(10.4, 10.0, slack_s=0.1)
    assert not agree(10.6, 10.0, slack_s=0.1)
    assert agree(0.1, 0.0, slack_s=0.1)
    assert not agree(0.5, 0.0, slack_s=0.1)


def test_a_rank_that_is_replaced_while_the_other_goes_on() -> None:
    whole = lived(0.0, 0, 9)
    died = 1.0 + 2 * 0.7 + 0.3  # in step 3
    stays = cut(whole, died)
    noticed = died + 0.1
    stays += [PhaseBeat(2, "regroup", noticed), PhaseBeat(2, "heal", noticed + 0.2)]
    rest = lived(0.0, 2, 9)[2:]
    shift = noticed + 0.5 - rest[0].t
    stays += [PhaseBeat(beat.step, beat.phase, beat.t + shift) for beat in rest]
    comes = lived(died + 1.0, 6, 9)  # ready 2 s after its death
    beats = {0: stays, 1: [*cut(whole, died), *comes]}
    spent = account([AttemptBeats(beats, losses={1: [died]})])
    assert spent.redo == pytest.approx(0.4 + 0.3)  # of the one that stays, and of the lost one
    assert spent.down == pytest.approx(0.5 + 2.0)
    assert spent.redone == 0
    assert spent.highest == 9
    new = next_new_step([AttemptBeats(beats, losses={1: [died]})], 0, died)
    assert new == pytest.approx(noticed + 0.5 + 0.7)


def test_a_rank_that_does_not_come_back_is_down_to_the_end() -> None:
    whole = lived(0.0, 0, 9)
    spent = account([AttemptBeats({0: whole, 1: cut(whole, 3.0)}, losses={1: [3.0]})])
    assert spent.down == pytest.approx(whole[-1].t - 3.0)


def test_a_rollback_is_down_while_it_loads() -> None:
    first, again = lived(0.0, 0, 5)[:-1], lived(20.0, 3, 8)[2:]
    loads = PhaseBeat(0, "load", first[-1].t + 0.1)
    shift = loads.t + 0.4 - again[0].t
    again = [PhaseBeat(beat.step, beat.phase, beat.t + shift) for beat in again]
    spent = account([AttemptBeats({0: [*first, loads, *again]})])
    assert spent.down == pytest.approx(0.4)
    assert spent.redo == pytest.approx(2 * 0.7)
    assert spent.redone == 2


def test_a_step_that_a_peer_finished_after_the_blow_is_made_again_too() -> None:
    whole = lived(0.0, 0, 4)
    died = 1.0 + 2 * 0.7 - 0.05  # after the update of step 2, of which one rank still goes on
    first = AttemptBeats({0: whole[: 2 + 2 * 7 + 1], 1: cut(whole, died)}, died)
    second = lived(5.0, 0, 4)
    spent = account([first, AttemptBeats({0: second, 1: second}, opens=False)])
    assert spent.redone == 2
    lost = 0.7 - 0.05  # of the one that died; the other's step was made, and is made again
    assert spent.redo == pytest.approx(lost + 2 * 2 * 0.7)
    lives = [first, AttemptBeats({0: second, 1: second}, opens=False)]
    new = next_new_step(lives, 0, died)  # not step 2, which was lost in the end
    assert new == pytest.approx(5.0 + 1.0 + 3 * 0.7)
