"""A run that rents by a policy, tick by tick, and the cheapest way in hindsight.

Time is cut into ticks. Spot is there during a whole tick or not at all, and the policy sees which
at its start. A change of capacity costs a restart: it is paid for and brings no progress. Money is
in units of one tick of spot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from penstock.policy.spot import (
    UNKNOWN,
    Capacity,
    RentState,
    RentTerms,
    SpotHistory,
    choose_capacity,
)

Policy = Callable[[RentState, RentTerms], Capacity]


@dataclass(frozen=True)
class Rented:
    """What a run rented until it was done, or until the trace ended."""

    spot_ticks: int
    on_demand_ticks: int
    ticks: int  # until it was done
    done: bool  # in time
    changes: int
    switched_at: int | None  # the tick from which on-demand was used to the end

    def cost(self, price_ratio: float) -> float:
        return self.spot_ticks + price_ratio * self.on_demand_ticks


def play(
    available: Sequence[bool],
    work: int,
    deadline: int,
    terms: RentTerms,
    policy: Policy = choose_capacity,
    history: SpotHistory = UNKNOWN,
) -> Rented:
    """Rent for `work` ticks of progress; spot is `available` or not in each tick.

    After the trace or the deadline there is no spot: a late run finishes on-demand.
    """
    restart = _restart_ticks(terms)
    on: Capacity = "wait"
    warm, left = 0, work  # ticks of restart and of work to come
    spot_ticks = on_demand_ticks = changes = tick = 0
    switched_at: int | None = None
    there_before, lasted = False, 0  # ticks since spot came or went
    while left > 0:
        there = tick < min(len(available), deadline) and bool(available[tick])
        lasted = lasted + 1 if tick and there == there_before else 0
        now: Capacity = on if on != "spot" or there else "wait"  # spot was taken back
        state = RentState(
            left * terms.look_s,
            (deadline - tick) * terms.look_s,
            now,
            there,
            history,
            lasted * terms.look_s,
        )
        chosen = policy(state, terms)
        if chosen == "wait" and tick >= deadline:
            break  # a policy without on-demand gives up here
        assert chosen != "spot" or there, "a policy cannot use spot that is not there"
        if chosen != now and chosen != "wait":
            warm, changes = restart, changes + 1
        if chosen == "on-demand" and on != "on-demand":
            switched_at = tick
        elif chosen != "on-demand":
            switched_at = None
        on = chosen
        spot_ticks += on == "spot"
        on_demand_ticks += on == "on-demand"
        if on != "wait":
            warm, left = (warm - 1, left) if warm else (0, left - 1)
        history = history.seen(there, terms.look_s, there_before)
        there_before = there
        tick += 1
    in_time = left == 0 and tick <= deadline
    return Rented(spot_ticks, on_demand_ticks, tick, in_time, changes, switched_at)


def cheapest(available: Sequence[bool], work: int, deadline: int, terms: RentTerms) -> float | None:
    """Return the cost of the best policy in hindsight; None if none is in time.

    A dynamic programme from the deadline back. Its state is the work left, the capacity in use and
    the ticks of restart to come: row 0 waits, then spot and on-demand with 0 to `restart` to come.
    """
    restart = _restart_ticks(terms)
    prices = (1.0, terms.price_ratio)
    far = np.full(work + 1, np.inf)
    far[0] = 0.0
    # value[k][w]: the cost to come with w work left; done is free.
    value = np.tile(far, (1 + 2 * (restart + 1), 1))

    def row(kind: int, warm: int) -> int:
        return 1 + kind * (restart + 1) + warm

    for tick in reversed(range(deadline)):
        there = tick < len(available) and bool(available[tick])
        # used[kind][warm]: the cost when this tick is spent so.
        used = np.full((2, restart + 1, work + 1), np.inf)
        for kind in (0, 1):
            if kind == 0 and not there:
                continue
            used[kind, 0, 1:] = prices[kind] + value[row(kind, 0), :-1]
            for warm in range(1, restart + 1):
                used[kind, warm] = prices[kind] + value[row(kind, warm - 1)]
        fresh = np.minimum(used[0, restart], used[1, restart])
        idle = np.minimum(value[0], fresh)
        new = np.empty_like(value)
        new[0] = idle
        for kind in (0, 1):
            for warm in range(restart + 1):
                new[row(kind, warm)] = np.minimum(used[kind, warm], idle)
        new[:, 0] = 0.0
        value = new
    best = float(value[0, work])
    return best if np.isfinite(best) else None


def _restart_ticks(terms: RentTerms) -> int:
    return ceil(terms.restart_s / terms.look_s - 1e-9)
