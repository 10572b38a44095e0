"""The schedule of hours: near the exact optimum, in time, and never dearer than no schedule."""

from math import cos, inf, pi

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from penstock.policy.hours.schedule import RESERVE, at_once, decide, schedule
from penstock.policy.hours.search import hour_slots
from penstock.policy.hours.sums import sums
from penstock.policy.hours.terms import (
    HourSchedule,
    HourState,
    HourTerms,
    PowerLevel,
    grid_w,
    has_power,
)
from penstock.run.hours import Hour, HourlyCurve

NOW = 1_800_000_000.0 + 1234.5  # not at the beginning of an hour
FULL = PowerLevel(8, 1.0, 10_000.0)


def daily(shape: list[float]) -> HourlyCurve:
    """A day around 0.10 USD for a kWh; `shape` is what each hour is above or below it."""
    return HourlyCurve(tuple(Hour(usd_per_kwh=0.10 * (1 + x)) for x in shape), "daily")


def bell(depth: float = 0.5, dearest: int = 18) -> list[float]:
    return [depth * cos(2 * pi * (hour - dearest) / 24) for hour in range(24)]


def cost(plan: HourSchedule, terms: HourTerms, curve: HourlyCurve) -> float:
    return sums(plan, terms, curve).of("cost")


def worked_s(plan: HourSchedule, terms: HourTerms, level: int | None = None) -> float:
    """Progress of a schedule, counted from its stretches alone."""
    total, was = 0.0, level
    for one in plan.stretches:
        if one.level is not None:
            lost = terms.switch_s if one.level != was else 0.0
            total += terms.levels[one.level].speed * (one.length_s - lost)
        was = one.level
    return total


def exact_without_starts(state: HourState, terms: HourTerms, curve: HourlyCurve) -> float:
    """The least cost by a linear programme in which starts take no time: below every schedule.

    The machines are on until the end, so each possible last hour is a programme of its own. Of that
    hour's pause nothing is counted: it may be cut short.
    """
    slots, levels, least = hour_slots(state, terms, curve), len(terms.levels), inf
    costs = np.array([row[: levels + 1] for row in slots.costs])
    for last in range(1, len(costs) + 1):
        paused = costs[:last, levels].copy()
        paused[-1] = min(0.0, paused[-1])
        bad = ~np.isfinite(costs[:last, :levels])
        extra = np.where(bad, 0.0, costs[:last, :levels] - paused[:, None]).ravel()
        speed = np.array([[t * s for s in slots.speeds[:levels]] for t in slots.lengths_s[:last]])
        if speed[~bad].sum() < state.work_s:
            continue
        once = np.kron(np.eye(last), np.ones(levels))
        done = linprog(
            extra,
            A_ub=once,
            b_ub=np.ones(last),
            A_eq=speed.reshape(1, -1),
            b_eq=[state.work_s],
            bounds=[(0, 0 if out else 1) for out in bad.ravel()],
        )
        if done.status == 0:
            least = min(least, done.fun + paused.sum())
    return least


shapes = st.one_of(
    st.tuples(st.floats(0.1, 0.5), st.integers(0, 23)).map(lambda how: bell(*how)),
    st.lists(st.floats(-0.5, 0.5), min_size=24, max_size=24),
)


@given(
    shape=shapes,
    work_h=st.floats(4, 40),
    idle=st.sampled_from([0.0, 0.11, 0.2]),
    switch_s=st.floats(0, 60),
    begin_h=st.integers(0, 23),
    running=st.booleans(),
)
def test_it_costs_at_most_a_twentieth_more_than_the_exact_optimum(
    shape: list[float],
    work_h: float,
    idle: float,
    switch_s: float,
    begin_h: int,
    running: bool,
) -> None:
    curve, terms = daily(shape), HourTerms((FULL,), idle * FULL.watts, switch_s)
    now = NOW + 3600 * begin_h
    state = HourState(now, now + 2 * 3600 * work_h, 3600 * work_h, 0 if running else None)
    found = schedule(state, terms, curve)
    assert cost(found, terms, curve) <= 1.05 * exact_without_starts(state, terms, curve)
    assert found.finish_s <= state.deadline_s
    assert worked_s(found, terms, state.level) == pytest.approx(state.work_s, abs=1e-3)
    straight = at_once(state, terms, curve)
    assert cost(found, terms, curve) <= cost(straight, terms, curve) * (1 + 1e-12)


def exact_with_starts(state: HourState, terms: HourTerms, curve: HourlyCurve) -> float:
    """The least cost where every start loses its time, by an integer programme, one level.

    Work fills an hour that has work on both sides; only at its ends an hour may be cut short.
    """
    slots = hour_slots(state, terms, curve)
    costs = np.array([row[:2] for row in slots.costs])
    count = len(costs)
    # Variables: the share of each hour at work, whether any of it is, whether it begins one.
    extra = np.concatenate([costs[:, 0] - costs[:, 1], np.zeros(2 * count)])
    eye, zero = np.eye(count), np.zeros((count, count))
    before, after = np.eye(count, k=-1), np.eye(count, k=1)
    rows = [
        LinearConstraint(np.hstack([eye, -eye, zero]), -np.inf, 0),
        LinearConstraint(np.hstack([zero, eye - before, -eye]), -np.inf, 0),
        LinearConstraint(np.hstack([eye, -before - eye - after, zero]), -2, np.inf),
        LinearConstraint(
            np.concatenate([slots.lengths_s, np.zeros(count), np.full(count, -terms.switch_s)]),
            state.work_s,
            np.inf,
        ),
    ]
    found = milp(
        extra, constraints=rows, bounds=Bounds(0, 1), integrality=np.repeat([0, 1, 1], count)
    )
    assert found.status == 0, found.message
    return float(found.fun + costs[:, 1].sum())


@pytest.mark.parametrize("dearest", [3, 12, 20])
@pytest.mark.parametrize("work_h", [7.3, 24.0])
def test_long_starts_cost_at_most_a_twentieth_more_than_the_exact_optimum(
    work_h: float, dearest: int
) -> None:
    curve, terms = daily(bell(0.5, dearest)), HourTerms((FULL,), 0.0, 1800.0)
    state = HourState(NOW, NOW + 2 * 3600 * work_h, 3600 * work_h, None)
    found = schedule(state, terms, curve)
    assert cost(found, terms, curve) <= 1.05 * exact_with_starts(state, terms, curve)


def test_half_of_the_day_is_cheap_and_the_run_waits_for_it() -> None:
    curve, terms = daily([-0.5] * 12 + [0.5] * 12), HourTerms((FULL,), 0.0, 10.0)
    state = HourState(NOW, NOW + 20 * 86400, 10 * 86400 * 0.9, None)
    found = schedule(state, terms, curve)
    at_work = [one for one in found.stretches if one.level is not None]
    cheap = [curve.at(one.start_s).usd_per_kwh for one in at_work]
    assert cheap == pytest.approx([0.05] * len(cheap))
    assert all(one.length_s <= 12 * 3600 for one in at_work)
    first = decide(state, terms, curve)
    assert first.level == found.stretches[0].level
    assert first.until_s == found.stretches[0].end_s


def test_machines_that_draw_as_much_when_they_pause_are_never_paused() -> None:
    curve, state = daily(bell()), HourState(NOW, NOW + 10 * 86400, 4 * 86400, 0)
    found = schedule(state, HourTerms((FULL,), FULL.watts, 10.0), curve)
    assert found.pauses == ()
    assert found.finish_s == NOW + 4 * 86400


def test_a_start_that_takes_longer_than_a_dear_hour_saves_is_not_made() -> None:
    shape = [0.0] * 24
    shape[15] = 0.5  # one dear hour
    curve, state = daily(shape), HourState(NOW, NOW + 40 * 3600, 20 * 3600, 0)
    assert schedule(state, HourTerms((FULL,), 0.0, 60.0), curve).pauses
    assert not schedule(state, HourTerms((FULL,), 0.0, 3600.0), curve).pauses


def test_a_run_without_slack_does_not_pause_and_says_that_it_is_late() -> None:
    curve, terms = daily(bell()), HourTerms((FULL,), 0.0, 10.0)
    just = schedule(HourState(NOW, NOW + 86400, 86400, 0), terms, curve)
    assert (just.pauses, just.late) == ((), False)
    late = schedule(HourState(NOW, NOW + 86400, 86401, 0), terms, curve)
    assert (late.pauses, late.late) == ((), True)
    assert late.finish_s == NOW + 86401


def test_a_reserve_is_kept_for_what_takes_longer_than_expected() -> None:
    """A run that turns out slower by less than the reserve is still in time."""
    curve, terms = daily([0.5] * 12 + [-0.5] * 12), HourTerms((FULL,), 0.0, 0.0)
    state = HourState(NOW, NOW + 4 * 86400, 2 * 86400, None)
    found = schedule(state, terms, curve)
    assert found.finish_s <= state.deadline_s - RESERVE * state.work_s


def test_asking_again_every_hour_costs_as_much_as_asking_once() -> None:
    curve, terms = daily(bell()), HourTerms((FULL,), 0.1 * FULL.watts, 30.0)
    state = HourState(NOW, NOW + 4 * 86400, 2 * 86400, None)
    once = cost(schedule(state, terms, curve), terms, curve)
    t, left_s, level, spent = state.now_s, state.work_s, state.level, 0.0
    while left_s > 1e-6:
        now = decide(HourState(t, state.deadline_s, left_s, level), terms, curve)
        upto = min(now.until_s, curve.next_hour(t))
        watts = terms.paused_w if now.level is None else FULL.watts
        spent += watts * (upto - t) / 3.6e6 * (curve.at(t).usd_per_kwh or 0.0)
        if now.level is not None:
            left_s -= upto - t - (terms.switch_s if level is None else 0.0)
        t, level = upto, now.level
    assert t <= state.deadline_s
    assert spent == pytest.approx(once, rel=0.01)


def test_a_grid_limit_shrinks_the_run_and_pauses_it_where_nothing_is_left() -> None:
    half = PowerLevel(4, 0.5, 6_000.0)
    limits = [20_000.0] * 8 + [7_000.0] * 8 + [1_000.0] * 8
    hours = tuple(Hour(usd_per_kwh=0.1, grid_limit_w=limit) for limit in limits)
    curve, terms = HourlyCurve(hours, "daily"), HourTerms((FULL, half), 500.0, 10.0)
    state = HourState(NOW, NOW + 10 * 86400, 3 * 86400, None)
    found = schedule(state, terms, curve)
    assert not found.late
    for one in found.stretches:
        for t in np.arange(one.start_s + 1, one.end_s, 600.0):
            at_work = one.level is not None
            watts = terms.levels[one.level].watts if at_work else 0.0
            assert has_power(curve.at(t), watts)
    assert {one.level for one in found.stretches} == {0, 1, None}
    state = HourState(NOW, NOW + 10 * 86400, 30 * 86400, None)
    late = schedule(state, terms, curve)
    assert late.late
    assert {one.level for one in late.stretches} == {0, 1, None}


def test_no_power_at_all_never_ends() -> None:
    hours = tuple(Hour(usd_per_kwh=0.1, grid_limit_w=100.0) for _ in range(24))
    state = HourState(NOW, NOW + 86400, 3600, None)
    found = schedule(state, HourTerms((FULL,), 0.0, 0.0), HourlyCurve(hours, "daily"))
    assert found.late
    assert found.finish_s == inf


def test_power_of_the_site_itself_costs_nothing_and_lifts_the_limit() -> None:
    sun = [0.0] * 8 + [12_000.0] * 8 + [0.0] * 8
    hours = tuple(Hour(usd_per_kwh=0.1, onsite_w=w, grid_limit_w=5_000.0) for w in sun)
    curve, terms = HourlyCurve(hours, "daily"), HourTerms((FULL,), 0.0, 0.0)
    found = schedule(HourState(NOW, NOW + 9 * 86400, 2 * 86400, None), terms, curve)
    added = sums(found, terms, curve)
    assert added.usd == 0.0
    assert added.onsite_kwh == pytest.approx(480.0)
    assert grid_w(curve.at(found.stretches[-1].start_s), FULL.watts) == 0.0


def test_hours_are_chosen_by_carbon_of_the_grid_or_of_contracts() -> None:
    clean, dirty = (300.0, 50.0), (50.0, 300.0)
    hours = [
        Hour(usd_per_kwh=0.1, gco2e_per_kwh=a, market_gco2e_per_kwh=b)
        for a, b in [clean] * 12 + [dirty] * 12
    ]
    curve, state = HourlyCurve(tuple(hours), "daily"), HourState(NOW, NOW + 6 * 86400, 86400, None)
    for by, named in (("carbon", "gco2e"), ("market_carbon", "market_gco2e")):
        terms = HourTerms((FULL,), 0.0, 0.0, by)
        added = sums(schedule(state, terms, curve), terms, curve)
        assert getattr(added, named) == pytest.approx(240.0 * 50.0)


def test_prices_below_zero_are_used_first() -> None:
    curve, terms = daily([0.5] * 20 + [-1.5] * 4), HourTerms((FULL,), 0.0, 10.0)
    found = schedule(HourState(NOW, NOW + 8 * 86400, 86400, None), terms, curve)
    assert cost(found, terms, curve) < 0


@st.composite
def limited_days(draw: st.DrawFn) -> tuple[HourState, HourTerms, HourlyCurve]:
    """A run of several levels at any moment of a day whose hours have any limit and any sun."""
    count = draw(st.integers(1, 4))
    shares = [1.0, *sorted((draw(st.floats(0.05, 0.95)) for _ in range(count - 1)), reverse=True)]
    rest_w = draw(st.sampled_from([0.0, 900.0]))  # of what does not work, while the others do
    steps = draw(st.sampled_from([0.0, 1.0, 1.4]))  # of what a step draws, over the mean
    levels = tuple(
        PowerLevel(i, x, w, w * steps) for i, x in enumerate(shares) for w in [9_000.0 * x + rest_w]
    )
    watts = st.sampled_from([0.0, *(level.needs_w for level in levels), 5_000.0, 20_000.0])
    hours = tuple(
        Hour(
            usd_per_kwh=draw(st.floats(-0.1, 0.5)),
            grid_limit_w=draw(watts),
            onsite_w=draw(st.sampled_from([0.0, 0.0, 4_000.0])),
        )
        for _ in range(24)
    )
    terms = HourTerms(levels, rest_w, draw(st.sampled_from([0.0, 10.0, 900.0, 5_000.0])))
    now = NOW + draw(st.floats(0, 86_400))
    work_s = draw(st.one_of(st.sampled_from([0.0, 1e-9]), st.floats(1.0, 3 * 86_400.0)))
    level = draw(st.one_of(st.none(), st.integers(0, count - 1)))
    return (
        HourState(now, now + draw(st.floats(0, 10 * 86_400.0)), work_s, level),
        terms,
        HourlyCurve(hours, "daily"),
    )


@given(limited_days())
def test_no_hour_is_worked_in_with_more_than_it_has_the_power_for(
    drawn: tuple[HourState, HourTerms, HourlyCurve],
) -> None:
    state, terms, curve = drawn
    now = decide(state, terms, curve)
    if now.level is not None:
        assert has_power(curve.at(state.now_s), terms.levels[now.level].needs_w)
    for plan in (schedule(state, terms, curve), at_once(state, terms, curve)):
        assert plan.stretches or state.work_s < 1
        for one in plan.stretches[:200]:  # a run that never ends is late for a year
            t = one.start_s
            while one.level is not None and t < one.end_s:
                upto = min(curve.next_hour(t), one.end_s)
                assert has_power(curve.at((t + upto) / 2), terms.levels[one.level].needs_w)
                t = upto
        if plan.finish_s < inf and state.work_s > 1:
            assert worked_s(plan, terms, state.level) == pytest.approx(state.work_s, abs=1e-3)


@given(limited_days())
def test_no_schedule_ends_before_the_one_that_takes_all_power(
    drawn: tuple[HourState, HourTerms, HourlyCurve],
) -> None:
    """Compared with taking the largest level of every hour, however long its start takes."""
    state, terms, curve = drawn
    assume(state.work_s > 1)
    t, left_s, level, hours = state.now_s, state.work_s, state.level, 0
    while left_s > 1e-6 and hours < 1000:
        upto = curve.next_hour(t)
        now = next(
            (i for i, x in enumerate(terms.levels) if has_power(curve.at(t), x.needs_w)), None
        )
        if now is not None:
            speed, lost_s = terms.levels[now].speed, 0.0 if now == level else terms.switch_s
            upto = min(upto, t + lost_s + left_s / speed)
            left_s -= speed * (upto - t - lost_s)
        t, level, hours = upto, now, hours + 1
    first = at_once(state, terms, curve).finish_s
    if left_s <= 1e-6:
        assert first <= t + 1e-3
    assert first <= schedule(state, terms, curve).finish_s + 1e-3


def test_a_run_goes_on_with_fewer_where_growing_back_takes_longer_than_the_hour_gives() -> None:
    half = PowerLevel(4, 0.5, 6_000.0)
    limits = [7_000.0] * 24
    limits[12] = 20_000.0  # one hour has the power for all
    hours = tuple(Hour(usd_per_kwh=0.1, grid_limit_w=limit) for limit in limits)
    curve, state = HourlyCurve(hours, "daily"), HourState(NOW, NOW + 40 * 3600, 20 * 3600, 1)
    for switch_s, grows in ((60.0, True), (1700.0, False)):
        terms = HourTerms((FULL, half), 500.0, switch_s)
        for plan in (schedule(state, terms, curve), at_once(state, terms, curve)):
            assert any(one.level == 0 for one in plan.stretches) is grows
            assert not plan.pauses
    # A start that takes most of the only powerless hour is not saved by pausing in it either.
    limits = [20_000.0] * 24
    limits[12] = 7_000.0
    hours = tuple(Hour(usd_per_kwh=0.1, grid_limit_w=limit) for limit in limits)
    curve, terms = HourlyCurve(hours, "daily"), HourTerms((FULL, half), 500.0, 3590.0)
    state = HourState(NOW, NOW + 400 * 3600, 20 * 3600, 0)
    shrunk = [one for one in at_once(state, terms, curve).stretches if one.level == 1]
    assert sum(one.length_s for one in shrunk) == 3600
    terms = HourTerms((FULL, half), 500.0, 3700.0)
    plan = at_once(state, terms, curve)
    assert len(plan.pauses) == 1
    assert {one.level for one in plan.stretches} == {0, None}
