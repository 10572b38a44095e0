"""The search for the cheapest hours that do a given work before a deadline.

If a second of progress earns a price, the best choice of every hour follows by dynamic programming,
which knows that each start costs time. Bisection finds the price at which just enough is done. Of
the paths on both sides of it one goes over into the other at some hour, and what is then too much
is taken off the dearest ends of the times at work.
"""

from dataclasses import dataclass
from itertools import accumulate, groupby
from math import inf

from penstock.policy.hours.terms import (
    J_PER_KWH,
    HourSchedule,
    HourState,
    HourTerms,
    Stretch,
    grid_w,
    has_power,
    weight,
)
from penstock.run.hours import HourlyCurve

BISECTIONS = 40
CUTS = 12  # tried of each mixture: a cut may add a start, so the nearest one may fall short
ENOUGH_S = 1e-6
SAME = 1e-3  # of the cost: of schedules that differ by less, the one that ends first is taken

Path = list[int]  # the choice of each slot: a level, pausing, or being done


@dataclass(frozen=True)
class HourSlots:
    """The hours until the deadline; the first and the last may be cut short."""

    state: HourState
    terms: HourTerms
    starts_s: list[float]
    lengths_s: list[float]
    costs: list[list[float]]  # by slot and choice, for a whole slot
    speeds: list[float]  # by choice

    @property
    def pausing(self) -> int:
        return len(self.terms.levels)

    @property
    def first(self) -> int:
        """Return the choice before the first slot."""
        return self.pausing if self.state.level is None else self.state.level

    def gains_s(self, path: Path) -> list[float]:
        """Return the progress in each slot: a start takes off what it lasts."""
        found, was = [], self.first
        for now, length_s in zip(path, self.lengths_s, strict=True):
            lost_s = self.terms.switch_s if now < self.pausing and now != was else 0.0
            found.append(self.speeds[now] * (length_s - lost_s))
            was = now
        return found

    def enough(self, path: Path) -> bool:
        return sum(self.gains_s(path)) >= self.state.work_s - ENOUGH_S


def hour_slots(state: HourState, terms: HourTerms, curve: HourlyCurve) -> HourSlots:
    """Cut the time until the deadline into hours, with what each choice costs in them."""
    watts = [*(level.watts for level in terms.levels), terms.paused_w]
    slots = HourSlots(
        state, terms, [], [], [], [*(level.speed for level in terms.levels), 0.0, 0.0]
    )
    t = state.now_s
    while t < state.deadline_s:
        hour, upto = curve.at(t), min(curve.next_hour(t), state.deadline_s)
        kwh = [grid_w(hour, w) * (upto - t) / J_PER_KWH for w in watts]
        costs = [each * weight(hour, terms.by) for each in kwh]
        for level, one in enumerate(terms.levels):
            if not has_power(hour, one.needs_w):
                costs[level] = inf
        slots.starts_s.append(t)
        slots.lengths_s.append(upto - t)
        slots.costs.append([*costs, 0.0])
        t = upto
    return slots


def cheapest(slots: HourSlots) -> HourSchedule | None:
    """Return the cheapest schedule that is found; None if the work cannot be done in time."""
    found = _around(slots)
    if found is None:
        return None
    made = [one for path in _mixtures(slots, *found) if (one := _trimmed(slots, path))]
    if not made:
        return None
    costs = [_cost(one) for one in made]
    most = min(costs) + SAME * abs(min(costs))
    plans = [one.schedule() for one, cost in zip(made, costs, strict=True) if cost <= most]
    return min(plans, key=lambda plan: plan.finish_s)


def _around(slots: HourSlots) -> tuple[Path, Path] | None:
    """Return the paths that do just too little and just enough; None if none does enough."""
    if not slots.starts_s:
        return None
    most = max((abs(c) for row in slots.costs for c in row if c < inf), default=0.0)
    slowest = min(level.speed for level in slots.terms.levels)
    high = 4 * most / (min(slots.lengths_s) * slowest) + 1e-12
    low, above = -high, _path(slots, high)
    for _ in range(8):  # starts have a price too
        if slots.enough(above):
            break
        high *= 8
        above = _path(slots, high)
    if not slots.enough(above):
        return None
    below = _path(slots, low)
    if slots.enough(below):
        return below, below
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        path = _path(slots, middle)
        if slots.enough(path):
            high, above = middle, path
        else:
            low, below = middle, path
    return below, above


def _path(slots: HourSlots, price: float) -> Path:
    """Return the cheapest choices if a second of progress earns `price`."""
    pausing, switch_s = slots.pausing, slots.terms.switch_s
    done = pausing + 1
    worth = [inf] * (done + 1)
    worth[slots.first] = 0.0
    came: list[list[int]] = []
    for length_s, costs in zip(slots.lengths_s, slots.costs, strict=True):
        best = min(range(done), key=worth.__getitem__)  # of those that may be changed from
        now, back = [inf] * (done + 1), [best] * (done + 1)
        for level in range(pausing):
            earned = price * slots.speeds[level]
            stay = worth[level] - earned * length_s
            change = worth[best] - earned * (length_s - switch_s)
            now[level] = costs[level] + min(stay, change)
            back[level] = level if stay <= change else best
        now[pausing] = costs[pausing] + worth[best]
        back[done] = done if worth[done] <= worth[best] else best
        now[done] = worth[back[done]]
        worth = now
        came.append(back)
    at = min(range(done + 1), key=worth.__getitem__)
    path: Path = []
    for back in reversed(came):
        path.append(at)
        at = back[at]
    return path[::-1]


def _mixtures(slots: HourSlots, below: Path, above: Path) -> list[Path]:
    """Return paths that do enough: `above`, and it with a beginning or an end of `below`."""
    found = [above]
    for one, other in ((below, above), (above, below)):
        first = [0.0, *accumulate(slots.gains_s(one))]
        rest = [*([*accumulate(reversed(slots.gains_s(other)))][::-1]), 0.0]
        over = [a + b - slots.state.work_s for a, b in zip(first, rest, strict=True)]
        nearest = sorted(range(len(over)), key=lambda cut: abs(over[cut]))[:CUTS]
        found += [one[:cut] + other[cut:] for cut in nearest]
    return [path for path in found if slots.enough(path)]


@dataclass
class _Times:
    """A path whose slots at work may begin later or end earlier."""

    slots: HourSlots
    path: Path  # levels and pausing
    late_s: list[float]  # that work begins after the slot does
    early_s: list[float]  # that it ends before the slot does

    def blocks(self) -> list[list[int]]:
        """Return the slots of each time at work, in order."""
        pausing = self.slots.pausing
        groups = groupby(range(len(self.path)), key=lambda i: self.path[i] < pausing)
        return [list(group) for at_work, group in groups if at_work]

    def left_s(self, i: int) -> float:
        return self.slots.lengths_s[i] - self.late_s[i] - self.early_s[i]

    def progress_s(self) -> float:
        cut = zip(self.path, self.late_s, self.early_s, strict=True)
        taken_s = sum(self.slots.speeds[at] * (a + b) for at, a, b in cut)
        return sum(self.slots.gains_s(self.path)) - taken_s

    def last(self) -> int:
        """Return the last slot at work."""
        return self.blocks()[-1][-1]

    def saves(self, i: int, at_the_end: bool) -> float:
        """Return what a second less of progress at an end of work saves."""
        slots, at = self.slots, self.path[i]
        paused = 0.0 if at_the_end else slots.costs[i][slots.pausing]
        return (slots.costs[i][at] - paused) / slots.lengths_s[i] / slots.speeds[at]

    def trim(self, over_s: float) -> bool:
        """Take some progress off where it costs most; False if nothing can be taken off."""
        ends: list[tuple[float, bool, int]] = []  # what it saves, whether it is an end, the slot
        blocks = self.blocks()
        for block in blocks:
            started = block[0] > 0 or self.slots.first != self.path[0]
            if started:
                ends.append((self.saves(block[0], at_the_end=False), False, block[0]))
            final = block is blocks[-1]
            ends.append((self.saves(block[-1], at_the_end=final), True, block[-1]))
        if not ends:
            return False
        _, at_end, i = max(ends)
        speed = self.slots.speeds[self.path[i]]
        less_s = min(over_s / speed, self.left_s(i))
        if less_s >= self.left_s(i) - ENOUGH_S:
            self.path[i] = self.slots.pausing
            self.late_s[i] = self.early_s[i] = 0.0
        elif at_end:
            self.early_s[i] += less_s
        else:
            self.late_s[i] += less_s
        return True

    def schedule(self) -> HourSchedule:
        found: list[Stretch] = []
        slots, last = self.slots, self.last()
        for i, at in enumerate(self.path[: last + 1]):
            start, end = slots.starts_s[i], slots.starts_s[i] + slots.lengths_s[i]
            if at == slots.pausing:
                found.append(Stretch(start, end, None))
                continue
            begin, stop = start + self.late_s[i], end - self.early_s[i]
            found += [Stretch(start, begin, None), Stretch(begin, stop, at)]
            if i < last:
                found.append(Stretch(stop, end, None))
        stretches = joined(found)
        return HourSchedule(stretches, stretches[-1].end_s, late=False)


def _trimmed(slots: HourSlots, path: Path) -> _Times | None:
    """Take off all that is too much; None if what is left is too little."""
    zeros = [0.0] * len(path)
    made = _Times(slots, [min(at, slots.pausing) for at in path], zeros, [*zeros])
    while (over_s := made.progress_s() - slots.state.work_s) > ENOUGH_S:
        if not made.trim(over_s):
            return None
    return made if over_s >= -ENOUGH_S else None


def _cost(made: _Times) -> float:
    """Return the cost until the end of the last slot at work."""
    slots, last = made.slots, made.last()
    total = 0.0
    for i, at in enumerate(made.path[: last + 1]):
        row, length_s = slots.costs[i], slots.lengths_s[i]
        paused_s = made.late_s[i] + (made.early_s[i] if i < last else 0.0)
        at_work = row[at] * made.left_s(i) / length_s if at != slots.pausing else row[at]
        total += at_work + row[slots.pausing] * paused_s / length_s
    return total


def joined(stretches: list[Stretch]) -> tuple[Stretch, ...]:
    """Join neighbours that do the same, without empty ones."""
    some = [one for one in stretches if one.end_s > one.start_s]
    groups = [list(group) for _, group in groupby(some, key=lambda one: one.level)]
    return tuple(Stretch(g[0].start_s, g[-1].end_s, g[0].level) for g in groups)
