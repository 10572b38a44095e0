"""One rank in one stretch of time, by the digest of its steps instead of every one of them.

The same rules as in `timeline.py`, for ranks whose records do not contradict each other. For the
others there is no answer here, and the steps have to be read.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.ledger.causes import Cause
from penstock.ledger.journal.digest import Blocks
from penstock.ledger.journal.events_file import Told
from penstock.ledger.journal.records import CLOCK_ROUNDING_S, HEADER, STEP
from penstock.ledger.journal.steps import INSIDE
from penstock.ledger.pieces import CAUSES, PLACE, Pieces
from penstock.ledger.timeline import AGAIN, SPANS, UNTIL_WORK, Life, Stretch, by_cause, fit


@dataclass(frozen=True)
class Digested:
    """What one rank (or several alike) wrote in one attempt."""

    told: Told
    blocks: Blocks
    path: Path
    highest_before: int
    shares: Mapping[Cause, float]

    def life(self, stretch: Stretch, strict: bool) -> Life | None:
        """None when the steps have to be read; without `strict` whatever fits is taken."""
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
        said = self.told.ended if self.told.ended > float("-inf") else stretch.end
        ended = last if stretch.faulted else min(max(last, said), stretch.end)
        tail = Cause.REDO if stretch.faulted else Cause.STARTUP
        late_s = self.blocks.last - stretch.end
        clipped_s += late_s if late_s > CLOCK_ROUNDING_S else 0.0
        moments = (stretch.start, ready, last, ended, stretch.end)
        return Life(*moments, stretch.waiting, tail, spans, work, clipped_s)

    def _ready(self) -> float:
        """The first `ready`, or else the first record."""
        if self.told.ready < float("inf"):
            return self.told.ready
        spans = [rows[:, 0].min() for kind, rows in self.told.spans.items() if kind in SPANS]
        return float(min([self.blocks.first, *spans]))

    def _spans(self, ready: float, stretch: Stretch) -> tuple[Pieces, float, float]:
        """The spans that have a cause, the seconds clipped from them, and their end."""
        tables, causes = [np.empty((0, 3))], [np.empty(0, np.int64)]
        for kind, rows in self.told.spans.items():
            if kind not in SPANS:
                continue
            if kind == "warmup":  # what the time before `ready` holds already
                rows = rows[rows[:, 1] > ready + CLOCK_ROUNDING_S]
            cause = SPANS[kind] or stretch.waiting
            again = (rows[:, 2] >= 0) & (rows[:, 2] <= self.highest_before) & (cause in AGAIN)
            tables.append(self._until_work(rows) if kind in UNTIL_WORK else rows)
            causes.append(np.where(again, PLACE[Cause.REDO], PLACE[cause]))
        table, places = np.concatenate(tables), np.concatenate(causes)
        found = fit(table[:, 0], np.maximum(table[:, 0], table[:, 1]), ready, stretch.end)
        order = found.order
        seconds = np.zeros((len(order), len(CAUSES)))
        seconds[np.arange(len(order)), places[order]] = found.kept_s[order]
        begin = found.begin[order]
        pieces = Pieces(begin, begin + found.kept_s[order], seconds)
        return pieces, found.clipped_s, found.last

    def _until_work(self, rows: np.ndarray) -> np.ndarray:
        """To the next record: what feeds the loop is made anew."""
        count = (self.path.stat().st_size - HEADER.size) // STEP.itemsize
        starts = np.memmap(self.path, STEP, "r", HEADER.size, (count,))["start"]
        others = np.concatenate([r[:, 0] for kind, r in self.told.spans.items() if kind in SPANS])
        made = rows.copy()
        for row in made:
            after = row[1] - CLOCK_ROUNDING_S
            place = bisect_left(starts, after)
            nexts = [*starts[place : place + 1].tolist(), *others[others >= after].tolist()]
            row[1] = min(nexts, default=row[1])
        return made

    def _work(self, end: float, spans: Pieces, strict: bool) -> Pieces | None:
        """The blocks by cause, by a clock that stands still in spans; None if both do not fit."""
        rows, column = self.blocks.rows, self.blocks.column
        starts, ends = column("start"), column("end")
        still_start, still_end = spans.filled(starts), spans.filled(ends)
        kept, whole = column("kept"), column("whole")
        held = kept + column("redo") + still_end - still_start
        if strict and (held > ends - starts + 2 * CLOCK_ROUNDING_S).any():
            return None
        # Parts beyond the total, and the parts of a clipped step, shrink in proportion.
        share = np.divide(kept, whole, out=np.zeros(len(rows)), where=whole > 0)
        inside = {name: share * column(name) for name in INSIDE}
        least = share * np.minimum(self.blocks.least, column("exchange"))
        rest = np.maximum(kept - sum(inside.values()), 0.0)
        seconds = by_cause(inside, least, rest, column("redo"), self.shares)
        if len(ends) and ends[-1] > end:  # a step that came in after the moment it is told for
            length = np.maximum(ends - starts, 1e-9)
            seconds *= np.clip((end - starts) / length, 0.0, 1.0)[:, None]
            starts, ends = np.minimum(starts, end), np.minimum(ends, end)
        return Pieces(
            starts - still_start, np.maximum(ends - still_end, starts - still_start), seconds
        )
