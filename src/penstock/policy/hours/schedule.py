"""The decision what a run does now, and until when: plan, simulator and supervisor ask it.

The supervisor asks again every hour with what is really left. A run that is slower than planned
then pauses less, and is late only if it would be late without any pause.
"""

from dataclasses import dataclass, replace
from math import inf

from penstock.policy.hours.search import SAME, cheapest, hour_slots, joined
from penstock.policy.hours.sums import sums
from penstock.policy.hours.terms import HourSchedule, HourState, HourTerms, Stretch, has_power
from penstock.run.hours import HOUR_S, HourlyCurve

# Of the work that is left, kept free before the deadline for what takes longer than expected.
RESERVE = 0.02
LONGEST_S = 366 * 24 * 3600.0  # beyond the deadline, for a run that will be late


@dataclass(frozen=True)
class HourDecision:
    """What the run does now, and when that will change as far as is known."""

    level: int | None  # None: it pauses
    until_s: float
    late: bool  # the run will end after the deadline, whatever it does


def decide(state: HourState, terms: HourTerms, curve: HourlyCurve) -> HourDecision:
    """Decide what the run does now."""
    plan = schedule(state, terms, curve)
    first = plan.stretches[0]
    return HourDecision(first.level, first.end_s, plan.late)


def schedule(state: HourState, terms: HourTerms, curve: HourlyCurve) -> HourSchedule:
    """Return the cheapest schedule that is found; without pauses where the run will be late."""
    if state.work_s <= 0:
        rest = Stretch(state.now_s, state.now_s + HOUR_S, state.level or 0)
        return HourSchedule((rest,), state.now_s, late=False)
    for deadline_s in (state.deadline_s - RESERVE * state.work_s, state.deadline_s):
        slots = hour_slots(replace(state, deadline_s=deadline_s), terms, curve)
        if found := cheapest(slots):
            straight = at_once(state, terms, curve)
            return found if straight.late or _cheaper(found, straight, terms, curve) else straight
    return at_once(state, terms, curve)


def _cheaper(one: HourSchedule, other: HourSchedule, terms: HourTerms, curve: HourlyCurve) -> bool:
    """Tell whether a schedule is worth its pauses."""
    cost, straight = (sums(plan, terms, curve).of(terms.by) for plan in (one, other))
    return cost < straight - SAME * abs(straight)


def at_once(state: HourState, terms: HourTerms, curve: HourlyCurve) -> HourSchedule:
    """Return the schedule of a run that takes all power that it gets, whatever it costs."""
    t, left_s, level = state.now_s, state.work_s, state.level
    found: list[Stretch] = []
    last_s = max(state.deadline_s, t) + LONGEST_S
    while left_s > 0 and t < last_s:
        upto, hour = curve.next_hour(t), curve.at(t)
        now = next((i for i, at in enumerate(terms.levels) if has_power(hour, at.watts)), None)
        if now is not None:
            speed = terms.levels[now].speed
            lost_s = 0.0 if now == level else terms.switch_s
            upto = min(upto, t + lost_s + left_s / speed)
            left_s -= speed * (upto - t - lost_s)
            left_s = 0.0 if left_s < 1e-6 else left_s
        found.append(Stretch(t, upto, now))
        t, level = upto, now
    finish_s = inf if left_s > 0 else t
    return HourSchedule(joined(found), finish_s, late=finish_s > state.deadline_s)
