"""Lives of a run on spot, from one change to the next: spans of capacity, restarts, the last date.

`rent/play.py` plays the same rule in ticks, for recorded traces. Weeks of work on capacity that is
taken back every few hours need ticks of minutes, which are too many; here only moments count at
which something changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from penstock.policy.spot import Capacity, RentState, RentTerms, SpotHistory, choose_capacity
from penstock.simulate.compare.lived import Lived
from penstock.simulate.draws import generator
from penstock.simulate.rent.rank import LONGEST_WAIT

LOOK_S = 60.0  # between the decision to leave spot for good and its last moment
LOOKS = 200  # decisions at least until the deadline: what is expected changes slowly
LEAST_S = 1e-3  # rounding never stops the clock
DRAWN = 256  # times at once
_SPOT = 2**62  # the streams that availability is drawn from: no life has these numbers

Span = tuple[float, float]  # seconds in which all nodes are there


@dataclass(frozen=True)
class SpotTerms:
    """Spot nodes, and on-demand ones beside them."""

    history: SpotHistory  # of one region
    restart_s: float  # from capacity to progress
    price_ratio: float | None  # on-demand over spot; None where there is no on-demand
    regions: int = 1  # that the run may move between
    seed: int = 0


@dataclass(frozen=True)
class SpotLife:
    """One life on spot; seconds."""

    end_s: float
    spot_s: float  # paid for
    on_demand_s: float
    starts: int
    done: bool


@dataclass(frozen=True)
class OnSpot:
    """All lives of a run on spot."""

    lives: tuple[SpotLife, ...]

    def of(self, name: str) -> np.ndarray:
        """Return one number of every life."""
        return np.array([getattr(life, name) for life in self.lives])


def on_spot(lived: Lived, by_s: float | None) -> OnSpot:
    """Play all lives on spot; `by_s` counts from the moment when there may be capacity."""
    price = lived.price
    assert price is not None
    dear, cheap = price.usd(price.on_demand_usd_per_hour), price.usd(price.usd_per_hour)
    ratio = dear / cheap if dear and cheap else None
    terms = SpotTerms(lived.history, lived.restart_s, ratio, price.regions, seed=lived.done.seed)
    lives = []
    for number, work_s in enumerate(lived.wall_s.tolist()):
        if ratio is None or by_s is None:
            lives.append(spot_alone(terms, work_s, number))
        else:
            lives.append(mixed(terms, work_s, by_s, number))
    return OnSpot(tuple(lives))


def spot_alone(terms: SpotTerms, work_s: float, number: int) -> SpotLife:
    """Use spot whenever it is there, and wait while it is away."""
    left_s, paid_s, starts = work_s, 0.0, 0
    longest_s = LONGEST_WAIT * work_s
    for begin_s, end_s in spans(terms, number):
        if begin_s > longest_s:
            break
        starts += 1
        need_s = terms.restart_s + left_s
        if end_s - begin_s >= need_s:
            return SpotLife(begin_s + need_s, paid_s + need_s, 0.0, starts, True)
        left_s -= max(end_s - begin_s - terms.restart_s, 0.0)
        paid_s += end_s - begin_s
    return SpotLife(longest_s, paid_s, 0.0, starts, False)


def mixed(terms: SpotTerms, work_s: float, by_s: float, number: int) -> SpotLife:
    """Mix spot and on-demand by the rule of `policy/spot.py`."""
    assert terms.price_ratio is not None
    rent = RentTerms(terms.restart_s, LOOK_S, terms.price_ratio)
    coming = spans(terms, number)
    span = next(coming, (inf, inf))
    on: Capacity = "wait"
    t = spot_s = on_demand_s = lasted_s = warm_s = 0.0
    left_s, history, starts, before = work_s, terms.history, 0, False
    while left_s > LEAST_S:
        there = span[0] <= t
        now: Capacity = on if on != "spot" or there else "wait"
        state = RentState(left_s, by_s - t, now, there, history, lasted_s)
        on = choose_capacity(state, rent)
        if on not in (now, "wait"):
            warm_s, starts = terms.restart_s, starts + 1
        step_s = min((span[1] if there else span[0]) - t, by_s / LOOKS)
        if lasted_s < terms.restart_s:
            step_s = min(step_s, terms.restart_s - lasted_s)
        # While nothing is done, the time that on-demand would need runs out.
        idle_s = {"wait": inf, "spot": warm_s, "on-demand": 0.0}[on]
        slack_s = max(by_s - t - left_s - terms.restart_s - LOOK_S, LOOK_S)
        if idle_s > slack_s:
            step_s = min(step_s, slack_s)
        if on != "wait":
            step_s = min(step_s, warm_s + left_s)
        step_s = max(step_s, LEAST_S)
        if on != "wait":
            started_s = min(warm_s, step_s)
            warm_s, left_s = warm_s - started_s, left_s - (step_s - started_s)
            spot_s += step_s if on == "spot" else 0.0
            on_demand_s += step_s if on == "on-demand" else 0.0
        history, before = history.seen(there, step_s, before), there
        t, lasted_s = t + step_s, lasted_s + step_s
        if there and t >= span[1] - LEAST_S:
            span, lasted_s = next(coming, (inf, inf)), 0.0
            on = "wait" if on == "spot" else on  # a move to another region starts anew
        elif not there and t >= span[0]:
            lasted_s = 0.0
    return SpotLife(t, spot_s, on_demand_s, starts, True)


def spans(terms: SpotTerms, number: int) -> Iterator[Span]:
    """Yield when a run has spot that moves to a region with some; two spans may touch."""
    own = [_drawn(terms, number, place) for place in range(terms.regions)]
    heads = [next(each, (inf, inf)) for each in own]
    t = 0.0
    while True:
        for place, each in enumerate(own):
            while heads[place][1] <= t:
                heads[place] = next(each, (inf, inf))
        first = min(range(len(heads)), key=lambda place: max(heads[place][0], t))
        begin_s, end_s = max(heads[first][0], t), heads[first][1]
        if begin_s == inf:
            return
        yield begin_s, end_s
        t = end_s


def _drawn(terms: SpotTerms, number: int, place: int) -> Iterator[Span]:
    """Draw when one region has spot, with exponential times."""
    known = terms.history
    if known.up_s <= 0:
        return
    if known.down_s <= 0 or known.taken <= 0:
        yield 0.0, inf
        return
    luck = generator(terms.seed, _SPOT + number + (place << 32))
    up_s, down_s = known.up_s / known.taken, known.down_s / known.taken
    # Exponential times have no memory, so that the first one is like any other.
    t = (
        0.0
        if luck.random() < known.up_s / (known.up_s + known.down_s)
        else luck.exponential(down_s)
    )
    while True:
        ups, downs = (
            luck.exponential(up_s, DRAWN).tolist(),
            luck.exponential(down_s, DRAWN).tolist(),
        )
        for up, down in zip(ups, downs, strict=True):
            yield t, t + up
            t += up + down
