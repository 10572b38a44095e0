"""The best number of nodes: the fewest for a deadline, the fastest for a budget.

No count below what perfect scaling would need can do, so the search starts there. It doubles until
the goal is met or more does not help, then looks at eighths between two doublings, then halves the
gap to a 64th of the count, which is finer than any plan is sure. Speed is not monotone in the count
(a prime number of nodes splits badly), so the answer is the best of what was looked at, and all of
that is shown.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any

from penstock.errors import PenstockError
from penstock.plan.hardware.machine import Machine
from penstock.plan.hardware.scale import MOST, grows
from penstock.plan.life.life import DAY_S
from penstock.plan.scaling.limits import NOTHING_FITS
from penstock.plan.scaling.sweep import Progress, ScalePlanner, ScalePoint
from penstock.run.schema.run import Run
from penstock.style import MONEY, TIMES, format_predicted

# Doublings in a row that do not help, before no further one is tried.
PATIENCE = 2
# Counts between two doublings, and the finest gap, as parts of the count.
PARTS, FINEST = 8, 64
Key = tuple[float, float]  # smaller is better


@dataclass(frozen=True)
class NodeCountAnswer:
    """The point that meets the goal, and every count that was planned on the way."""

    goal: str
    point: ScalePoint
    considered: tuple[ScalePoint, ...]  # by number of accelerators

    def neighbours(self, each_side: int = 3) -> tuple[ScalePoint, ...]:
        """Return the point with those next to it."""
        at = self.considered.index(self.point)
        return self.considered[max(0, at - each_side) : at + each_side + 1]

    def to_json(self) -> dict[str, Any]:
        return {
            "goal": self.goal,
            "nodes": self.point.nodes,
            "point": self.point.to_json(),
            "considered": [point.to_json() for point in self.considered],
        }


def nodes_for_deadline(
    run: Run, machine: Machine, seconds: float, progress: Progress | None = None
) -> NodeCountAnswer:
    """Find the fewest nodes on which the run ends within `seconds` of wall clock in nine of ten
    cases.

    That is the late end of the plan's band: by the middle of it, every second run would be late.
    """
    if not 0 < seconds < inf:
        raise PenstockError(f'deadline: {seconds:g} s; write a time above zero, such as "14 days"')
    tried = _Tried(ScalePlanner.of(run, machine), progress)

    def meets(nodes: int) -> bool:
        return _late_s(tried(nodes)) <= seconds

    least = max(1, ceil(tried.planner.perfect_s / seconds / tried.per_node))
    if least <= tried.most:
        _double(tried, 2 ** (least.bit_length() - 1), lambda p: (_late_s(p), 0.0), meets)
    high = min(filter(meets, tried.known), default=0)
    if not high and tried.fastest:  # the peak may lie beside the fastest doubling
        high = 2 * tried.fastest.nodes
    high = next((n for n in _between(high // 2, high, tried.most) if n >= least and meets(n)), high)
    if not high or high > tried.most or not meets(high):
        raise PenstockError(_too_late(tried, seconds))
    below = max((n for n in tried.known if n < high), default=least - 1)
    _halve(high, max(below, least - 1), lambda nodes, _: meets(nodes))
    best = min(nodes for nodes in tried.known if meets(nodes))
    goal = f"fewest nodes within {format_predicted(seconds, TIMES)} in nine of ten cases"
    return NodeCountAnswer(goal, tried(best), tried.points)


def nodes_for_budget(
    run: Run, machine: Machine, usd: float, progress: Progress | None = None
) -> NodeCountAnswer:
    """Find the fastest number of nodes that costs no more than `usd`."""
    if not 0 < usd < inf:
        raise PenstockError(f"--budget {usd:g}: not an amount of USD; write one above zero")
    tried = _Tried(ScalePlanner.of(run, machine), progress)

    def key(point: ScalePoint) -> Key:
        """Return the sort key: affordable ones first, then the faster, or the cheaper."""
        paid = _usd(point)
        return (0.0, _wall_s(point)) if paid <= usd else (1.0, paid)

    _double(tried, 1, key)
    best = min(tried.known, key=lambda nodes: key(tried(nodes)))
    if _usd(tried(best)) > usd:
        raise PenstockError(_too_dear(tried, usd))

    def better(nodes: int, than: int) -> bool:
        return key(tried(nodes)) < key(tried(than))

    # Below the best doubling a count is slower, unless the peak of the speed is near.
    past_peak = 2 * best in tried.known and _usd(tried(2 * best)) <= usd
    beside = (
        *_between(best // 2, best, best if past_peak else 0),
        *_between(best, 2 * best, tried.most),
    )
    for nodes in beside:
        best = nodes if better(nodes, best) else best
    above = min((n for n in tried.known if n > best), default=best)
    _halve(best, above, better)
    found = min(tried.points, key=key)
    return NodeCountAnswer(f"fastest within {format_predicted(usd, MONEY)}", found, tried.points)


@dataclass
class _Tried:
    """Plans by number of nodes, each made once."""

    planner: ScalePlanner
    progress: Progress | None
    known: dict[int, ScalePoint] = field(default_factory=dict)

    def __call__(self, nodes: int) -> ScalePoint:
        if nodes not in self.known:
            count = nodes * self.per_node
            if self.progress:
                self.progress(count, len(self.known))
            self.known[nodes] = self.planner.at(count)
        return self.known[nodes]

    @property
    def per_node(self) -> int:
        """Return the accelerators of a whole node: a lone accelerator has the catalog's number."""
        machine = self.planner.machine
        return self.planner.scaled(MOST).per_node if grows(machine) else machine.per_node

    @property
    def most(self) -> int:
        machine = self.planner.machine
        return MOST // self.per_node if grows(machine) else machine.nodes

    @property
    def points(self) -> tuple[ScalePoint, ...]:
        return tuple(self.known[nodes] for nodes in sorted(self.known))

    @property
    def fastest(self) -> ScalePoint | None:
        return min((p for p in self.points if p.plan), key=_wall_s, default=None)


def _double(
    tried: _Tried,
    nodes: int,
    key: Callable[[ScalePoint], Key],
    done: Callable[[int], bool] = lambda nodes: False,
) -> None:
    """Plan `nodes`, twice as many, … until one is done or more does not help."""
    best, idle = (inf, inf), 0
    while nodes <= tried.most and idle < PATIENCE and not done(nodes):
        now = key(tried(nodes))
        # That the model does not fit is no sign that more accelerators will not help.
        idle = 0 if now < best or tried(nodes).limit == NOTHING_FITS else idle + 1
        best = min(best, now)
        nodes *= 2


def _between(low: int, high: int, most: int) -> range:
    """Return eighths of the way from `low` to `high`, without the ends."""
    step = max(1, (high - low) // PARTS)
    return range(low + step, min(high, most + 1), step)


def _halve(good: int, bad: int, better: Callable[[int, int], bool]) -> None:
    """Plan counts between one that does and one that does not."""
    while abs(good - bad) > max(1, good // FINEST):
        middle = (good + bad) // 2
        if better(middle, good):
            good = middle
        else:
            bad = middle


def _wall_s(point: ScalePoint) -> float:
    return point.plan.life.wall_s if point.plan else inf


def _late_s(point: ScalePoint) -> float:
    """Return the late end of the band of the time."""
    span = point.plan.span("days") if point.plan else None
    return span[1] * DAY_S if span else _wall_s(point)


def _usd(point: ScalePoint) -> float:
    if point.plan is None:
        return inf
    if point.plan.bill.usd is None:
        raise PenstockError(
            "budget: no price is known for this machine; write cluster.usd_per_hour in the run file"
        )
    return point.plan.bill.usd


def _too_late(tried: _Tried, seconds: float) -> str:
    head = f"deadline of {format_predicted(seconds, TIMES)}: no number of nodes makes it"
    near, planned = tried.fastest, tried.points
    if near is None:
        if planned:
            return f"{head}; {planned[-1].accelerators:,} accelerators: {planned[-1].reason}"
        days = format_predicted(tried.planner.perfect_s / tried.most / tried.per_node, TIMES)
        return (
            f"{head}; {tried.most * tried.per_node:,} accelerators, the most that are looked at, "
            f"need {days} even if nothing is lost. Train fewer tokens or a smaller model"
        )
    late = f"{format_predicted(_late_s(near), TIMES)} in nine of ten cases"
    text = f"{head}. The nearest, {_sized(near)}, need {late}"
    if not any(p.accelerators > near.accelerators for p in planned):
        return f"{text}, and this machine has no more. Train fewer tokens or a smaller model"
    beyond = next(p for p in planned if p.accelerators > near.accelerators)
    share = max(beyond.losses.values(), default=0.0)
    took = f", {100 * share:.0f} % of the accelerator-time" if share else ""
    return f"{text}; more do not help because of {beyond.limit}{took}"


def _too_dear(tried: _Tried, usd: float) -> str:
    head = f"budget of {format_predicted(usd, MONEY)}: no number of nodes is within it"
    cheapest = min(tried.points, key=_usd)
    if cheapest.plan is None:
        return f"{head}; {cheapest.accelerators:,} accelerators: {cheapest.reason}"
    return (
        f"{head}. The cheapest, {_sized(cheapest)}, cost "
        f"{format_predicted(_usd(cheapest), MONEY)} in "
        f"{format_predicted(_wall_s(cheapest), TIMES)}. Train fewer tokens or a smaller model"
    )


def _sized(point: ScalePoint) -> str:
    nodes = "1 node" if point.nodes == 1 else f"{point.nodes:,} nodes"
    return f"{point.accelerators:,} accelerators ({nodes})"
