"""A run that rents by a policy, from each change to the next.

Spot comes in spans of time. The policy is asked when a span begins or ends, and at the moments that
`policy/spot.py` names in between. A change of capacity costs a restart: it is paid for and brings
no progress. Times are exact but for the rounding of floating point.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf

from penstock.policy.spot import (
    LEAST_S,
    UNKNOWN,
    Capacity,
    RentState,
    RentTerms,
    SpotHistory,
    choose_capacity,
    next_look_s,
)
from penstock.simulate.rent.spans import NEVER, Span

Policy = Callable[[RentState, RentTerms], Capacity]
Look = Callable[[RentState, RentTerms], float]


@dataclass(frozen=True)
class Rented:
    """One life on rented capacity; seconds."""

    end_s: float  # when it was done, or given up
    spot_s: float  # paid for
    on_demand_s: float
    starts: int  # of capacity, each with a restart
    done: bool  # the work, in time or not
    switched_at_s: float | None  # from then on it was on on-demand to the end

    def cost(self, price_ratio: float) -> float:
        """Return the money, in units of a second of spot."""
        return self.spot_s + price_ratio * self.on_demand_s


def play(
    spans: Iterable[Span],
    work_s: float,
    by_s: float,
    terms: RentTerms,
    policy: Policy = choose_capacity,
    history: SpotHistory = UNKNOWN,
    look: Look = next_look_s,
) -> Rented:
    """Rent for `work_s` of progress until `by_s`; spot is there in each of `spans`.

    `look` tells how long the policy's choice stands while spot stays as it is.
    Where two spans touch, the capacity of the first is taken back and other capacity is there at
    once. A run that is late finishes on-demand, or gives up if its policy knows none.
    """
    coming = iter(spans)
    span = next(coming, NEVER)
    on: Capacity = "wait"
    t = spot_s = on_demand_s = lasted_s = warm_s = 0.0
    left_s, starts = work_s, 0
    switched_at_s: float | None = None
    while left_s > LEAST_S:
        there = span[0] <= t
        state = RentState(left_s, by_s - t, on, there, history, lasted_s, warm_s)
        chosen = policy(state, terms)
        assert chosen != "spot" or there, "a policy cannot use spot that is not there"
        if chosen == "wait" and t >= by_s:
            break
        if chosen != on:
            warm_s, starts = (terms.restart_s, starts + 1) if chosen != "wait" else (0.0, starts)
            switched_at_s = t if chosen == "on-demand" else None
            on = chosen
        change_s = span[1] if there else span[0]
        look_s = look(replace(state, on=on, warm_s=warm_s), terms)
        until_s = min(change_s, t + look_s, by_s if on == "wait" else t + warm_s + left_s)
        step_s = until_s - t
        if on != "wait":
            started_s = min(warm_s, step_s)
            warm_s, left_s = warm_s - started_s, left_s - (step_s - started_s)
            spot_s += step_s if on == "spot" else 0.0
            on_demand_s += step_s if on == "on-demand" else 0.0
        history = history.seen(there, step_s)
        t, lasted_s = until_s, lasted_s + step_s
        if until_s == change_s:
            lasted_s = 0.0
        if until_s == change_s and there:
            span, history = next(coming, NEVER), history.lost()
            if on == "spot" and left_s > LEAST_S:
                on, warm_s = "wait", 0.0
    done = left_s <= LEAST_S
    end_s = by_s if by_s < t <= by_s + LEAST_S else t  # of rounding alone nothing is late
    return Rented(end_s, spot_s, on_demand_s, starts, done, switched_at_s)


def spot_alone(state: RentState, terms: RentTerms) -> Capacity:
    """Use spot whenever it is there, and nothing else."""
    return "spot" if state.spot else "wait"


def never(state: RentState, terms: RentTerms) -> float:
    """Look at nothing while spot stays as it is: the choice depends on that alone."""
    return inf
