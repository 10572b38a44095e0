"""Events of one `.events` file, updated from its new bytes alone."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.ledger.journal.events import (
    CheckpointSpan,
    EvaluateSpan,
    HeldSpan,
    JournalEvent,
    RankEnded,
    RankReady,
    StepTraced,
)
from penstock.ledger.journal.read import JournalLine, LineOf, lines_of, parse_lines
from penstock.ledger.journal.records import parse_name
from penstock.ledger.journal.tail import FileTail
from penstock.ledger.journal.values import whole

_OF_STEPS = (EvaluateSpan, CheckpointSpan, HeldSpan)


@dataclass(frozen=True)
class FileEvents:
    """The events of a file at one moment, and what a ledger needs of them."""

    events: list[JournalLine] = field(default_factory=list)
    first: float = float("inf")
    last: float = float("-inf")
    ready: float = float("inf")  # the first
    ended: float = float("-inf")  # the last
    has_partial_ranks: bool = False  # some are about a part of the file's ranks
    # By class: start, end, step or -1.
    spans: dict[type[JournalEvent], np.ndarray] = field(default_factory=dict)
    traces: list[LineOf[StepTraced]] = field(default_factory=list)

    def extended(self, lines: list[JournalLine], ranks: range) -> "FileEvents":
        """Return these events with some more lines of a file of these ranks."""
        spans: dict[type[JournalEvent], list[tuple[float, float, int]]] = {}
        first, last, ready, ended = self.first, self.last, self.ready, self.ended
        for line in lines:
            event = line.event
            # Comparisons, because `min` and `max` take most of the time of this loop.
            first, last = line.t if line.t < first else first, line.t if line.t > last else last
            if line.end is not None:
                first = line.end if line.end < first else first
                last = line.end if line.end > last else last
                step = span_step(event)
                row = (line.t, line.end, -1 if step is None else step)
                spans.setdefault(type(event), []).append(row)
            if isinstance(event, RankReady) and ready == float("inf"):
                ready = line.t
            elif isinstance(event, RankEnded):
                ended = max(ended, line.t)
        tables = {cls: np.array(rows, np.float64) for cls, rows in spans.items()}
        for cls, rows in self.spans.items():
            tables[cls] = np.concatenate([rows, tables[cls]]) if cls in tables else rows
        return FileEvents(
            self.events + lines,
            first,
            last,
            ready,
            ended,
            self.has_partial_ranks or any(line.ranks != ranks for line in lines),
            tables,
            self.traces + lines_of(lines, StepTraced),
        )


def span_step(event: JournalEvent) -> int | None:
    """Return the step that a span of a rank's time belongs to; None if it belongs to none."""
    return whole(event.step) if isinstance(event, _OF_STEPS) else None


class EventsFollower:
    """A growing `.events` file; a result of `read` never changes."""

    def __init__(self, path: Path) -> None:
        self._tail = FileTail(path)
        file = parse_name(path)
        self._ranks = file.ranks if file else range(0)
        self.events = FileEvents()

    def read(self, stat: os.stat_result) -> FileEvents:
        """Read the new lines; return all events so far."""
        anew, new = self._tail.read_new(stat)
        # Bytes after the last newline are a torn line, or one that is not written yet.
        written = new[: new.rfind(b"\n") + 1]
        self._tail.consume(new, len(written))
        if anew:
            self.events = FileEvents()
        if written:
            self.events = self.events.extended(parse_lines(written, self._tail.path), self._ranks)
        return self.events
