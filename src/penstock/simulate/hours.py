"""The hours of one simulated life: the policy of `policy/hours`, asked again when a life is behind.

All lives begin with the schedule of the plan. The supervisor of a real run asks again every hour;
here that is done when the work that is left is more than the schedule has room for, which comes to
the same and keeps a life fast.
"""

from dataclasses import dataclass, replace

from penstock.plan.hours.supply import HourPlan
from penstock.policy.hours.schedule import RESERVE, HourDecision, schedule
from penstock.policy.hours.terms import HourSchedule, HourState, HourTerms
from penstock.run.hours import HourlyCurve


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
        """Return the hours of a plan, as a run is trained: on all accelerators or on none."""
        terms = replace(planned.terms, levels=planned.terms.levels[:1])
        state = HourState(planned.begins_s, planned.deadline_s, planned.work_s, 0)
        first = schedule(state, terms, planned.curve)
        return cls(planned.curve, terms, planned.begins_s, planned.deadline_s, first)

    @property
    def within_s(self) -> float:
        return self.deadline_s - self.begins_s

    def look(self, t: float, work_s: float) -> HourDecision:
        """Decide what the life does at `t`, with so much work left; it trains until then."""
        now = self.begins_s + t
        if work_s > self._room_s(now) + RESERVE / 2 * work_s:
            state = HourState(now, self.deadline_s, work_s, 0)
            self.plan = schedule(state, self.terms, self.curve)
        for one in self.plan.stretches:
            if now < one.end_s - 1e-6:
                return HourDecision(one.level, one.end_s - self.begins_s, self.plan.late)
        return HourDecision(0, t + max(work_s, 1.0), self.plan.late)

    def _room_s(self, now: float) -> float:
        """Return the work that the schedule has room for from now on."""
        left = [one for one in self.plan.stretches if one.level is not None and one.end_s > now]
        room_s = sum(one.end_s - max(one.start_s, now) for one in left)
        return room_s - self.terms.switch_s * sum(one.start_s > now for one in left)
