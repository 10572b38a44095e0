"""One rank in one stretch of time: every second of it gets its cause.

The stretch is cut at `ready` and at the end of the last record. What lies between is explained by
the records; what they leave is unexplained, so the causes add up to the stretch whatever was
written.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from penstock.ledger.causes import Cause
from penstock.ledger.readers import Event
from penstock.ledger.records import CLOCK_ROUNDING_S
from penstock.ledger.steps import LeastExchange, Steps

Booked = dict[Cause, float]
# Spans that have a cause of their own; `warmup` counts as what it is part of.
SPANS = {
    "evaluate": Cause.EVALUATE,
    "checkpoint": Cause.CHECKPOINT,
    "lost": Cause.REDO,
    "regroup": Cause.DOWN,
    "rollback": Cause.DOWN,
    "warmup": None,
}
UNTIL_WORK = ("regroup", "rollback")  # to the next record: what feeds the loop is made anew
AGAIN = (Cause.EVALUATE, Cause.CHECKPOINT)  # of a step that had been passed before: `redo`


@dataclass(frozen=True)
class Stretch:
    """The time that an attempt has in its invocation."""

    start: float
    end: float
    faulted: bool
    waiting: Cause  # of a rank that is not ready: `startup`, or `down` after a fault
    absent: Cause  # of a rank that wrote nothing at all


@dataclass(frozen=True)
class Written:
    """What one rank wrote in one attempt, and what its peers did meanwhile."""

    events: list[Event]
    steps: Steps
    least: LeastExchange
    highest_before: int
    lost: tuple[float, ...] = ()  # when it was lost while the attempt went on, in order

    def between(self, start: float, end: float) -> "Written":
        """What it wrote of what began in a part of its time."""
        events = [event for event in self.events if start <= event.t < end]
        steps = self.steps.where((start <= self.steps.start) & (self.steps.start < end))
        return Written(events, steps, self.least, self.highest_before)

    def after_warm_up(self, ready: float) -> "Written":
        """Without the warm-up that the time before `ready` holds already."""
        events = [
            e
            for e in self.events
            if e.kind != "warmup" or (e.end or e.t) > ready + CLOCK_ROUNDING_S
        ]
        return replace(self, events=events)

    def spans(self) -> list[Event]:
        """The rare spans that have a cause; others stay unexplained."""
        return [e for e in self.events if e.kind in SPANS and e.end is not None]


def book(stretch: Stretch, written: Written) -> tuple[Booked, float]:
    """Seconds by cause of one rank, and the seconds clipped from records that did not fit.

    A rank that was lost while the others went on has a life before and one after.
    """
    if not written.lost:
        return _book_life(stretch, written)
    booked: Booked = defaultdict(float)
    clipped_s = 0.0
    cuts = [_within(stretch, t) for t in written.lost]
    lives = pairwise([stretch.start, *cuts, stretch.end])
    for number, (start, end) in enumerate(lives):
        waiting = (Cause.DOWN, Cause.DOWN) if number else (stretch.waiting, stretch.absent)
        life = Stretch(start, end, stretch.faulted or number < len(cuts), *waiting)
        upto = end if number < len(cuts) else float("inf")
        since = start if number else float("-inf")
        own, own_clipped_s = _book_life(life, written.between(since, upto))
        for cause, seconds in own.items():
            booked[cause] += seconds
        clipped_s += own_clipped_s
    return booked, clipped_s


def _book_life(stretch: Stretch, written: Written) -> tuple[Booked, float]:
    booked: Booked = defaultdict(float)
    if not written.events and not len(written.steps.start):
        booked[stretch.absent] = stretch.end - stretch.start
        return booked, 0.0
    ready = _within(stretch, _ready(written))
    booked[stretch.waiting] += ready - stretch.start
    written = written.after_warm_up(ready)

    kept_s, clipped_s, last = _fit(*_intervals(written), ready, stretch.end)
    count = len(written.steps.start)
    _book_steps(written, kept_s[:count], booked)
    _book_spans(written, kept_s[count:], stretch.waiting, booked)
    booked[Cause.UNEXPLAINED] += max(0.0, last - ready - float(kept_s.sum()))
    # A fault loses the step it fell into. A rank that said `end` is taking itself down, which is
    # the other half of start-up; of any other time after the last record nobody has said a word.
    ended = max(last, _within(stretch, _ended(written)))
    booked[Cause.STARTUP] += 0.0 if stretch.faulted else stretch.end - ended
    booked[Cause.UNEXPLAINED] += 0.0 if stretch.faulted else ended - last
    booked[Cause.REDO] += stretch.end - last if stretch.faulted else 0.0
    return booked, clipped_s


def _ready(written: Written) -> float:
    """The `ready` of the rank, or its first record, or never."""
    said = [event.t for event in written.events if event.kind == "ready"]
    if said:
        return said[0]
    starts = [*written.steps.start[:1].tolist(), *(span.t for span in written.spans())]
    return min(starts, default=float("inf"))


def _ended(written: Written) -> float:
    """The `end` of the rank, or never."""
    return max((e.t for e in written.events if e.kind == "end"), default=float("inf"))


def _within(stretch: Stretch, t: float) -> float:
    return min(max(t, stretch.start), stretch.end)


def _intervals(written: Written) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of all records: the steps, then the spans."""
    spans = written.spans()
    starts = np.concatenate([written.steps.start, [span.t for span in spans]])
    ends = np.concatenate([written.steps.end, [span.end for span in spans]])
    for i, span in enumerate(spans, len(written.steps.start)):
        if span.kind in UNTIL_WORK:
            ends[i] = min(starts[starts >= ends[i] - CLOCK_ROUNDING_S], default=ends[i])
    return starts, np.maximum(starts, ends)


def _fit(
    starts: np.ndarray, ends: np.ndarray, low: float, high: float
) -> tuple[np.ndarray, float, float]:
    """What is left of each record inside [low, high] when an earlier record has precedence.

    Returns the seconds kept of each, the seconds clipped, and where the last record ends.
    """
    order = np.argsort(starts, kind="stable")
    first, last = starts[order], ends[order]
    taken = np.maximum.accumulate(np.concatenate([[low], last]))[:-1]
    begin = np.clip(np.maximum(first, taken), low, high)
    kept = np.maximum(np.clip(last, low, high) - begin, 0.0)
    lost = (last - first) - kept
    in_place = np.empty_like(kept)
    in_place[order] = kept
    final = min(max(low, float(last.max(initial=low))), high)
    return in_place, float(lost[lost > CLOCK_ROUNDING_S].sum()), final


def _book_steps(written: Written, kept_s: np.ndarray, booked: Booked) -> None:
    steps = written.steps
    booked[Cause.REDO] += float(kept_s[steps.redo].sum())
    fresh = ~steps.redo
    inside = {name: seconds[fresh] for name, seconds in steps.inside.items()}
    explained = inside["fetch"] + inside["compute"] + inside["exchange"] + inside["bubble"]
    # Parts beyond the total, and the parts of a clipped step, shrink in proportion.
    whole = np.maximum(steps.total[fresh], explained)
    share = np.divide(kept_s[fresh], whole, out=np.zeros_like(whole), where=whole > 0)
    least = written.least.at(steps.number[fresh], inside["exchange"])

    booked[Cause.DATA_WAIT] += float(share @ inside["fetch"])
    booked[Cause.COMPUTE] += float(share @ inside["compute"])
    booked[Cause.BUBBLE] += float(share @ inside["bubble"])
    booked[Cause.COMMUNICATE] += float(share @ least)
    booked[Cause.PEER_WAIT] += float(share @ (inside["exchange"] - least))
    booked[Cause.UNEXPLAINED] += float(share @ (whole - explained))


def _book_spans(written: Written, kept_s: np.ndarray, waiting: Cause, booked: Booked) -> None:
    for span, seconds in zip(written.spans(), kept_s.tolist(), strict=True):
        step = span.whole("step")
        cause = SPANS[span.kind] or waiting
        if cause in AGAIN and step is not None and step <= written.highest_before:
            cause = Cause.REDO
        booked[cause] += seconds
