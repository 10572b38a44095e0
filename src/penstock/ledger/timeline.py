"""One rank in one stretch of time: every second of it gets its cause.

The stretch is cut at `ready` and at the end of the last record. What lies between is explained by
the records; what they leave is unexplained, so the causes add up to the stretch whatever was
written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from penstock.ledger.causes import Cause
from penstock.ledger.journal.read import Event
from penstock.ledger.journal.records import CLOCK_ROUNDING_S
from penstock.ledger.journal.steps import LeastExchange, Steps
from penstock.ledger.pieces import CAUSES, PLACE, Pieces, nothing, ramp

# Spans that have a cause of their own; `warmup` counts as what it is part of.
SPANS = {
    "evaluate": Cause.EVALUATE,
    "checkpoint": Cause.CHECKPOINT,
    "held": Cause.CHECKPOINT,
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
    # How its measured `compute` divides, as traces of single steps saw it.
    shares: Mapping[Cause, float] = field(default_factory=lambda: {Cause.COMPUTE: 1.0})

    def between(self, start: float, end: float) -> "Written":
        """What it wrote of what began in a part of its time."""
        events = [event for event in self.events if start <= event.t < end]
        steps = self.steps.where((start <= self.steps.start) & (self.steps.start < end))
        return replace(self, events=events, steps=steps, lost=())

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


@dataclass(frozen=True)
class Life:
    """A rank from one moment to another: waiting, then work with spans in it, then its tail."""

    start: float
    ready: float
    last: float  # the end of its last record
    ended: float  # of what nobody has said a word about
    end: float
    waiting: Cause
    tail: Cause
    spans: Pieces
    work: Pieces  # by a clock that stands still in spans
    clipped_s: float  # of records that did not fit

    def upto(self, t: np.ndarray) -> np.ndarray:
        """Seconds by cause before each of these moments: [moments, causes]."""
        seconds = self.work.upto(t - self.spans.filled(t))
        seconds += self.spans.upto(t)
        between = ramp(t, self.ready, self.last) - seconds.sum(axis=1)
        seconds[:, PLACE[Cause.UNEXPLAINED]] += np.maximum(between, 0.0)
        for cause, start, end in (
            (self.waiting, self.start, self.ready),
            (Cause.UNEXPLAINED, self.last, self.ended),
            (self.tail, self.ended, self.end),
        ):
            seconds[:, PLACE[cause]] += ramp(t, start, end)
        return seconds

    def total(self) -> np.ndarray:
        """Seconds by cause of all of it."""
        seconds = self.spans.total() + self.work.total()
        unexplained_s = max(self.last - self.ready - float(seconds.sum()), 0.0)
        for cause, length in (
            (Cause.UNEXPLAINED, unexplained_s + self.ended - self.last),
            (self.waiting, self.ready - self.start),
            (self.tail, self.end - self.ended),
        ):
            seconds[PLACE[cause]] += length
        return seconds


def lives(stretch: Stretch, written: Written) -> list[Life]:
    """A rank that was lost while the others went on has a life before and one after."""
    if not written.lost:
        return [_life(stretch, written)]
    cuts = [_within(stretch, t) for t in written.lost]
    found = []
    for number, (start, end) in enumerate(pairwise([stretch.start, *cuts, stretch.end])):
        waiting = (Cause.DOWN, Cause.DOWN) if number else (stretch.waiting, stretch.absent)
        one = Stretch(start, end, stretch.faulted or number < len(cuts), *waiting)
        upto = end if number < len(cuts) else float("inf")
        since = start if number else float("-inf")
        found.append(_life(one, written.between(since, upto)))
    return found


def idle(start: float, end: float, cause: Cause) -> Life:
    """Of one cause from start to end."""
    return Life(start, end, end, end, end, cause, cause, nothing(), nothing(), 0.0)


def _life(stretch: Stretch, written: Written) -> Life:
    if not written.events and not len(written.steps.start):
        return idle(stretch.start, stretch.end, stretch.absent)
    ready = _within(stretch, _ready(written))
    written = written.after_warm_up(ready)
    fitted = fit(*_intervals(written), ready, stretch.end)
    # A fault loses the step it fell into. A rank that said `end` is taking itself down, which is
    # the other half of start-up; of any other time after the last record nobody has said a word.
    ended = fitted.last if stretch.faulted else max(fitted.last, _within(stretch, _ended(written)))
    spans = _spans(written, fitted, stretch.waiting)
    return Life(
        stretch.start,
        ready,
        fitted.last,
        ended,
        stretch.end,
        stretch.waiting,
        Cause.REDO if stretch.faulted else Cause.STARTUP,
        spans,
        _work(written, fitted, spans),
        fitted.clipped_s,
    )


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


@dataclass(frozen=True)
class Fit:
    """What is left of each record where an earlier one has precedence."""

    begin: np.ndarray
    kept_s: np.ndarray
    order: np.ndarray  # by time
    clipped_s: float
    last: float  # where the last record ends

    def of(self, first: int, stop: int) -> np.ndarray:
        """Some of the records, by time."""
        return self.order[(first <= self.order) & (self.order < stop)]


def fit(starts: np.ndarray, ends: np.ndarray, low: float, high: float) -> Fit:
    """The records inside [low, high]."""
    order = np.argsort(starts, kind="stable")
    first, last = starts[order], ends[order]
    taken = np.maximum.accumulate(np.concatenate([[low], last]))[:-1]
    begin = np.clip(np.maximum(first, taken), low, high)
    kept = np.maximum(np.clip(last, low, high) - begin, 0.0)
    lost = (last - first) - kept
    in_place, begins = np.empty_like(kept), np.empty_like(kept)
    in_place[order], begins[order] = kept, begin
    final = min(max(low, float(last.max(initial=low))), high)
    return Fit(begins, in_place, order, float(lost[lost > CLOCK_ROUNDING_S].sum()), final)


def _work(written: Written, fit: Fit, spans: Pieces) -> Pieces:
    """The steps as pieces; while a span lasts, the clock of the work stands still."""
    steps, kept_s = written.steps, fit.kept_s
    order = fit.of(0, len(steps.start))
    inside = {name: seconds[order] for name, seconds in steps.inside.items()}
    explained = inside["fetch"] + inside["compute"] + inside["exchange"] + inside["bubble"]
    # Parts beyond the total, and the parts of a clipped step, shrink in proportion.
    whole = np.maximum(steps.total[order], explained)
    share = np.divide(kept_s[order], whole, out=np.zeros_like(whole), where=whole > 0)
    least = written.least.at(steps.number[order], inside["exchange"])
    redo = steps.redo[order]
    seconds = by_cause(
        {name: np.where(redo, 0.0, share * part) for name, part in inside.items()},
        np.where(redo, 0.0, share * least),
        np.where(redo, 0.0, share * (whole - explained)),
        np.where(redo, kept_s[order], 0.0),
        written.shares,
    )
    begin = fit.begin[order]
    still = spans.filled(begin)
    return Pieces(begin - still, begin + kept_s[order] - still, seconds)


def by_cause(
    inside: Mapping[str, np.ndarray],
    least: np.ndarray,
    rest: np.ndarray,
    redo: np.ndarray,
    shares: Mapping[Cause, float],
) -> np.ndarray:
    """Seconds of steps as they were measured, by cause; `shares` are those of `compute`."""
    seconds = np.zeros((len(redo), len(CAUSES)))
    for cause, found in (
        (Cause.DATA_WAIT, inside["fetch"]),
        (Cause.BUBBLE, inside["bubble"]),
        (Cause.COMMUNICATE, least),
        (Cause.PEER_WAIT, np.maximum(inside["exchange"] - least, 0.0)),
        (Cause.UNEXPLAINED, rest),
        (Cause.REDO, redo),
    ):
        seconds[:, PLACE[cause]] = found
    for cause, share in shares.items():
        seconds[:, PLACE[cause]] += share * inside["compute"]
    return seconds


def _spans(written: Written, fit: Fit, waiting: Cause) -> Pieces:
    spans, steps = written.spans(), len(written.steps.start)
    order = fit.of(steps, steps + len(spans))
    seconds = np.zeros((len(spans), len(CAUSES)))
    for place, record in enumerate(order.tolist()):
        cause = _cause(spans[record - steps], written.highest_before, waiting)
        seconds[place, PLACE[cause]] = fit.kept_s[record]
    return Pieces(fit.begin[order], fit.begin[order] + fit.kept_s[order], seconds)


def _cause(span: Event, highest_before: int, waiting: Cause) -> Cause:
    step, cause = span.whole("step"), SPANS[span.kind] or waiting
    again = cause in AGAIN and step is not None and step <= highest_before
    return Cause.REDO if again else cause
