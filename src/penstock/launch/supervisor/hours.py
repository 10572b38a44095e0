"""The hours of a run while it trains: how much work is left, and what the policy says of now.

Nothing here waits or stops ranks; the supervisor does. The clock is the system's time of day, since
prices are of hours of the day; tests put another in its place.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from penstock.ledger.journal.events import InvocationStarted, RunResized
from penstock.ledger.journal.read import lines_of, read_events, read_steps
from penstock.ledger.journal.records import SUPERVISOR, journal_files
from penstock.meter.clock import now
from penstock.plan.hours.terms import layout_on, terms_from_json, unknown_terms
from penstock.plan.job.layout import Layout
from penstock.policy.hours.schedule import HourDecision, decide
from penstock.policy.hours.terms import COLUMN_OF, HourState, HourTerms, has_power
from penstock.run.folder import RunFolder
from penstock.run.hours import HourlyCurve, read_hours
from penstock.run.launch_record import LaunchRecord
from penstock.run.schema.run import Run

PACE_STEPS = 64  # whose median is the pace
FIRST_STEPS = 8  # fewer do not show it
ROUNDING_S = 1e-3  # of moments
END_S = 2.0  # until ranks have heard that they are to stop, and have ended (0.7 s was seen)
UNKNOWN_PACE_S = 60.0  # until the next question, where nobody knows how long the run takes


@dataclass
class HourWatch:
    """The hours of one run, and the decision of the present one."""

    folder: RunFolder
    curve: HourlyCurve
    terms: HourTerms
    finish_within_s: float
    clock: Callable[[], float] = time.time
    stop_s: float = 0.0  # that the ranks take to save and end
    planned: LaunchRecord = field(default_factory=LaunchRecord)  # what plan.json will hold
    level: int | None = None  # at which ranks train now; None: no rank runs
    decision: HourDecision = field(init=False)
    _asked_s: float | None = None  # when it was decided,
    _at_s: float = 0.0  # for which moment,
    _upto_s: float = 0.0  # and when to ask again

    def __post_init__(self) -> None:
        self.decision = HourDecision(0, self.clock(), late=False)

    def look(self) -> HourDecision:
        """Return the decision of now; it is made again in every hour, and when it runs out.

        Ranks end before an hour that has too little power for them: their save takes as much.
        """
        t = self.clock()
        if self._asked_s is not None and self._asked_s <= t < self._upto_s:
            return self.decision
        self._asked_s = self._at_s = t
        self.decision = self._decide(t)
        hour_s = self.curve.next_hour(t)
        if hour_s - t <= self.stop_s + ROUNDING_S and not self._has_power(hour_s):
            self._at_s = hour_s
            self.decision = self._decide(hour_s)
        self._upto_s = min(self.decision.until_s, self.curve.next_hour(self._at_s))
        if not self._has_power(self._upto_s):
            self._upto_s -= self.stop_s
        return self.decision

    def _has_power(self, t: float) -> bool:
        """Tell whether an hour has the power for what was decided."""
        level = self.decision.level
        return level is None or has_power(self.curve.at(t), self.terms.levels[level].needs_w)

    def ranks_ended(self) -> None:
        """Note that no rank runs: a start now costs time, so the decision is made again.

        A run that ran out of memory may have another layout now, which is not cut down as planned.
        """
        self.level, self._asked_s = None, None
        layout = Layout(**self._launch().layout)
        full, *fewer = self.terms.levels
        fewer = [level for level in fewer if layout_on(layout, level.accelerators)]
        self.terms = replace(self.terms, levels=(full, *fewer))

    def begin(self) -> bool:
        """Note that ranks start as decided; False if that was a pause."""
        self.level = self.decision.level
        return self.level is not None

    def fit(self, layout: Layout) -> Layout:
        """Return the layout of an attempt that starts now, whose hour may have power for some
        accelerators only.
        """
        if not self.level:
            return layout
        return layout_on(layout, self.terms.levels[self.level].accelerators) or layout

    def resized(self, ranks: int, of: int) -> str:
        """Describe an attempt: `on 1 of 2 accelerators until 06:00 (…, 5 kW from the grid)`."""
        if ranks == of:
            return f"on all {of:,} accelerators again"
        return f"on {ranks:,} of {of:,} accelerators {self.words()}"

    def change(self) -> str:
        """Describe what was decided, while ranks still do something else."""
        level, levels = self.decision.level, self.terms.levels
        if level is None:
            return f"pausing {self.words()}"
        size = self.resized(levels[level].accelerators, levels[0].accelerators)
        return f"saving, then training {size}"

    def _decide(self, t: float) -> HourDecision:
        work_s = self._work_s()
        if work_s is None:  # the first steps of a run that could not be planned
            found = decide(HourState(t, t, 0.0, self.level), self.terms, self.curve)
            return replace(found, until_s=min(found.until_s, t + UNKNOWN_PACE_S))
        left_s = self.finish_within_s - self._spent_s()
        return decide(HourState(t, t + left_s, work_s, self.level), self.terms, self.curve)

    def words(self) -> str:
        """Describe the hour that was decided for: `until 06:00 (0.31 USD per kWh)`."""
        t = self._at_s
        hour = self.curve.at(t)
        price, carbon = hour.usd_per_kwh, getattr(hour, COLUMN_OF[self.terms.by])
        now = (
            f"{price:.4g} USD per kWh" if self.terms.by == "cost" else f"{carbon:.4g} gCO2e per kWh"
        )
        limit = hour.grid_limit_w
        if limit is not None and not has_power(hour, self.terms.levels[0].needs_w):
            now += f", {limit / 1e3:,.4g} kW from the grid"
        until = self.curve.clock(self.decision.until_s)
        if self.decision.until_s - t >= 24 * 3600:
            until = self.curve.date(self.decision.until_s)
        return f"until {until} ({now})"

    def _spent_s(self) -> float:
        """Return the time since the first start of the run, by the clock of its journal."""
        starts = lines_of(read_events(self.folder.journal / SUPERVISOR), InvocationStarted)
        return max(0.0, now() - min((line.t for line in starts), default=now()))

    def _launch(self) -> LaunchRecord:
        """Return plan.json; what it will be, before the first attempt on several hosts."""
        found = self.folder.read_launch_record()
        return found if found.launched else self.planned

    def _work_s(self) -> float | None:
        """Return the time that the run still takes without pauses; None if nobody knows."""
        launch = self._launch()
        predicted: dict[str, Any] = launch.predicted
        paces_s: dict[float, float] = {}  # of the newest attempt at each speed
        speeds, reached = self._speeds(), 0
        for file in sorted(journal_files(self.folder.journal, "steps"), key=lambda f: f.attempt):
            if 0 in file.ranks:
                found = read_steps(file.path)
                reached = max(reached, int(found["step"].max(initial=0)))
                if len(found) >= FIRST_STEPS:
                    took_s = median(found["total"][-PACE_STEPS:].tolist())
                    paces_s[speeds.get(file.attempt, 1.0)] = took_s
        left = max(0, launch.steps - reached)
        step_s = predicted.get("step_s")
        # All accelerators were measured, or some of them at the speed that was planned for them.
        speed = max(paces_s, default=None)
        pace_s = step_s if speed is None else paces_s[speed] * speed
        if pace_s is None:
            return None
        planned_s = predicted.get("hours", {}).get("work_s")
        if not step_s or not planned_s:
            return float(left * pace_s)
        # Saves, evaluations, failures and starts are as large a part as planned.
        beside = planned_s / (step_s * max(1, launch.steps))
        return float(left * pace_s * beside)

    def _speeds(self) -> dict[int, float]:
        """Return the planned speed of each attempt that had fewer ranks because of its hour."""
        planned = {level.accelerators: level.speed for level in self.terms.levels}
        lines = lines_of(read_events(self.folder.journal / SUPERVISOR), RunResized)
        found = {line.attempt: planned.get(line.event.ranks, 1.0) for line in lines}
        return {attempt: speed for attempt, speed in found.items() if attempt is not None}


def hour_watch(
    run: Run,
    folder: RunFolder,
    plan: dict[str, Any],
    clock: Callable[[], float] = time.time,
) -> HourWatch | None:
    """Return the watch of a launch whose plan.json is `plan`; None without `budget.hours_csv`."""
    budget = run.budget
    if budget.hours_csv is None:
        return None
    assert budget.finish_within is not None, "checked when the run file was read"
    curve = read_hours(budget.hours_csv, budget.hours_zone)
    predicted = plan["predicted"].get("hours")
    if predicted is None:
        terms = unknown_terms(budget, curve, plan["ranks"])
    else:
        terms = terms_from_json(predicted["terms"])
    stop_s = END_S + terms.save_s + (plan["predicted"].get("step_s") or 0.0)
    planned = LaunchRecord.from_json(plan)
    return HourWatch(folder, curve, terms, budget.finish_within, clock, stop_s, planned)
