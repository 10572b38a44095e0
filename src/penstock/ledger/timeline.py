"""Timeline of one rank in one attempt: every second gets its cause.

The window is cut at `ready` and at the end of the last record. Between them the records explain the
time; the rest is unexplained, so the causes add up to the window whatever was written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from penstock.ledger.causes import Cause
from penstock.ledger.journal.events import (
    CheckpointSpan,
    EvaluateSpan,
    HeldSpan,
    JournalEvent,
    LostStepSpan,
    RankEnded,
    RankReady,
    RegroupSpan,
    RollbackSpan,
    WarmUpSpan,
)
from penstock.ledger.journal.events_file import span_step
from penstock.ledger.journal.read import JournalLine, lines_of
from penstock.ledger.journal.records import CLOCK_ROUNDING_S
from penstock.ledger.journal.steps import LeastExchange, StepColumns
from penstock.ledger.segments import (
    CAUSE_COLUMN,
    CAUSES,
    CauseSegments,
    no_segments,
    overlap_before,
)

# Spans that have a cause of their own; warm-up counts as what it is part of.
SPAN_CAUSES: dict[type[JournalEvent], Cause | None] = {
    EvaluateSpan: Cause.EVALUATE,
    CheckpointSpan: Cause.CHECKPOINT,
    HeldSpan: Cause.CHECKPOINT,
    LostStepSpan: Cause.REDO,
    RegroupSpan: Cause.DOWN,
    RollbackSpan: Cause.DOWN,
    WarmUpSpan: None,
}
UNTIL_NEXT_RECORD = (RegroupSpan, RollbackSpan)  # what feeds the loop is made anew
REPEATABLE = (Cause.EVALUATE, Cause.CHECKPOINT)  # of a step that had been passed before: `redo`


@dataclass(frozen=True)
class AttemptWindow:
    """The time of an attempt in its invocation."""

    start: float
    end: float
    faulted: bool
    waiting: Cause  # of a rank that is not ready: `startup`, or `down` after a fault
    absent: Cause  # of a rank that wrote nothing at all


@dataclass(frozen=True)
class RankRecords:
    """The records of one rank in one attempt, and what its peers did meanwhile."""

    events: list[JournalLine]
    steps: StepColumns
    least: LeastExchange
    highest_before: int
    lost_at: tuple[float, ...] = ()  # when it was lost while the attempt went on, in order
    # How its measured `compute` divides, as traces of single steps saw it.
    shares: Mapping[Cause, float] = field(default_factory=lambda: {Cause.COMPUTE: 1.0})

    def between(self, start: float, end: float) -> "RankRecords":
        """Return the records that began in a part of its time."""
        events = [line for line in self.events if start <= line.t < end]
        steps = self.steps.where((start <= self.steps.start) & (self.steps.start < end))
        return replace(self, events=events, steps=steps, lost_at=())

    def after_warm_up(self, ready: float) -> "RankRecords":
        """Return the records without the warm-up that the time before `ready` already contains."""
        events = [
            line
            for line in self.events
            if not isinstance(line.event, WarmUpSpan)
            or (line.end or line.t) > ready + CLOCK_ROUNDING_S
        ]
        return replace(self, events=events)

    def spans(self) -> list[JournalLine]:
        """Return the rare spans that have a cause; others stay unexplained."""
        return [
            line for line in self.events if line.end is not None and type(line.event) in SPAN_CAUSES
        ]


@dataclass(frozen=True)
class RankTimeline:
    """A rank from one moment to another: waiting, then work with spans in it, then the time
    after."""

    start: float
    ready: float
    last: float  # the end of its last record
    ended: float  # of what nobody has said a word about
    end: float
    waiting: Cause
    after: Cause
    spans: CauseSegments
    work: CauseSegments  # by a clock that stands still in spans
    clipped_s: float  # of records that did not fit

    def seconds_before(self, t: np.ndarray) -> np.ndarray:
        """Return seconds by cause before each of these moments: [moments, causes]."""
        seconds = self.work.seconds_before(t - self.spans.covered_before(t))
        seconds += self.spans.seconds_before(t)
        between = overlap_before(t, self.ready, self.last) - seconds.sum(axis=1)
        seconds[:, CAUSE_COLUMN[Cause.UNEXPLAINED]] += np.maximum(between, 0.0)
        for cause, start, end in (
            (self.waiting, self.start, self.ready),
            (Cause.UNEXPLAINED, self.last, self.ended),
            (self.after, self.ended, self.end),
        ):
            seconds[:, CAUSE_COLUMN[cause]] += overlap_before(t, start, end)
        return seconds

    def total(self) -> np.ndarray:
        """Return seconds by cause of the whole timeline."""
        seconds = self.spans.total() + self.work.total()
        unexplained_s = max(self.last - self.ready - float(seconds.sum()), 0.0)
        for cause, length in (
            (Cause.UNEXPLAINED, unexplained_s + self.ended - self.last),
            (self.waiting, self.ready - self.start),
            (self.after, self.end - self.ended),
        ):
            seconds[CAUSE_COLUMN[cause]] += length
        return seconds


def rank_timelines(stretch: AttemptWindow, written: RankRecords) -> list[RankTimeline]:
    """Return the timelines of a rank; one that was lost on the way has one before and one after."""
    if not written.lost_at:
        return [_timeline(stretch, written)]
    cuts = [_within(stretch, t) for t in written.lost_at]
    found = []
    for number, (start, end) in enumerate(pairwise([stretch.start, *cuts, stretch.end])):
        waiting = (Cause.DOWN, Cause.DOWN) if number else (stretch.waiting, stretch.absent)
        one = AttemptWindow(start, end, stretch.faulted or number < len(cuts), *waiting)
        upto = end if number < len(cuts) else float("inf")
        since = start if number else float("-inf")
        found.append(_timeline(one, written.between(since, upto)))
    return found


def idle_timeline(start: float, end: float, cause: Cause) -> RankTimeline:
    """Return a timeline with a single cause from start to end."""
    return RankTimeline(start, end, end, end, end, cause, cause, no_segments(), no_segments(), 0.0)


def _timeline(stretch: AttemptWindow, written: RankRecords) -> RankTimeline:
    if not written.events and not len(written.steps.start):
        return idle_timeline(stretch.start, stretch.end, stretch.absent)
    ready = _within(stretch, _ready(written))
    written = written.after_warm_up(ready)
    fitted = clip_records(*_intervals(written), ready, stretch.end)
    # A fault loses the step it fell into. A rank that said `end` is taking itself down, which is
    # the other half of start-up; of any other time after the last record nobody has said a word.
    ended = fitted.last if stretch.faulted else max(fitted.last, _within(stretch, _ended(written)))
    spans = _spans(written, fitted, stretch.waiting)
    return RankTimeline(
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


def _ready(written: RankRecords) -> float:
    """Return the time of the rank's `ready`, or of its first record, or infinity."""
    ready = lines_of(written.events, RankReady)
    if ready:
        return ready[0].t
    starts = [*written.steps.start[:1].tolist(), *(span.t for span in written.spans())]
    return min(starts, default=float("inf"))


def _ended(written: RankRecords) -> float:
    """Return the time of the rank's `end`, or infinity."""
    return max((line.t for line in lines_of(written.events, RankEnded)), default=float("inf"))


def _within(stretch: AttemptWindow, t: float) -> float:
    return min(max(t, stretch.start), stretch.end)


def _intervals(written: RankRecords) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of all records: the steps, then the spans."""
    spans = written.spans()
    starts = np.concatenate([written.steps.start, [span.t for span in spans]])
    ends = np.concatenate([written.steps.end, [span.end for span in spans]])
    for i, span in enumerate(spans, len(written.steps.start)):
        if isinstance(span.event, UNTIL_NEXT_RECORD):
            ends[i] = min(starts[starts >= ends[i] - CLOCK_ROUNDING_S], default=ends[i])
    return starts, np.maximum(starts, ends)


@dataclass(frozen=True)
class ClippedRecords:
    """The rest of each record after earlier ones took precedence."""

    begin: np.ndarray
    kept_s: np.ndarray
    order: np.ndarray  # by time
    clipped_s: float
    last: float  # where the last record ends

    def of(self, first: int, stop: int) -> np.ndarray:
        """Return some of the records, by time."""
        return self.order[(first <= self.order) & (self.order < stop)]


def clip_records(starts: np.ndarray, ends: np.ndarray, low: float, high: float) -> ClippedRecords:
    """Clip the records to [low, high] and to each other."""
    order = np.argsort(starts, kind="stable")
    first, last = starts[order], ends[order]
    taken = np.maximum.accumulate(np.concatenate([[low], last]))[:-1]
    begin = np.clip(np.maximum(first, taken), low, high)
    kept = np.maximum(np.clip(last, low, high) - begin, 0.0)
    lost = (last - first) - kept
    in_place, begins = np.empty_like(kept), np.empty_like(kept)
    in_place[order], begins[order] = kept, begin
    final = min(max(low, float(last.max(initial=low))), high)
    return ClippedRecords(
        begins, in_place, order, float(lost[lost > CLOCK_ROUNDING_S].sum()), final
    )


def _work(written: RankRecords, fit: ClippedRecords, spans: CauseSegments) -> CauseSegments:
    """Return the steps as segments; during a span the clock of the work stands still."""
    steps, kept_s = written.steps, fit.kept_s
    order = fit.of(0, len(steps.start))
    inside = {name: seconds[order] for name, seconds in steps.inside.items()}
    explained = inside["fetch"] + inside["compute"] + inside["exchange"] + inside["bubble"]
    # Parts beyond the total, and the parts of a clipped step, shrink in proportion.
    whole = np.maximum(steps.total[order], explained)
    share = np.divide(kept_s[order], whole, out=np.zeros_like(whole), where=whole > 0)
    least = written.least.least_for(steps.number[order], inside["exchange"])
    redo = steps.redo[order]
    seconds = step_seconds_by_cause(
        {name: np.where(redo, 0.0, share * part) for name, part in inside.items()},
        np.where(redo, 0.0, share * least),
        np.where(redo, 0.0, share * (whole - explained)),
        np.where(redo, kept_s[order], 0.0),
        written.shares,
    )
    begin = fit.begin[order]
    still = spans.covered_before(begin)
    return CauseSegments(begin - still, begin + kept_s[order] - still, seconds)


def step_seconds_by_cause(
    inside: Mapping[str, np.ndarray],
    least: np.ndarray,
    rest: np.ndarray,
    redo: np.ndarray,
    shares: Mapping[Cause, float],
) -> np.ndarray:
    """Return the measured seconds of steps by cause; `shares` divide `compute`."""
    seconds = np.zeros((len(redo), len(CAUSES)))
    for cause, found in (
        (Cause.DATA_WAIT, inside["fetch"]),
        (Cause.BUBBLE, inside["bubble"]),
        (Cause.COMMUNICATE, least),
        (Cause.PEER_WAIT, np.maximum(inside["exchange"] - least, 0.0)),
        (Cause.UNEXPLAINED, rest),
        (Cause.REDO, redo),
    ):
        seconds[:, CAUSE_COLUMN[cause]] = found
    for cause, share in shares.items():
        seconds[:, CAUSE_COLUMN[cause]] += share * inside["compute"]
    return seconds


def _spans(written: RankRecords, fit: ClippedRecords, waiting: Cause) -> CauseSegments:
    spans, steps = written.spans(), len(written.steps.start)
    order = fit.of(steps, steps + len(spans))
    seconds = np.zeros((len(spans), len(CAUSES)))
    for place, record in enumerate(order.tolist()):
        cause = _cause(spans[record - steps], written.highest_before, waiting)
        seconds[place, CAUSE_COLUMN[cause]] = fit.kept_s[record]
    return CauseSegments(fit.begin[order], fit.begin[order] + fit.kept_s[order], seconds)


def _cause(span: JournalLine, highest_before: int, waiting: Cause) -> Cause:
    step, cause = span_step(span.event), SPAN_CAUSES[type(span.event)] or waiting
    again = cause in REPEATABLE and step is not None and step <= highest_before
    return Cause.REDO if again else cause
