"""The cheapest way to rent when all of the spot to come is known: what a policy is held against.

On-demand is dearer than spot, so a span of spot that is used at all is used whole, unless it ends
the work. Time between used spans is on-demand or idle; where it is on-demand, it is all of it. So a
plan is known by which spans are used and which times between them are on-demand. With S the
progress on spot and G the progress that on-demand could make, it can finish if S + G is the work or
more. It costs its restarts, S (at most the work), and on-demand for the rest of the work.

The search goes through the spans in order and keeps the plans that no other one beats in restarts,
S and S + G. Times are exact.
"""

from collections.abc import Iterable

import numpy as np

from penstock.policy.spot import LEAST_S, RentTerms
from penstock.simulate.rent.spans import Span

RESTARTS, SPOT, ABLE = range(3)  # columns of plans: money of restarts, S, and S + G


def cheapest(spans: Iterable[Span], work_s: float, by_s: float, terms: RentTerms) -> float | None:
    """Return the cost in seconds of spot; None if no plan is in time."""
    ratio, restart_s = max(terms.price_ratio, 1.0), terms.restart_s
    known = []
    for begin_s, end_s in spans:
        if begin_s >= by_s:
            break
        known.append((begin_s, min(end_s, by_s)))
    # Upper bound of the seconds of work that spot can still bring after each span.
    coming = [0.0]
    for begin_s, end_s in reversed(known):
        coming.append(coming[-1] + max(end_s - begin_s - restart_s, 0.0))
    coming.reverse()
    idle = np.zeros((1, 3))
    on_demand = np.array([[ratio * restart_s, 0.0, -restart_s]])  # since the last used span
    best, now_s = np.inf, 0.0
    if restart_s + work_s <= by_s + LEAST_S:
        best = ratio * (restart_s + work_s)
    for i, (begin_s, end_s) in enumerate(known):
        # Up to the span, then on it: a restart, and progress.
        on_demand = _more(on_demand, able_s=begin_s - now_s)
        used = _kept(np.concatenate([idle, on_demand]))
        gain_s = end_s - begin_s - restart_s
        used = _more(used, restart_s, gain_s, gain_s) if gain_s > 0 else used[:0]
        best = min([best, *_money(used, work_s, ratio)])
        used = used[used[:, SPOT] < work_s - LEAST_S]
        idle = np.concatenate([idle, used])
        on_demand = np.concatenate(
            [
                _more(on_demand, able_s=end_s - begin_s),
                _more(used, ratio * restart_s, 0.0, -restart_s),
            ]
        )
        now_s = end_s
        best = min([best, *_money(_more(on_demand, able_s=by_s - now_s), work_s, ratio)])
        after = (coming[i + 1], by_s - now_s, work_s, ratio, best)
        idle, on_demand = (_kept(_hopeful(each, *after)) for each in (idle, on_demand))
    return float(best) if np.isfinite(best) else None


def _more(
    plans: np.ndarray, restarts: float = 0.0, spot_s: float = 0.0, able_s: float = 0.0
) -> np.ndarray:
    return plans + np.array([restarts, spot_s, able_s])


def _money(plans: np.ndarray, work_s: float, ratio: float) -> list[float]:
    """Return what the plans cost that can finish by what they have used so far."""
    plans = plans[plans[:, ABLE] >= work_s - LEAST_S]
    spot_s = np.minimum(plans[:, SPOT], work_s)
    found: list[float] = (plans[:, RESTARTS] + spot_s + ratio * (work_s - spot_s)).tolist()
    return found


def _hopeful(
    plans: np.ndarray, spot_s: float, left_s: float, work_s: float, ratio: float, best: float
) -> np.ndarray:
    """Return the plans that may still be in time and cheaper than the best one."""
    spot = np.minimum(plans[:, SPOT] + spot_s, work_s)
    money = plans[:, RESTARTS] + spot + ratio * (work_s - spot)
    in_time = plans[:, ABLE] + left_s >= work_s - LEAST_S
    return plans[in_time & (money < best)]


def _kept(plans: np.ndarray) -> np.ndarray:
    """Return the plans that no other one equals or beats in all three numbers."""
    if len(plans) < 2:
        return plans
    order = np.lexsort((-plans[:, ABLE], -plans[:, SPOT], plans[:, RESTARTS]))
    plans = plans[order]
    kept = []
    first = 0
    # One group after another of equal restarts, the cheapest first: each by falling S and rising
    # ability, and not below the staircase of the groups before it.
    bounds = [*(np.flatnonzero(np.diff(plans[:, RESTARTS]) > LEAST_S) + 1).tolist(), len(plans)]
    stair = np.empty((0, 2))
    for last in bounds:
        group = plans[first:last]
        first = last
        group = group[np.lexsort((-group[:, ABLE], -group[:, SPOT]))]
        before = np.maximum.accumulate(np.concatenate([[-np.inf], group[:-1, ABLE]]))
        group = group[group[:, ABLE] > before]
        if len(stair):
            # The ability of the best plan before with at least as much S.
            at = np.searchsorted(-stair[:, 0], -group[:, SPOT], side="right") - 1
            above = np.where(at >= 0, stair[np.maximum(at, 0), 1], -np.inf)
            group = group[group[:, ABLE] > above]
        if not len(group):
            continue
        kept.append(group)
        stair = np.concatenate([stair, group[:, 1:]])
        stair = stair[np.lexsort((-stair[:, 1], -stair[:, 0]))]
        rising = np.maximum.accumulate(np.concatenate([[-np.inf], stair[:-1, 1]]))
        stair = stair[stair[:, 1] > rising]
    return np.concatenate(kept)
