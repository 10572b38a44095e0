"""Timeline of one rank from blocks of its steps, without reading every step.

The rules are those of `timeline.py`, for ranks whose records do not contradict each other. For
other ranks there is no answer here, and the steps must be read.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.ledger.causes import Cause
from penstock.ledger.journal.digest import StepBlocks
from penstock.ledger.journal.events import WarmUpSpan
from penstock.ledger.journal.events_file import FileEvents
from penstock.ledger.journal.records import CLOCK_ROUNDING_S, HEADER, STEP
from penstock.ledger.journal.steps import MEASURED_PARTS
from penstock.ledger.segments import CAUSE_COLUMN, CAUSES, CauseSegments
from penstock.ledger.timeline import (
    REPEATABLE,
    SPAN_CAUSES,
    UNTIL_NEXT_RECORD,
    AttemptWindow,
    RankTimeline,
    clip_records,
    step_seconds_by_cause,
)


@dataclass(frozen=True)
class BlockRecords:
    """The records of one rank (or of several that wrote the same) in one attempt."""

    events: FileEvents
    blocks: StepBlocks
    path: Path
    highest_before: int
    shares: Mapping[Cause, float]

    def timeline(self, stretch: AttemptWindow, strict: bool) -> RankTimeline | None:
        """Return the timeline; None if the steps must be read. Without `strict`, use whatever
        fits."""
        if not len(self.blocks.rows) or (strict and not self.blocks.regular):
            return None
        ready = min(max(self._ready(), stretch.start), stretch.end)
        if strict and self.blocks.first < ready:
            return None
        spans, clipped_s, spans_last = self._spans(ready, stretch)
        work = self._work(stretch.end, spans, strict)
        if work is None:
            return None
        last = min(max(ready, self.blocks.last, spans_last), stretch.end)
        said = self.events.ended if self.events.ended > float("-inf") else stretch.end
        ended = last if stretch.faulted else min(max(last, said), stretch.end)
        tail = Cause.REDO if stretch.faulted else Cause.STARTUP
        late_s = self.blocks.last - stretch.end
        clipped_s += late_s if late_s > CLOCK_ROUNDING_S else 0.0
        moments = (stretch.start, ready, last, ended, stretch.end)
        return RankTimeline(*moments, stretch.waiting, tail, spans, work, clipped_s)

    def _ready(self) -> float:
        """Return the first `ready`, or the first record."""
        if self.events.ready < float("inf"):
            return self.events.ready
        spans = [rows[:, 0].min() for cls, rows in self.events.spans.items() if cls in SPAN_CAUSES]
        return float(min([self.blocks.first, *spans]))

    def _spans(self, ready: float, stretch: AttemptWindow) -> tuple[CauseSegments, float, float]:
        """Return the spans that have a cause, the seconds clipped from them, and their end."""
        tables, causes = [np.empty((0, 3))], [np.empty(0, np.int64)]
        for cls, rows in self.events.spans.items():
            if cls not in SPAN_CAUSES:
                continue
            if cls is WarmUpSpan:  # what the time before `ready` holds already
                rows = rows[rows[:, 1] > ready + CLOCK_ROUNDING_S]
            cause = SPAN_CAUSES[cls] or stretch.waiting
            again = (rows[:, 2] >= 0) & (rows[:, 2] <= self.highest_before) & (cause in REPEATABLE)
            tables.append(self._until_work(rows) if cls in UNTIL_NEXT_RECORD else rows)
            causes.append(np.where(again, CAUSE_COLUMN[Cause.REDO], CAUSE_COLUMN[cause]))
        table, places = np.concatenate(tables), np.concatenate(causes)
        found = clip_records(table[:, 0], np.maximum(table[:, 0], table[:, 1]), ready, stretch.end)
        order = found.order
        seconds = np.zeros((len(order), len(CAUSES)))
        seconds[np.arange(len(order)), places[order]] = found.kept_s[order]
        begin = found.begin[order]
        pieces = CauseSegments(begin, begin + found.kept_s[order], seconds)
        return pieces, found.clipped_s, found.last

    def _until_work(self, rows: np.ndarray) -> np.ndarray:
        """Extend spans to the next record: until then the data pipeline is rebuilt."""
        count = (self.path.stat().st_size - HEADER.size) // STEP.itemsize
        starts = np.memmap(self.path, STEP, "r", HEADER.size, (count,))["start"]
        others = np.concatenate(
            [r[:, 0] for cls, r in self.events.spans.items() if cls in SPAN_CAUSES]
        )
        made = rows.copy()
        for row in made:
            after = row[1] - CLOCK_ROUNDING_S
            place = bisect_left(starts, after)
            nexts = [*starts[place : place + 1].tolist(), *others[others >= after].tolist()]
            row[1] = min(nexts, default=row[1])
        return made

    def _work(self, end: float, spans: CauseSegments, strict: bool) -> CauseSegments | None:
        """Return the blocks by cause, by a clock that stops in spans; None if they do not fit."""
        rows, column = self.blocks.rows, self.blocks.column
        starts, ends = column("start"), column("end")
        still_start, still_end = spans.covered_before(starts), spans.covered_before(ends)
        kept, whole = column("kept"), column("whole")
        held = kept + column("redo") + still_end - still_start
        if strict and (held > ends - starts + 2 * CLOCK_ROUNDING_S).any():
            return None
        # Parts beyond the total, and the parts of a clipped step, shrink in proportion.
        share = np.divide(kept, whole, out=np.zeros(len(rows)), where=whole > 0)
        inside = {name: share * column(name) for name in MEASURED_PARTS}
        least = share * np.minimum(self.blocks.least, column("exchange"))
        rest = np.maximum(kept - sum(inside.values()), 0.0)
        seconds = step_seconds_by_cause(inside, least, rest, column("redo"), self.shares)
        if len(ends) and ends[-1] > end:  # a step that was written after this moment
            length = np.maximum(ends - starts, 1e-9)
            seconds *= np.clip((end - starts) / length, 0.0, 1.0)[:, None]
            starts, ends = np.minimum(starts, end), np.minimum(ends, end)
        return CauseSegments(
            starts - still_start, np.maximum(ends - still_end, starts - still_start), seconds
        )
