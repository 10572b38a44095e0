"""Events of one `.events` file, updated from its new bytes alone."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.ledger.journal.read import JournalLine, parse_lines
from penstock.ledger.journal.records import parse_name
from penstock.ledger.journal.tail import FileTail


@dataclass(frozen=True)
class FileEvents:
    """The events of a file at one moment, and what a ledger needs of them."""

    events: list[JournalLine] = field(default_factory=list)
    first: float = float("inf")
    last: float = float("-inf")
    ready: float = float("inf")  # the first
    ended: float = float("-inf")  # the last
    has_partial_ranks: bool = False  # some are about a part of the file's ranks
    spans: dict[str, np.ndarray] = field(default_factory=dict)  # by kind: start, end, step or -1
    traces: list[JournalLine] = field(default_factory=list)

    def extended(self, events: list[JournalLine], ranks: range) -> "FileEvents":
        """Return these events with some more lines of a file of these ranks."""
        spans: dict[str, list[tuple[float, float, int]]] = {}
        first, last, ready, ended = self.first, self.last, self.ready, self.ended
        for event in events:
            first, last = min(first, event.t), max(last, event.t)
            if event.end is not None:
                first, last = min(first, event.end), max(last, event.end)
                step = event.whole("step")
                row = (event.t, event.end, -1 if step is None else step)
                spans.setdefault(event.kind, []).append(row)
            if event.kind == "ready" and ready == float("inf"):
                ready = event.t
            elif event.kind == "end":
                ended = max(ended, event.t)
        tables = {kind: np.array(rows, np.float64) for kind, rows in spans.items()}
        for kind, rows in self.spans.items():
            tables[kind] = np.concatenate([rows, tables[kind]]) if kind in tables else rows
        return FileEvents(
            self.events + events,
            first,
            last,
            ready,
            ended,
            self.has_partial_ranks or any(event.ranks != ranks for event in events),
            tables,
            self.traces + [event for event in events if event.kind == "trace"],
        )


class EventsFollower:
    """A growing `.events` file; a result of `read` never changes."""

    def __init__(self, path: Path) -> None:
        self._tail = FileTail(path)
        file = parse_name(path)
        self._ranks = file.ranks if file else range(0)
        self.events = FileEvents()

    def read(self, stat: os.stat_result) -> FileEvents:
        """Read the new lines; return all events so far."""
        anew, found = self._tail.read_new(stat)
        # What follows the last newline is torn, or not yet written.
        whole = found[: found.rfind(b"\n") + 1]
        self._tail.consume(found, len(whole))
        if anew:
            self.events = FileEvents()
        if whole:
            self.events = self.events.extended(parse_lines(whole, self._tail.path), self._ranks)
        return self.events
