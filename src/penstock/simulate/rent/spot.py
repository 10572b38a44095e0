"""Lives of a run on spot capacity, played against drawn or recorded availability."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from penstock.policy.spot import Capacity, RentState, RentTerms, SpotHistory
from penstock.simulate.draws import generator
from penstock.simulate.rent.play import Rented, play
from penstock.simulate.traces import Trace

LONGEST_WAIT = 20  # times its work, until a run on spot alone is taken to be late
_SPOT = 2**62  # the streams that availability is drawn from: no life has these numbers


@dataclass(frozen=True)
class SpotCapacity:
    """Spot nodes, and on-demand ones beside them."""

    history: SpotHistory  # of one region
    restart_s: float  # from capacity to progress
    price_ratio: float | None  # on-demand over spot; None where there is no on-demand
    nodes: int
    seed: int = 0
    trace: Trace | None = None  # without it, availability is drawn
    regions: int = 1  # that the run may move between


def play_life(
    spot: SpotCapacity, wall_s: float, by_s: float | None, tick_s: float, number: int
) -> Rented:
    """Play one life that takes `wall_s`: by the rule where there is on-demand and a deadline, else
    waiting whenever spot is away.
    """
    mixed = spot.price_ratio is not None and by_s is not None
    longest_s = by_s if mixed and by_s is not None else LONGEST_WAIT * wall_s
    work, deadline = ceil(wall_s / tick_s), int(longest_s / tick_s)
    there = availability(spot, deadline, tick_s, number)
    terms = RentTerms(spot.restart_s, tick_s, spot.price_ratio or 2.0)
    if mixed:
        return play(there, work, deadline, terms, history=spot.history)
    return play(there, work, deadline, terms, spot_alone)


def spot_alone(state: RentState, terms: RentTerms) -> Capacity:
    """Use spot whenever it is there, and nothing else."""
    return "spot" if state.spot else "wait"


def availability(spot: SpotCapacity, ticks: int, tick_s: float, number: int) -> list[bool]:
    """Return whether all nodes are there in each tick, drawn or from the trace."""
    luck = generator(spot.seed, _SPOT + number)
    if spot.trace is not None:
        trace = spot.trace
        at = (luck.uniform(0, trace.length_s) + tick_s * np.arange(ticks)) % trace.length_s
        spans = np.searchsorted(trace.starts_s, at, side="right") - 1
        found: list[bool] = (np.asarray(trace.nodes)[spans] >= spot.nodes).tolist()
        return found
    regions = [_drawn(spot.history, ticks, tick_s, luck)]
    for other in range(1, spot.regions):
        own_luck = generator(spot.seed, _SPOT + number + (other << 32))
        regions.append(_drawn(spot.history, ticks, tick_s, own_luck))
    return regions[0] if len(regions) == 1 else _moving(regions)


def _drawn(known: SpotHistory, ticks: int, tick_s: float, luck: np.random.Generator) -> list[bool]:
    """Draw when one region has spot, with exponential times."""
    if known.down_s <= 0 or known.taken <= 0:
        return [True] * ticks
    up_s, down_s = known.up_s / known.taken, known.down_s / known.taken
    there: list[bool] = []
    now = bool(luck.random() < known.up_s / (known.up_s + known.down_s))
    while len(there) < ticks:
        length = max(round(luck.exponential(up_s if now else down_s) / tick_s), 1)
        there += [now] * length
        now = not now
    return there[:ticks]


def _moving(regions: list[list[bool]]) -> list[bool]:
    """Return when a run that moves to a region with spot has it.

    The tick of a move brings nothing, so that the new nodes cost a restart like any others.
    """
    there, at = [], 0
    for now in zip(*regions, strict=True):
        if now[at]:
            there.append(True)
            continue
        at = next((place for place, has in enumerate(now) if has), at)
        there.append(False)
    return there
