"""Spans of energy: in order, filled, and divided without a joule made or lost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ledger.causes import Cause
from penstock.ledger.joules import EnergySpans, fill_gaps, joules_by_cause, spans_of_records
from penstock.ledger.journal.energy import EnergySource
from penstock.ledger.journal.records import ENERGY

EVEN = dict.fromkeys(Cause, 1.0)


def records(*rows: tuple[float, float, float, int]) -> np.ndarray:
    """(end, seconds, joules, source)."""
    made = np.zeros(len(rows), ENERGY)
    for record, (t, seconds, joules, source) in zip(made, rows, strict=True):
        record["t"], record["seconds"], record["joules"] = t, seconds, joules
        record["source"] = source
    return made


def steady(end: float, watts: float = 100.0, start: float = 0.0) -> EnergySpans:
    ends = np.arange(start + 2.0, end + 1e-9, 2.0)
    return EnergySpans(ends - 2, ends, np.full(len(ends), 2 * watts), np.ones(len(ends), bool))


def test_what_two_writers_counted_counts_once():
    one = records((2.0, 2.0, 200.0, 0), (4.0, 2.0, 200.0, 0))
    other = records((3.0, 2.0, 200.0, 0), (5.0, 2.0, 200.0, 0))
    both = spans_of_records(np.concatenate([one, other]))
    assert both.total_j == pytest.approx(500.0)
    assert both.seconds.sum() == pytest.approx(5.0)


def test_gaps_are_filled_at_the_mean_power_and_marked():
    spans = spans_of_records(records((2.0, 2.0, 200.0, 0), (10.0, 4.0, 400.0, 0)))
    whole = fill_gaps(spans, [(0.0, 12.0)], closed=[])
    assert whole.total_j == pytest.approx(1200.0), "4 s between, and 2 s behind"
    assert whole.measured_j == pytest.approx(600.0)


def test_behind_a_writer_that_closed_nothing_is_filled():
    spans = spans_of_records(records((10.0, 10.0, 1000.0, 0)))
    assert fill_gaps(spans, [(0.0, 12.0)], closed=[10.1]).total_j == pytest.approx(1000.0)
    # Closed once, and then opened and killed: the last word is not the first one.
    later = spans_of_records(records((10.0, 10.0, 1000.0, 0), (30.0, 10.0, 1000.0, 0)))
    windows = [(0.0, 10.2), (20.0, 40.0)]
    assert fill_gaps(later, windows, closed=[10.1]).total_j == pytest.approx(3000.0)


def test_a_node_that_is_gone_is_not_filled_for_ever():
    spans = spans_of_records(records((10.0, 10.0, 1000.0, 0)))
    assert fill_gaps(spans, [(0.0, 1e6)], closed=[]).total_j == pytest.approx(7000.0)


def test_what_was_never_read_stays_unknown():
    nan = float("nan")
    spans = spans_of_records(records((2.0, 2.0, nan, EnergySource.UNKNOWN)))
    assert not np.isfinite(fill_gaps(spans, [(0.0, 4.0)], []).joules).any()
    known = spans_of_records(records((2.0, 2.0, nan, EnergySource.UNKNOWN), (4.0, 2.0, 80.0, 0)))
    assert fill_gaps(known, [(0.0, 4.0)], [4.0]).total_j == pytest.approx(160.0)


def test_an_interval_goes_to_what_was_done_in_it():
    edges = np.array([0.0, 10.0, 20.0])
    done = np.zeros((3, len(Cause)))
    done[1:, list(Cause).index(Cause.STARTUP)] = 10.0
    done[2, list(Cause).index(Cause.COMPUTE)] = 10.0
    idle, busy = steady(10.0, 70.0), steady(20.0, 700.0, start=10.0)
    found = joules_by_cause(idle + busy, edges, done, EVEN)
    assert found[Cause.STARTUP] == pytest.approx(700.0)
    assert found[Cause.COMPUTE] == pytest.approx(7000.0)


def test_where_causes_mix_the_levels_decide():
    edges = np.array([0.0, 10.0])
    done = np.zeros((2, len(Cause)))
    done[1, list(Cause).index(Cause.COMPUTE)] = 5.0
    done[1, list(Cause).index(Cause.PEER_WAIT)] = 5.0
    found = joules_by_cause(steady(10.0), edges, done, EVEN | {Cause.COMPUTE: 3.0})
    assert found[Cause.COMPUTE] == pytest.approx(750.0)
    assert found[Cause.PEER_WAIT] == pytest.approx(250.0)


@settings(max_examples=60)
@given(
    spans=st.lists(
        st.tuples(st.floats(-5, 50), st.floats(0.01, 20), st.floats(0, 1e5)), max_size=20
    ),
    seconds=st.lists(st.lists(st.floats(0, 5), min_size=11, max_size=11), min_size=1, max_size=6),
    levels=st.lists(st.floats(0.1, 1000), min_size=11, max_size=11),
)
def test_the_causes_add_up_to_the_total(
    spans: list[tuple[float, float, float]], seconds: list[list[float]], levels: list[float]
):
    start, length, joules = (
        (np.array(column, float) for column in zip(*spans, strict=True))
        if (spans)
        else (np.empty(0),) * 3
    )
    made = EnergySpans(start, start + length, joules, np.ones(len(start), bool))
    done = np.vstack([np.zeros(11), np.cumsum(np.array(seconds), axis=0)])
    edges = np.linspace(0.0, 40.0, len(done))
    found = joules_by_cause(made, edges, done, dict(zip(Cause, levels, strict=True)))
    assert sum(found.values()) == pytest.approx(float(joules.sum()), abs=1e-6)
    assert min(found.values()) >= 0
