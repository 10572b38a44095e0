"""Power limits of a whole run, and what is monotone in power, PUE and links."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_plans as made
from penstock.errors import PenstockError
from penstock.plan.hardware.cap import capped
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job.layout import Layout
from penstock.plan.make import make
from penstock.plan.scaling.caps import CapSweep, lines, sweep_caps
from penstock.plan.search.search import SearchSpace, search

LAYOUT = Layout(shard=16, microbatch=1)


@cache
def swept() -> CapSweep:
    return sweep_caps(made.run(), made.machine(16))


def test_lower_limits_take_longer_and_the_least_energy_lies_between() -> None:
    points = swept().points
    assert points[0].cap_w == 700
    assert len(points) >= 13
    days = [point.plan.life.days for point in points]
    assert days == sorted(days)
    least = swept().least_energy
    assert 400 <= least.cap_w < 700
    assert least.plan.bill.energy_kwh < points[0].plan.bill.energy_kwh  # type: ignore[operator]
    assert least.plan.bill.energy_kwh < points[-1].plan.bill.energy_kwh  # type: ignore[operator]


def test_who_pays_by_the_hour_sets_no_limit_and_who_pays_the_energy_does() -> None:
    rented = swept().least_usd
    assert rented is not None
    assert rented.cap_w == 700
    own = made.run(cluster={"use": "here"})
    billed = sweep_caps(own, made.machine(16, usd_per_kwh=0.1)).least_usd
    assert billed is not None
    assert billed.cap_w == swept().least_energy.cap_w
    told = list(lines(swept()))
    assert told[-3].startswith(f"least energy: {swept().least_energy.cap_w:.0f} W: ")
    assert told[-2].startswith("least cost: 700 W, no limit")


def test_a_limit_that_is_set_already_and_an_unknown_tdp_are_refused() -> None:
    with pytest.raises(PenstockError, match=r"sets accelerator\.cap_w"):
        sweep_caps(made.run(), capped(made.machine(8), 500))
    with pytest.raises(PenstockError, match="TDP of"):
        sweep_caps(made.run(), made.machine(8, tdp_w=None))


@given(
    st.sampled_from(["H100", "H200", "B200", "A100 SXM4 80GB", "MI300X", "GB200"]),
    st.floats(0.6, 1.0),
    st.floats(1.0, 2.0),
    st.floats(0.0, 1.0),
)
@settings(deadline=None, max_examples=8)
def test_a_lower_limit_draws_less_and_more_pue_needs_more(
    name: str, share: float, pue: float, more: float
) -> None:
    machine = replace(of_catalog(name, 16), pue=pue)
    assert machine.tdp_w
    high, low = (
        make(made.run(), capped(machine, machine.tdp_w * s), layout=LAYOUT)
        for s in (share, share / 2)
    )
    mean_w = [p.bill.energy_kwh / p.life.days for p in (high, low)]  # type: ignore[operator]
    assert mean_w[1] <= mean_w[0]
    assert low.site.busy_w < high.site.busy_w  # type: ignore[union-attr]
    assert low.step.step_s >= high.step.step_s
    cooled = make(made.run(), replace(machine, pue=pue + more), layout=LAYOUT)
    usual = make(made.run(), machine, layout=LAYOUT)
    assert cooled.bill.energy_kwh >= usual.bill.energy_kwh  # type: ignore[operator]
    assert cooled.step.step_s == usual.step.step_s


@given(
    st.sampled_from(["H100", "B200", "A100 SXM4 80GB"]),
    st.sampled_from([16, 32, 64]),
    st.lists(st.floats(1.0, 8.0), min_size=2, max_size=2),
    st.floats(50.0, 800.0),
)
@settings(deadline=None, max_examples=6)
def test_a_faster_link_never_slows_a_plan(
    name: str, count: int, faster: list[float], gbit: float
) -> None:
    slow = of_catalog(name, count, scale_out_gbit=gbit)
    tiers = tuple(
        replace(tier, bytes_per_s=tier.bytes_per_s * times)
        for tier, times in zip(slow.tiers, faster, strict=True)
    )
    space = SearchSpace(pipeline=(1,), context=(1,))
    before, after = (
        search(made.job(count, on=machine), count, space, keep=1).best[0].tokens_per_s
        for machine in (slow, replace(slow, tiers=tiers))
    )
    assert after >= before * (1 - 1e-9)
