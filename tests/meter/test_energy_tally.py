"""Joules from counters that reset, wrap, stand still and vanish."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ledger.journal.energy import EnergySource
from penstock.meter.energy import GONE, DeviceReading, EnergyTally, Joules

POWER_W = 300.0
WRAP_J = 2000.0
FAULTS = ("reset", "away", "still", "not a number", "jump")


def collect(tally: EnergyTally, readings: list[tuple[float, DeviceReading]]) -> list[Joules]:
    return [spent for t, r in readings if (spent := tally.take(t, r)) is not None]


def test_a_counter_is_believed():
    tally = EnergyTally(0.0)
    spent = collect(
        tally, [(1.0, DeviceReading(5000.0, 90.0)), (3.0, DeviceReading(5700.0, 400.0))]
    )
    assert spent[0].counted is EnergySource.POWER, "the first reading has nothing to differ from"
    assert spent[0].joules == 90.0
    assert spent[1] == Joules(700.0, 2.0, EnergySource.COUNTER)


def test_a_counter_that_goes_back_is_filled_by_power():
    tally = EnergyTally(0.0)
    readings = [(2.0, DeviceReading(9000.0, 200.0)), (4.0, DeviceReading(10.0, 400.0))]
    _, after = collect(tally, readings)
    assert after.counted is EnergySource.POWER
    assert after.joules == 300.0 * 2
    assert "from 9000 to 10 J" in after.odd
    assert tally.take(6.0, DeviceReading(610.0, 300.0)) == Joules(600.0, 2.0, EnergySource.COUNTER)


def test_a_counter_that_wraps_is_believed():
    tally = EnergyTally(0.0, range_j=WRAP_J)
    _, after = collect(tally, [(2.0, DeviceReading(1900.0)), (4.0, DeviceReading(100.0))])
    assert after == Joules(200.0, 2.0, EnergySource.COUNTER)


def test_a_counter_that_stands_still_is_no_counter():
    tally = EnergyTally(0.0)
    _, after = collect(
        tally, [(2.0, DeviceReading(50.0, 100.0)), (4.0, DeviceReading(50.0, 100.0))]
    )
    assert (after.joules, after.counted) == (200.0, EnergySource.POWER)
    tally = EnergyTally(0.0)
    _, after = collect(tally, [(2.0, DeviceReading(50.0)), (4.0, DeviceReading(50.0))])
    assert math.isnan(after.joules), "never a silent zero"
    assert after.counted is EnergySource.UNKNOWN


def test_a_device_that_was_away_may_have_counted_on():
    tally = EnergyTally(0.0)
    collect(tally, [(2.0, DeviceReading(1000.0, 100.0)), (4.0, GONE), (6.0, GONE)])
    assert tally.take(8.0, DeviceReading(1600.0, 100.0)) == Joules(600.0, 6.0, EnergySource.COUNTER)


def test_a_device_that_never_came_back_is_filled_by_what_it_drew():
    tally = EnergyTally(0.0)
    collect(tally, [(2.0, DeviceReading(1000.0)), (4.0, DeviceReading(1500.0)), (6.0, GONE)])
    spent = tally.end(10.0)
    assert spent is not None
    assert (spent.joules, spent.seconds, spent.counted) == (250.0 * 6, 6.0, EnergySource.FILLED)


@pytest.mark.parametrize("watts", [math.nan, -1.0, math.inf])
def test_what_is_no_amount_is_not_known(watts: float):
    tally = EnergyTally(0.0)
    collect(tally, [(2.0, DeviceReading(1000.0, watts)), (4.0, DeviceReading(1100.0, watts))])
    spent = tally.take(6.0, DeviceReading(math.nan, 70.0))
    assert spent is not None
    assert (spent.joules, spent.counted) == (140.0, EnergySource.POWER)


@settings(max_examples=150)
@given(
    spans=st.lists(st.tuples(st.floats(1.0, 5.0), st.sampled_from(("", *FAULTS))), max_size=30),
    tells_power=st.booleans(),
    wraps=st.booleans(),
)
def test_steady_power_is_told_whatever_the_counter_does(
    spans: list[tuple[float, str]], tells_power: bool, wraps: bool
):
    """One good span, then any faults: the sum is power × time, and every second is in it."""
    watts = POWER_W if tells_power else None
    tally = EnergyTally(0.0, WRAP_J if wraps else None)
    counter = 0.0 if wraps else 1e6

    def told() -> float:
        return counter % WRAP_J if wraps else counter

    tally.take(1e-9, DeviceReading(told(), watts, limit_w=700.0))
    t, spent = 1e-9, []
    for seconds, fault in [(2.0, ""), *spans, (2.0, "")]:
        t += seconds
        counter += seconds * POWER_W
        if fault == "reset":
            counter = 0.0
        if fault == "jump":
            counter += 1e9
        if fault == "still":
            counter -= seconds * POWER_W
        joules = {"away": None, "not a number": math.nan}.get(fault, told())
        known = DeviceReading(joules, None if fault == "away" else watts, 700.0)
        if (one := tally.take(t, known)) is not None:
            spent.append(one)
    last = tally.end(t)
    spent += [last] if last else []
    assert all(one.joules >= 0 for one in spent)
    assert sum(one.seconds for one in spent) == pytest.approx(t, rel=1e-6)
    faults = {fault for _, fault in spans}
    # Nobody can tell a reset from a wrap, nor a pause of the counter while the device was away.
    if not (wraps and faults & {"reset", "jump", "still"}) and not (
        "still" in faults and faults & {"away", "not a number"}
    ):
        assert sum(one.joules for one in spent) == pytest.approx(POWER_W * t, rel=1e-6)
