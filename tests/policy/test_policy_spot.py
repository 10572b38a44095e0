"""The rule for spot and on-demand: never late where on-demand alone is in time."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.spot import UNKNOWN, RentState, RentTerms, SpotHistory, choose_capacity
from penstock.simulate.rent.play import cheapest, play

TICK_S = 360.0
traces = st.lists(st.booleans(), max_size=120) | st.lists(
    st.tuples(st.booleans(), st.integers(1, 30)), max_size=12
).map(lambda runs: [up for up, length in runs for _ in range(length)])


def terms(restart: int = 2, ratio: float = 3.0) -> RentTerms:
    return RentTerms(restart * TICK_S, TICK_S, ratio)


@given(
    traces,
    st.integers(1, 60),
    st.integers(0, 60),
    st.integers(0, 5),
    st.floats(0.5, 10),
    st.builds(SpotHistory, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 50)),
)
def test_it_is_never_late_where_on_demand_is_in_time(trace, work, slack, restart, ratio, history):
    deadline = work + restart + slack  # on-demand from the start would need work + restart
    found = play(trace, work, deadline, terms(restart, ratio), history=history)
    assert found.done
    assert found.ticks <= deadline


@given(traces, st.integers(1, 40), st.integers(0, 60), st.integers(0, 3))
def test_hindsight_is_never_dearer(trace, work, slack, restart):
    deadline = work + restart + slack
    best = cheapest(trace, work, deadline, terms(restart))
    assert best is not None
    assert best <= play(trace, work, deadline, terms(restart)).cost(3.0)
    assert best <= 3.0 * (work + restart)


def test_hindsight_by_hand():
    # Restart 1, work 3: four ticks of spot suffice, or two stretches with a restart each.
    assert cheapest([True] * 4, 3, 4, terms(1)) == 4
    assert cheapest([True, True, False, True, True, True], 3, 6, terms(1)) == 5
    assert cheapest([False] * 4, 3, 4, terms(1)) == 12
    assert cheapest([True] * 4, 4, 4, terms(1)) is None


def test_spot_that_stays_costs_spot_alone():
    found = play([True] * 50, 20, 40, terms())
    assert (found.spot_ticks, found.on_demand_ticks, found.ticks) == (22, 0, 22)


def test_it_switches_at_the_last_moment_when_spot_was_expected():
    # Work 20 and restart 2: on-demand has to begin 22 ticks before the end, at tick 78.
    often = SpotHistory(1e6, 1e5, 10)
    found = play([False] * 100, 20, 100, terms(), history=often)
    assert (found.switched_at, found.ticks) == (78, 100)


@pytest.mark.parametrize(
    ("work", "left", "on", "spot", "ratio", "expected"),
    [
        (10, 100, "wait", True, 3.0, "spot"),
        (10, 100, "wait", False, 3.0, "wait"),
        (90, 100, "wait", False, 3.0, "on-demand"),  # spot cannot do it all: use the gap
        (10, 12, "spot", True, 3.0, "on-demand"),  # a lost tick would make it late
        (10, 13, "spot", True, 3.0, "spot"),
        (50, 100, "on-demand", True, 3.0, "spot"),
        (50, 100, "on-demand", True, 1.02, "on-demand"),  # two restarts cost more than it saves
        (10, 100, "wait", True, 1.0, "on-demand"),  # spot is not cheaper
    ],
)
def test_choices(work, left, on, spot, ratio, expected):
    state = RentState(work * TICK_S, left * TICK_S, on, spot, UNKNOWN, 2 * TICK_S)
    assert choose_capacity(state, terms(2, ratio)) == expected


@pytest.mark.parametrize(("on", "spot"), [("wait", False), ("on-demand", True)])
def test_a_change_waits_until_spot_has_settled(on, spot):
    work = 90 if on == "wait" else 50
    state = RentState(work * TICK_S, 100 * TICK_S, on, spot, UNKNOWN, TICK_S)
    assert choose_capacity(state, terms(2)) == on
    longer = replace(state, lasted_s=2 * TICK_S)
    assert choose_capacity(longer, terms(2)) == ("on-demand" if on == "wait" else "spot")


def test_long_restarts_leave_gaps_empty():
    # There half of the time, an hour at a stretch: gaps pay with a restart of 6 min, not of 48.
    often = SpotHistory(12 * 3600.0, 12 * 3600.0, 12.0)
    for restart, expected in ((1, "on-demand"), (8, "wait")):
        state = RentState(90 * TICK_S, 110 * TICK_S, "wait", False, often, 8 * TICK_S)
        assert choose_capacity(state, terms(restart)) == expected
