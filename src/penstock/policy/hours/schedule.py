"""The decision what a run does now, and until when: plan, simulator and supervisor ask it.

The supervisor asks again every hour with what is really left. A run that is slower than planned
then pauses less, and is late only if it would be late without any pause.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from penstock.policy.hours.search import ENOUGH_S, SAME, cheapest, hour_slots, joined
from penstock.policy.hours.sums import sums
from penstock.policy.hours.terms import HourSchedule, HourState, HourTerms, Stretch, has_power
from penstock.run.hours import Hour, HourlyCurve

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
    if state.work_s <= ENOUGH_S:
        rest = Stretch(
            state.now_s, curve.next_hour(state.now_s), _level_at_the_end(state, terms, curve)
        )
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


def _level_at_the_end(state: HourState, terms: HourTerms, curve: HourlyCurve) -> int | None:
    """Return how a run goes on that has no work left: as it does now, where there is the power."""
    powered = _powered(curve.at(state.now_s), terms)
    return state.level if state.level in powered else next(iter(powered), None)


def _powered(hour: Hour, terms: HourTerms) -> list[int]:
    """Return the levels that an hour has the power for."""
    return [i for i, level in enumerate(terms.levels) if has_power(hour, level.needs_w)]


def at_once(state: HourState, terms: HourTerms, curve: HourlyCurve) -> HourSchedule:
    """Return the schedule that ends first, whatever it costs.

    It takes all power that it gets. A start that takes longer than a better hour gives is not made.
    """
    speeds, pausing = [level.speed for level in terms.levels], len(terms.levels)
    first = pausing if state.level is None else state.level
    done_s = [-inf] * (pausing + 1)  # the most progress by now, for each present choice
    done_s[first] = 0.0
    cuts, came = [state.now_s], list[list[int]]()
    last_s = max(state.deadline_s, state.now_s) + LONGEST_S
    while (t := cuts[-1]) < last_s:
        upto = curve.next_hour(t)
        best = max(range(pausing + 1), key=done_s.__getitem__)
        now, back = [-inf] * pausing + [done_s[best]], [best] * (pausing + 1)
        for level in _powered(curve.at(t), terms):
            # What the start takes is progress that is owed, also beyond this hour.
            change_s = done_s[best] - speeds[level] * terms.switch_s
            back[level] = best if change_s > done_s[level] else level
            now[level] = max(change_s, done_s[level]) + speeds[level] * (upto - t)
        done_s = now
        came.append(back)
        ends = [
            (upto - (done_s[level] - state.work_s) / speeds[level], level)
            for level in range(pausing)
            if done_s[level] >= state.work_s - ENOUGH_S
        ]
        if ends:
            finish_s, level = min(ends)
            return _traced(level, [*cuts, finish_s], came, finish_s, state.deadline_s)
        cuts.append(upto)
    return _traced(
        max(range(pausing + 1), key=done_s.__getitem__), cuts, came, inf, state.deadline_s
    )


def _traced(
    choice: int, cuts: list[float], came: list[list[int]], finish_s: float, deadline_s: float
) -> HourSchedule:
    """Return the schedule whose last choice is given, by the choices that each came from."""
    found: list[Stretch] = []
    for (start_s, end_s), back in zip(reversed([*pairwise(cuts)]), reversed(came), strict=True):
        found.append(Stretch(start_s, end_s, choice if choice < len(back) - 1 else None))
        choice = back[choice]
    return HourSchedule(joined(found[::-1]), finish_s, late=finish_s > deadline_s)
