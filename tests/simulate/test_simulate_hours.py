"""Lives that pause in dear hours: in time, in cheap hours, also where much fails."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from made_lives import DAY_S, NONE, a_day, conditions, lived
from penstock.policy.hours.schedule import schedule
from penstock.policy.hours.terms import HourState, HourTerms, PowerLevel
from penstock.run.hours import Hour, HourlyCurve
from penstock.simulate.account import DOWN
from penstock.simulate.conditions import Conditions, undisturbed_s
from penstock.simulate.draws import Draws, generator
from penstock.simulate.hours import LifeHours
from penstock.simulate.life import Life
from penstock.simulate.record import Recorder

BEGIN = 1_800_000_000.0 // DAY_S * DAY_S  # a midnight
STEPS = 43_200  # five days of stepping


def night_and_day(**changed: Any) -> Conditions:
    """Cheap for the first half of each day; the run may take three times as long as it must."""
    own = conditions(steps=STEPS, horizon_s=inf, **changed)
    hours = tuple(Hour(usd_per_kwh=0.05 if hour < 12 else 0.5) for hour in range(24))
    curve = HourlyCurve(hours, "daily")
    terms = HourTerms((PowerLevel(512, 1.0, 4e5),), 0.0, own.save_s + own.again_s + own.load_s)
    work_s = undisturbed_s(own)
    deadline_s = BEGIN + 3 * work_s
    plan = schedule(HourState(BEGIN, deadline_s, work_s, 0), terms, curve)
    return conditions(
        **changed,
        steps=STEPS,
        horizon_s=inf,
        hours=LifeHours(curve, terms, BEGIN, deadline_s, plan),
    )


def test_a_life_without_failures_follows_the_schedule() -> None:
    own = night_and_day()
    assert own.hours is not None
    life = lived(own, NONE)
    planned = own.hours.plan
    assert life.finished
    assert life.wall_s == pytest.approx(planned.finish_s - BEGIN, rel=0.01)
    assert life.paused_s == pytest.approx(planned.paused_s, rel=0.01)
    assert life.seconds[DOWN] == pytest.approx(life.paused_s)
    assert sum(life.seconds) == pytest.approx(life.wall_s)
    plain = lived(conditions(steps=STEPS, horizon_s=inf), NONE)
    assert life.wall_s > plain.wall_s + 4 * 12 * 3600
    assert plain.paused_s == 0


@pytest.mark.parametrize(("failures", "seed"), [(1.0, 0), (6.0, 1), (12.0, 2)])
def test_lives_with_failures_end_in_time_and_work_in_cheap_hours(
    failures: float, seed: int
) -> None:
    own = night_and_day()
    assert own.hours is not None
    record = Recorder()
    life = Life(own, a_day(failures), Draws(generator(seed, 0)), record).run()
    assert life.finished
    assert life.wall_s <= own.hours.within_s
    assert sum(life.seconds) == pytest.approx(life.wall_s)
    assert all(end > start for start, end in record.pauses)
    worked = [s for a in record.attempts for g in a.segments for s in g.spans]
    dear_s = sum(s.end - s.start for s in worked if 12 <= (s.start + 60) % DAY_S / 3600 < 23.9)
    # A span is dear where the work needs it: never, with so much time.
    assert dear_s <= 0.02 * sum(s.end - s.start for s in worked)


def test_a_life_that_is_behind_asks_again_and_pauses_less() -> None:
    own = night_and_day()
    assert own.hours is not None
    quiet = lived(own, NONE)
    hours = own.hours
    late = hours.look(0.0, 1.4 * (hours.deadline_s - BEGIN) / 1.5, 0)
    assert late.level == 0
    assert hours.plan.paused_s < quiet.paused_s


def limited(at_noon_w: float, **changed: Any) -> Conditions:
    """Power for all ranks, and from 8 to 16 for less; the run may take twice as long."""
    own = conditions(steps=STEPS, horizon_s=inf, **changed)
    hours = tuple(
        Hour(usd_per_kwh=0.1, grid_limit_w=at_noon_w if 8 <= hour < 16 else 1e6)
        for hour in range(24)
    )
    curve = HourlyCurve(hours, "daily")
    half = PowerLevel(256, 0.5, 2.5e5)
    terms = HourTerms((PowerLevel(512, 1.0, 4e5), half), 2e5, own.save_s + own.again_s + own.load_s)
    work_s = undisturbed_s(own)
    deadline_s = BEGIN + 2 * work_s
    plan = schedule(HourState(BEGIN, deadline_s, work_s, 0), terms, curve)
    return replace(own, hours=LifeHours(curve, terms, BEGIN, deadline_s, plan))


def test_a_life_goes_on_with_some_of_its_ranks_as_the_schedule_says() -> None:
    own = limited(3e5)
    assert own.hours is not None
    plan, record = own.hours.plan, Recorder()
    life = Life(own, NONE, Draws(generator(0, 0)), record).run()
    assert {one.level for one in plan.stretches} == {0, 1}
    assert life.finished
    assert life.wall_s == pytest.approx(plan.finish_s - BEGIN, rel=0.01)
    assert life.paused_s == 0
    fewer_s = sum(one.length_s for one in plan.stretches if one.level == 1)
    assert life.fewer_s == pytest.approx(fewer_s, rel=0.03)
    # Half of the ranks are `down` meanwhile, and nothing is lost or counted as a failure.
    assert life.seconds[DOWN] == pytest.approx(life.fewer_s / 2)
    assert sum(life.seconds) == pytest.approx(life.wall_s)
    assert not life.interruptions
    assert {one.ranks for one in record.attempts} == {512, 256}


@pytest.mark.parametrize(("failures", "live"), [(0.0, False), (8.0, False), (8.0, True)])
@pytest.mark.parametrize("at_noon_w", [3e5, 1e5])
def test_no_life_works_with_more_ranks_than_an_hour_has_the_power_for(
    failures: float, live: bool, at_noon_w: float
) -> None:
    own = limited(at_noon_w, live=live)
    assert own.hours is not None
    record = Recorder()
    life = Life(own, a_day(failures), Draws(generator(3, 0)), record).run()
    assert life.finished
    assert sum(life.seconds) == pytest.approx(life.wall_s)
    seen = set()
    for attempt in record.attempts:
        for stretch in (s for g in attempt.segments for s in g.spans if s.end > s.start):
            for t in (stretch.start, stretch.end - 1e-3):
                noon = 8 <= t % DAY_S / 3600 < 16
                assert attempt.ranks <= (512 if not noon else 256 if at_noon_w > 2.5e5 else 0)
                seen.add((noon, attempt.ranks))
    assert (False, 512) in seen
    assert ((True, 256) in seen) is (at_noon_w > 2.5e5)
    assert bool(record.pauses) is (at_noon_w < 2.5e5)
