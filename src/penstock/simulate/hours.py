"""The hours of one simulated life: the policy of `policy/hours`, asked again when a life is behind.

All lives begin with the schedule of the plan. The supervisor of a real run asks again every hour;
here that is done when the work that is left is more than the schedule has room for, which comes to
the same and keeps a life fast.
"""

from dataclasses import dataclass

from penstock.plan.hours.supply import HourPlan
from penstock.policy.hours.schedule import RESERVE, HourDecision, schedule
from penstock.policy.hours.terms import HourSchedule, HourState, HourTerms, has_power
from penstock.run.hours import HourlyCurve

ROUNDING_S = 1e-3  # of moments


@dataclass
class LifeHours:
    """The schedule of one life. Seconds are of its own clock, which begins at 0."""

    curve: HourlyCurve
    terms: HourTerms
    begins_s: float  # unix seconds
    deadline_s: float
    plan: HourSchedule

    @classmethod
    def of(cls, planned: HourPlan) -> "LifeHours":
        """Return the hours of a plan."""
        return cls(
            planned.curve, planned.terms, planned.begins_s, planned.deadline_s, planned.schedule
        )

    @property
    def within_s(self) -> float:
        return self.deadline_s - self.begins_s

    def look(self, t: float, work_s: float, level: int | None, stop_s: float = 0.0) -> HourDecision:
        """Decide what the life does at `t`, with so much work left at full speed.

        Ranks that take `stop_s` to save and end do so before an hour without the power for them.
        """
        found = self._decide(t, work_s, level)
        if found.until_s - t <= stop_s + ROUNDING_S and not self.has_power(
            found.until_s, found.level
        ):
            return self._decide(found.until_s, work_s, level)
        return found

    def next_look_s(self, found: HourDecision, stop_s: float) -> float:
        """Return when to look again after a decision."""
        enough = self.has_power(found.until_s, found.level)
        return found.until_s - (0.0 if enough else stop_s)

    def has_power(self, t: float, level: int | None) -> bool:
        """Tell whether the hour of `t` has the power for a level."""
        hour = self.curve.at(self.begins_s + t)
        return level is None or has_power(hour, self.terms.levels[level].needs_w)

    def _decide(self, t: float, work_s: float, level: int | None) -> HourDecision:
        now = self.begins_s + t
        if work_s > self._room_s(now) + RESERVE / 2 * work_s or now >= self._planned_until_s:
            state = HourState(now, self.deadline_s, work_s, level)
            self.plan = schedule(state, self.terms, self.curve)
        first = next(one for one in self.plan.stretches if now < one.end_s - 1e-6)
        return HourDecision(first.level, first.end_s - self.begins_s, self.plan.late)

    @property
    def _planned_until_s(self) -> float:
        return self.plan.stretches[-1].end_s - 1e-6

    def _room_s(self, now: float) -> float:
        """Return the work that the schedule has room for from now on."""
        room_s, was = 0.0, None
        for one in self.plan.stretches:
            if one.level is not None and one.end_s > now:
                starts = one.start_s > now and one.level != was
                length_s = one.end_s - max(one.start_s, now)
                lost_s = self.terms.switch_s if starts else 0.0
                room_s += self.terms.levels[one.level].speed * (length_s - lost_s)
            was = one.level
        return room_s
