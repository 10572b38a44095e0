"""When spot is there: spans of time, drawn from what is known of it or read from a trace."""

from collections.abc import Iterator, Sequence
from math import inf

from penstock.policy.spot import SpotHistory
from penstock.simulate.draws import generator
from penstock.simulate.traces import Trace

DRAWN = 256  # times at once
_SPOT = 2**62  # the streams that availability is drawn from: no life has these numbers

Span = tuple[float, float]  # seconds in which all nodes are there
NEVER: Span = (inf, inf)


def drawn(known: SpotHistory, seed: int, life: int, region: int = 0) -> Iterator[Span]:
    """Draw when one region has spot, with exponential times."""
    if known.up_s <= 0:
        return
    if known.down_s <= 0 or known.taken <= 0:
        yield 0.0, inf
        return
    luck = generator(seed, _SPOT + life + (region << 32))
    up_s, down_s = known.up_s / known.taken, known.down_s / known.taken
    # Exponential times have no memory, so that the first one is like any other.
    t = (
        0.0
        if luck.random() < known.up_s / (known.up_s + known.down_s)
        else luck.exponential(down_s)
    )
    while True:
        ups = luck.exponential(up_s, DRAWN).tolist()
        downs = luck.exponential(down_s, DRAWN).tolist()
        for up, down in zip(ups, downs, strict=True):
            yield t, t + up
            t += up + down


def moving(regions: Sequence[Iterator[Span]]) -> Iterator[Span]:
    """Yield when a run has spot that moves to a region with some; two spans may touch."""
    heads = [next(each, NEVER) for each in regions]
    t = 0.0
    while True:
        for place, each in enumerate(regions):
            while heads[place][1] <= t:
                heads[place] = next(each, NEVER)
        first = min(range(len(heads)), key=lambda place: max(heads[place][0], t))
        begin_s, end_s = max(heads[first][0], t), heads[first][1]
        if begin_s == inf:
            return
        yield begin_s, end_s
        t = end_s


def of_trace(trace: Trace, nodes: int, from_s: float, upto_s: float) -> Iterator[Span]:
    """Yield when a trace has so many nodes, from a moment in it and for `upto_s` seconds."""
    begin_s: float | None = 0.0 if trace.at(from_s) >= nodes else None
    for moment_s, count in trace.changes(-from_s):
        if moment_s >= upto_s:
            break
        if count >= nodes and begin_s is None:
            begin_s = moment_s
        elif count < nodes and begin_s is not None:
            yield begin_s, moment_s
            begin_s = None
    if begin_s is not None:
        yield begin_s, upto_s


def draw_start_s(trace: Trace, seed: int, life: int) -> float:
    """Draw where in a trace a life begins."""
    start_s: float = generator(seed, _SPOT + life).uniform(0, trace.length_s)
    return start_s
