"""The rule for spot and on-demand: never late where on-demand alone is in time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.policy.spot import (
    LEAST_S,
    UNKNOWN,
    RentState,
    RentTerms,
    SpotHistory,
    choose_capacity,
    next_look_s,
)
from penstock.simulate.rent.hindsight import cheapest
from penstock.simulate.rent.play import play, spot_alone

HOUR_S = 3600.0
UNIT_S = 360.0
lengths = st.floats(1.0, 40e3)
spans = st.lists(st.tuples(lengths, lengths), max_size=12).map(lambda found: _spans(found))
histories = st.builds(SpotHistory, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 50))


def _spans(found: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return spans from the times away and there, one after the other."""
    ends = np.cumsum(np.array(found).reshape(-1)).tolist()
    return list(zip(ends[::2], ends[1::2], strict=True))


def terms(restart: float = 2, ratio: float = 3.0) -> RentTerms:
    return RentTerms(restart * UNIT_S, ratio)


@given(
    spans,
    st.floats(60, 2e5),
    st.floats(0, 2e5),
    st.floats(0, 7200),
    st.floats(0.5, 10),
    histories,
)
def test_it_is_never_late_where_on_demand_is_in_time(there, work, slack, restart, ratio, history):
    by = work + restart + slack  # on-demand from the start would need work + restart
    found = play(there, work, by, RentTerms(restart, ratio), history=history)
    assert found.done
    assert found.end_s <= by
    # Each start takes a restart, or less where the capacity is taken back before it is over.
    paid = found.spot_s + found.on_demand_s
    assert work - 1 <= paid <= work + found.starts * restart + 1


@given(spans, st.floats(60, 2e5), st.floats(0, 2e5), st.floats(0, 7200), st.floats(1.01, 10))
def test_hindsight_is_never_dearer(there, work, slack, restart, ratio):
    by, asked = work + restart + slack, RentTerms(restart, ratio)
    best = cheapest(there, work, by, asked)
    assert best is not None
    assert best <= play(there, work, by, asked).cost(ratio) + ratio
    assert best <= ratio * (work + restart) + LEAST_S


def test_hindsight_by_hand():
    one = RentTerms(1.0, 3.0)
    # Restart 1, work 3: four seconds of spot suffice, or two spans with a restart each.
    assert cheapest([(0.0, 4.0)], 3, 4, one) == pytest.approx(4)
    assert cheapest([(0.0, 2.0), (3.0, 6.0)], 3, 6, one) == pytest.approx(5)
    assert cheapest([], 3, 4, one) == pytest.approx(12)
    assert cheapest([(0.0, 4.0)], 4, 4, one) is None
    # Spot of 2.5 with a restart brings 1.5; the rest on-demand before it, with a restart.
    assert cheapest([(2.5, 5.0)], 3, 5, one) == pytest.approx(2.5 + 3 * 2.5)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 12)), min_size=1, max_size=10),
    st.integers(1, 25),
    st.integers(0, 40),
    st.integers(0, 4),
    st.sampled_from([1.2, 2.0, 3.0, 5.0]),
)
def test_hindsight_is_that_of_a_dynamic_programme(runs, work, slack, restart, ratio):
    """Where all times are whole, a programme in ticks of one is exact too."""
    there = [up for up, length in runs for _ in range(length)]
    edges = np.flatnonzero(np.diff([False, *there, False])).astype(float).tolist()
    found = cheapest(
        list(zip(edges[::2], edges[1::2], strict=True)),
        work,
        work + restart + slack,
        RentTerms(restart, ratio),
    )
    assert found == pytest.approx(_by_ticks(there, work, work + restart + slack, restart, ratio))


def _by_ticks(there: list[bool], work: int, by: int, restart: int, ratio: float) -> float:
    """Go back from the deadline; rows wait, or use spot or on-demand with restart to come."""
    far = np.full(work + 1, np.inf)
    far[0] = 0.0
    wait, using = far, [[far] * (restart + 1)] * 2
    for tick in reversed(range(by)):
        spent = []
        for price, row in ((1.0, using[0]), (ratio, using[1])):
            if price == 1.0 and not (tick < len(there) and there[tick]):
                spent.append([np.full(work + 1, np.inf)] * (restart + 1))
                continue
            moved = np.concatenate([[0.0], price + row[0][:-1]])
            spent.append([moved, *(price + row[warm - 1] for warm in range(1, restart + 1))])
        wait = np.minimum(wait, np.minimum(spent[0][restart], spent[1][restart]))
        using = [[np.minimum(one, wait) for one in row] for row in spent]
        for row in (wait, *using[0], *using[1]):
            row[0] = 0.0
    return float(wait[work])


@given(
    spans,
    st.floats(3600, 2e5),
    st.floats(0, 2e5),
    st.floats(0, 7200),
    st.floats(1.01, 10),
    histories,
    st.integers(0, 2**32),
)
# The spot to be expected is just enough, and a moment later it is not.
@example([], 3600.0, 1.0, 0.0, 2.0, SpotHistory(3600.0, 1.0, 0.0), 0)
def test_no_choice_changes_between_two_looks(there, work, slack, restart, ratio, history, seed):
    """Asked at random moments in between, the rule says what it said."""
    luck, asked = np.random.default_rng(seed), RentTerms(restart, ratio)
    pending: list[tuple[RentState, str]] = []

    def watched(state: RentState, own: RentTerms) -> str:
        chosen = choose_capacity(state, own)
        if chosen != "spot" and len(pending) < 30:
            pending.append((state, chosen))
        return chosen

    play(there, work, work + restart + slack, asked, watched, history)
    for state, chosen in pending:
        warm_s = restart if chosen != state.on else state.warm_s
        on = replace(state, on=chosen, warm_s=warm_s if chosen == "on-demand" else 0.0)
        upto_s = min(next_look_s(on, asked), on.warm_s + on.work_s, 1e6)
        step_s = upto_s * luck.uniform(0, 1 - 1e-9)
        if upto_s - step_s < 2 * LEAST_S:
            continue
        done_s = max(step_s - on.warm_s, 0.0) if chosen == "on-demand" else 0.0
        later = RentState(
            state.work_s - done_s,
            state.left_s - step_s,
            chosen,
            state.spot,
            state.history.seen(state.spot, step_s),
            state.lasted_s + step_s,
        )
        if chosen == "on-demand" and not state.spot:
            continue  # it stays on it until spot comes back
        assert choose_capacity(later, asked) == chosen


def test_spot_that_stays_costs_spot_alone():
    found = play([(0.0, 1e6)], 20 * UNIT_S, 40 * UNIT_S, terms())
    assert (found.spot_s, found.on_demand_s, found.end_s) == (22 * UNIT_S, 0, 22 * UNIT_S)
    assert (found.starts, found.switched_at_s) == (1, None)


def test_it_switches_at_the_last_moment_when_spot_was_expected():
    # Work 20 and restart 2: on-demand has to begin 22 before the end. From 24 before it, spot could
    # not be left again, so that nothing is won by waiting on.
    often = SpotHistory(1e9, 1e5, 10)
    found = play([], 20 * UNIT_S, 100 * UNIT_S, terms(), history=often)
    assert found.switched_at_s == pytest.approx(76 * UNIT_S, abs=2 * LEAST_S)
    assert (found.end_s, found.starts) == (pytest.approx(98 * UNIT_S), 1)


def test_spot_alone_by_hand():
    there = [(5.0, 12.0), (20.0, 60.0), (70.0, 200.0)]
    found = play(there, 50.0, 1000.0, RentTerms(10.0, 1.0), spot_alone)
    # 7 s are no restart, 40 s bring 30, then a restart and the last 20.
    assert (found.end_s, found.spot_s, found.starts, found.done) == (100.0, 77.0, 3, True)
    given_up = play(there, 500.0, 1000.0, RentTerms(10.0, 1.0), spot_alone)
    assert (given_up.end_s, given_up.done) == (1000.0, False)


def test_capacity_that_moves_starts_anew():
    # Two spans touch: other capacity takes over at once, with a restart.
    found = play([(0.0, 40.0), (40.0, 200.0)], 50.0, 1000.0, RentTerms(10.0, 1.0), spot_alone)
    assert (found.end_s, found.starts) == (70.0, 2)


@pytest.mark.parametrize(
    ("work", "left", "on", "spot", "ratio", "expected"),
    [
        (10, 100, "wait", True, 3.0, "spot"),
        (10, 100, "wait", False, 3.0, "wait"),
        (90, 100, "wait", False, 3.0, "on-demand"),  # spot cannot do it all: use the gap
        (10, 12, "spot", True, 3.0, "on-demand"),  # no time is left to lose
        (10, 13, "spot", True, 3.0, "spot"),
        (10, 13, "wait", True, 3.0, "on-demand"),  # a restart on spot would leave no time for work
        (50, 100, "on-demand", True, 3.0, "spot"),
        (50, 100, "on-demand", True, 1.02, "on-demand"),  # two restarts cost more than it saves
        (10, 100, "wait", True, 1.0, "on-demand"),  # spot is not cheaper
    ],
)
def test_choices(work, left, on, spot, ratio, expected):
    state = RentState(work * UNIT_S, left * UNIT_S, on, spot, UNKNOWN, 2 * UNIT_S)
    assert choose_capacity(state, terms(2, ratio)) == expected


@pytest.mark.parametrize(("on", "spot"), [("wait", False), ("on-demand", True)])
def test_a_change_waits_until_spot_has_settled(on, spot):
    work = 90 if on == "wait" else 50
    state = RentState(work * UNIT_S, 100 * UNIT_S, on, spot, UNKNOWN, UNIT_S)
    assert choose_capacity(state, terms(2)) == on
    longer = replace(state, lasted_s=2 * UNIT_S)
    assert choose_capacity(longer, terms(2)) == ("on-demand" if on == "wait" else "spot")


def test_short_stretches_are_left_where_time_is_scarce():
    # Three cycles of 8 h there and an hour away are to come, and each trip takes two restarts.
    known = SpotHistory(8 * HOUR_S, HOUR_S, 1.0)
    for slack_h, settled_h in ((6, 0.5), (1, 1.5)):
        left_s = 27 * HOUR_S
        work_s = left_s - (slack_h + 0.5) * HOUR_S
        asked = RentTerms(0.5 * HOUR_S, 3.0)
        for lasted_h, expected in ((settled_h - 0.1, "on-demand"), (settled_h + 0.1, "spot")):
            state = RentState(work_s, left_s, "on-demand", True, known, lasted_h * HOUR_S)
            assert choose_capacity(state, asked) == expected


def test_long_restarts_leave_gaps_empty():
    # There half of the time, an hour at a stretch: gaps pay with a restart of 6 min, not of 48.
    often = SpotHistory(12 * 3600.0, 12 * 3600.0, 12.0)
    for restart, expected in ((1, "on-demand"), (8, "wait")):
        state = RentState(90 * UNIT_S, 110 * UNIT_S, "wait", False, often, 8 * UNIT_S)
        assert choose_capacity(state, terms(restart)) == expected
