"""Power: the constants are what the metered nodes say, and a stall is never free."""

from math import isclose
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_plans as made
from penstock.catalog import power as metered
from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger
from penstock.plan import power
from penstock.plan.machine import of_catalog

ROWS = metered.all()
TDP_W, PER_NODE, RATED_W = 700.0, 8, 10_200.0


def node_w(busy: float) -> float:
    """The model's draw of one immersed node, whose meter does not see the switches."""
    step = made.step(matmul=busy, gather=1 - busy) if busy < 1 else made.step()
    draw = power.draw(of_catalog("H100", PER_NODE), step, cooling="immersion")
    assert draw is not None
    per_s = {Cause(name): s / step.step_s for name, s in step.causes.items()}
    return PER_NODE * sum(share * draw.by_cause[cause] for cause, share in per_s.items())


def fit(rows: list[metered.MeteredRun]) -> tuple[float, float]:
    """Watts of a waiting node, and what being busy adds: least squares of relative errors."""
    a = [1 / r.node_w for r in rows]
    b = [r.busy / r.node_w for r in rows]
    aa, ab, bb = (
        sum(x * y for x, y in zip(p, q, strict=True)) for p, q in ((a, a), (a, b), (b, b))
    )
    det = aa * bb - ab * ab
    return (sum(a) * bb - sum(b) * ab) / det, (aa * sum(b) - ab * sum(a)) / det


def test_the_constants_are_the_fit_of_the_metered_rows() -> None:
    waiting, more = fit([row for row in ROWS if row.whole])
    assert node_w(0.0) == pytest.approx(waiting, rel=0.002)
    assert node_w(1.0) == pytest.approx(waiting + more, rel=0.002)


def test_errors_are_as_the_module_says_and_below_both_simple_rules() -> None:
    fitted = [abs(node_w(r.busy) / r.node_w - 1) for r in ROWS if r.whole]
    every = [abs(node_w(r.busy) / r.node_w - 1) for r in ROWS]
    assert fmean(fitted) == pytest.approx(0.011, abs=0.001)
    assert fmean(every) == pytest.approx(0.029, abs=0.001)
    tdp = fmean(abs(TDP_W * PER_NODE / r.node_w - 1) for r in ROWS)
    rated = fmean(abs(RATED_W / r.node_w - 1) for r in ROWS)
    assert fmean(every) < tdp < rated
    assert tdp == pytest.approx(0.15, abs=0.01)
    assert rated == pytest.approx(0.60, abs=0.01)


def test_each_row_left_out_is_predicted_by_the_others() -> None:
    rows = [row for row in ROWS if row.whole]
    errors = []
    for out in rows:
        waiting, more = fit([row for row in rows if row is not out])
        errors.append(abs((waiting + more * out.busy) / out.node_w - 1))
    assert fmean(errors) == pytest.approx(0.014, abs=0.001)


@given(st.floats(50, 2000), st.sampled_from([1, 8, 64]), st.floats(0.01, 10), st.floats(0.01, 10))
@settings(deadline=None, max_examples=40)
def test_a_stall_burns_power_and_work_burns_more(
    tdp_w: float, count: int, busy_s: float, wait_s: float
) -> None:
    draw = power.draw(made.machine(count, tdp_w=tdp_w), made.step(matmul=busy_s, gather=wait_s))
    assert draw is not None
    watts = draw.by_cause
    assert 0 < watts[Cause.DOWN] < watts[Cause.COMMUNICATE] < watts[Cause.COMPUTE]
    assert watts[Cause.COMMUNICATE] <= watts[Cause.REDO] <= watts[Cause.COMPUTE]
    assert set(watts) == set(Cause)


def test_joules_are_watts_times_seconds_by_cause() -> None:
    draw = power.draw(made.machine(), made.step())
    assert draw is not None
    ledger = power.with_joules(Ledger.of(compute=100.0, down=10.0), draw)
    assert ledger.joules is not None
    assert isclose(ledger.joules[Cause.COMPUTE], 100 * draw.by_cause[Cause.COMPUTE])
    assert isclose(ledger.joules[Cause.DOWN], 10 * draw.by_cause[Cause.DOWN])
    assert ledger.joules[Cause.BUBBLE] == 0
    assert ledger.provenance["joules"].source == "estimated"


def test_what_the_machine_says_of_itself_wins() -> None:
    given_ = power.draw(made.machine(host_w=800.0, idle_w=50.0), made.step())
    assert given_ is not None
    assert given_.by_cause[Cause.DOWN] == pytest.approx(50 + 100)  # its fans are in it
    usual = power.draw(made.machine(), made.step())
    assert usual is not None
    assert usual.by_cause[Cause.DOWN] == pytest.approx((70 + 225) * 1.15)


def test_switches_are_counted_where_there_are_several_nodes() -> None:
    one, two = (power.draw(made.machine(n), made.step()) for n in (8, 16))
    assert one is not None
    assert two is not None
    more = two.by_cause[Cause.COMPUTE] - one.by_cause[Cause.COMPUTE]
    assert more == pytest.approx(power.NETWORK_W)


def test_no_tdp_no_power() -> None:
    assert power.draw(made.machine(tdp_w=None), made.step()) is None
