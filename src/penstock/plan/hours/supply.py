"""`HourPlan`: a planned run in the hours of its site, beside the same run without a pause."""

import time
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any
from zoneinfo import ZoneInfo

from penstock.errors import PenstockError
from penstock.plan.cost.cost import HourlyAmounts, HourlyPrice
from penstock.plan.hours.terms import (
    curve_of,
    hour_terms,
    limits_power,
    smaller_layouts,
    terms_to_json,
)
from penstock.plan.job.job import Job
from penstock.plan.life.life import RunLife, with_pauses
from penstock.plan.power.power import PowerDraw
from penstock.policy.hours.schedule import at_once, schedule
from penstock.policy.hours.sums import ScheduleSums, sums
from penstock.policy.hours.terms import HourSchedule, HourState, HourTerms, has_power
from penstock.run.hours import HOUR_S, HourlyCurve
from penstock.run.schema.run import Run
from penstock.style import plural


@dataclass(frozen=True)
class HourPlan:
    """The schedule of a run that starts at a moment, and what it comes to."""

    curve: HourlyCurve
    terms: HourTerms
    begins_s: float  # unix seconds
    deadline_s: float
    schedule: HourSchedule
    straight: HourSchedule  # the same run in whatever hours come
    work_s: float  # of the whole run at full speed
    metered: bool  # watts are known, and so are amounts
    whole: str = ""  # why the run cannot train on some of its accelerators; "" where it can

    @property
    def sums(self) -> ScheduleSums | None:
        return sums(self.schedule, self.terms, self.curve) if self.metered else None

    @property
    def straight_sums(self) -> ScheduleSums | None:
        return sums(self.straight, self.terms, self.curve) if self.metered else None

    @property
    def waits(self) -> int:
        """Return how often the run pauses."""
        return len(self.schedule.pauses)

    @property
    def off_s(self) -> float:
        """Return the seconds in which the machines draw nothing that counts."""
        counts = self.terms.paused_w > 0 or self.schedule.finish_s == inf
        return 0.0 if counts else self.schedule.paused_s

    def amounts(self) -> HourlyAmounts | None:
        """Return what a bill takes from the hours; None where watts are not known."""
        found = self.sums
        if found is None:
            return None
        words = f"by the hours of {self.curve.source}"
        return HourlyAmounts(found.usd, found.gco2e, words)

    def later_s(self) -> float:
        """Return how much later the run ends than without a pause."""
        return self.schedule.finish_s - self.straight.finish_s

    def over_budget(self) -> tuple[str, ...]:
        """Return why the run cannot end in time, if it cannot."""
        if not self.schedule.late:
            return ()
        if self.schedule.finish_s == inf:
            return (
                "budget.hours_csv: no hour has the power that the run needs; raise grid_limit_w, "
                "or plan fewer accelerators",
            )
        over_h = (self.schedule.finish_s - self.deadline_s) / HOUR_S
        given_h = (self.deadline_s - self.begins_s) / HOUR_S
        return (
            f"budget.finish_within = {given_h:,.4g} h: in all hours that have the power for it the "
            f"run takes {given_h + over_h:,.4g} h, {over_h:,.3g} h over",
        )

    def warnings(self, price: HourlyPrice | None, ranks: int) -> tuple[str, ...]:
        """Return what a person should know of the schedule."""
        found = []
        longer_h = self.later_s() / HOUR_S
        rented = price is not None and price.usd_per_kwh is None
        if price and rented and longer_h > 0 and self.terms.by == "cost":
            found.append(
                f"budget.hours_csv: the machine is paid by the hour ({price.source}), so a pause "
                f"saves no money: {longer_h:,.3g} h more are "
                f"{longer_h * ranks * price.usd:,.2f} USD of rent"
            )
        full_w, paused_w = self.terms.levels[0].watts, self.terms.paused_w
        if not self.schedule.pauses and not self.schedule.late and paused_w and self.metered:
            found.append(
                f"budget.hours_csv: no pause pays. Machines that pause stay on and draw "
                f"{paused_w / 1e3:,.3g} kW of the {full_w / 1e3:,.3g} kW at work; "
                'budget.hours_paused = "off" is for machines that do not'
            )
        if not self.metered:
            found.append(
                "budget.hours_csv: the power of the machine is not known, so hours are chosen and "
                "money and carbon left out; give accelerator.tdp_w in a cluster file"
            )
        found += self.power_notes()
        last_s = min(self.schedule.finish_s, self.deadline_s)
        if not (self.curve.known(self.begins_s) and self.curve.known(last_s - 1)):
            found.append(
                f"budget.hours_csv: {self.curve.source} does not have all hours until "
                f"{self.curve.date(last_s)}; the nearest of its days or weeks stands for the others"
            )
        return tuple(found)

    def power_notes(self) -> tuple[str, ...]:
        """Return what hours with too little power do to the run, beyond what the schedule says."""
        found, full_w = [], self.terms.levels[0].needs_w
        short = [hour for hour in self.curve.hours if not has_power(hour, full_w)]
        if short and self.whole:
            found.append(
                f"budget.hours_csv: {len(short)} of {plural(len(self.curve.hours), 'hour')} have "
                f"too little power for all {self.terms.levels[0].accelerators:,} accelerators, and "
                f"the run pauses in them; it cannot go on with fewer: {self.whole}"
            )
        dark = [one for one in short if not has_power(one, self.terms.paused_w)]
        if dark and self.metered:
            found.append(
                f"budget.hours_csv: machines that pause stay on and draw "
                f"{self.terms.paused_w / 1e3:,.3g} kW, which is more than {len(dark)} of "
                f"{plural(len(self.curve.hours), 'hour')} have"
            )
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.curve.source,
            "kind": self.curve.kind,
            "zone": self.curve.zone,
            "by": self.terms.by,
            "begins_s": self.begins_s,
            "deadline_s": self.deadline_s,
            "finish_s": _finite(self.schedule.finish_s),
            "later_s": _finite(self.later_s()),
            "work_s": self.work_s,
            "late": self.schedule.late,
            "pauses": self.waits,
            "paused_s": self.schedule.paused_s,
            "stretches": [
                {
                    "start_s": one.start_s,
                    "end_s": one.end_s,
                    "accelerators": 0
                    if one.level is None
                    else self.terms.levels[one.level].accelerators,
                }
                for one in self.schedule.stretches
            ],
            "amounts": _amounts(self.sums),
            "without": {
                "finish_s": _finite(self.straight.finish_s),
                "amounts": _amounts(self.straight_sums),
            },
            "terms": terms_to_json(self.terms),
            "notes": list(self.power_notes()),
        }


def plan_hours(
    run: Run, job: Job, lived: RunLife, draw: PowerDraw | None, begins_s: float | None = None
) -> HourPlan | None:
    """Schedule a planned run; None where the run file names no hours. It starts now by default."""
    budget = run.budget
    curve = curve_of(budget)
    if curve is None:
        return None
    assert budget.finish_within is not None, "checked when the run file was read"
    begins_s = time.time() if begins_s is None else begins_s
    terms = hour_terms(run, curve, job, lived, draw)
    # The first start is part of the work. A run that may begin now is taken to be at work.
    state = HourState(begins_s, begins_s + budget.finish_within, lived.wall_s, 0)
    straight = at_once(state, terms, curve)
    found = schedule(state, terms, curve)
    return HourPlan(
        curve,
        terms,
        begins_s,
        state.deadline_s,
        found,
        straight,
        state.work_s,
        metered=draw is not None,
        whole=smaller_layouts(run, job).none if limits_power(curve) else "",
    )


def with_hours(lived: RunLife, hours: HourPlan | None) -> RunLife:
    """Return the life of a run with its pauses; of one that never ends, without them."""
    if hours is None or hours.schedule.finish_s == inf:
        return lived
    return with_pauses(lived, hours.schedule.finish_s - hours.begins_s)


def read_begin(text: str, zone: str) -> float:
    """Read the moment that a plan begins at: `2026-11-20T06:00`, in the zone of the hours."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise PenstockError(f"{text}: not a moment; write for example 2026-11-20T06:00") from None
    return (found if found.tzinfo else found.replace(tzinfo=ZoneInfo(zone))).timestamp()


def _finite(value: float) -> float | None:
    return value if abs(value) < inf else None


def _amounts(found: ScheduleSums | None) -> dict[str, float | None] | None:
    return None if found is None else vars(found)
