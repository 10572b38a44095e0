"""The lines of one `.events` file, kept up to date from its new bytes alone."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.ledger.journal.read import Event, parse_lines
from penstock.ledger.journal.records import parse_name
from penstock.ledger.journal.tail import Tail


@dataclass(frozen=True)
class Told:
    """The lines that were there at one moment, and what a ledger asks of them."""

    events: list[Event] = field(default_factory=list)
    first: float = float("inf")
    last: float = float("-inf")
    ready: float = float("inf")  # the first
    ended: float = float("-inf")  # the last
    parts: bool = False  # some are about a part of the file's ranks
    spans: dict[str, np.ndarray] = field(default_factory=dict)  # by kind: start, end, step or -1
    traces: list[Event] = field(default_factory=list)

    def having(self, events: list[Event], ranks: range) -> "Told":
        """With some more lines of a file of these ranks."""
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
        return Told(
            self.events + events,
            first,
            last,
            ready,
            ended,
            self.parts or any(event.ranks != ranks for event in events),
            tables,
            self.traces + [event for event in events if event.kind == "trace"],
        )


class EventFile:
    """One file; what `read` has given stays as it is."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        file = parse_name(path)
        self._ranks = file.ranks if file else range(0)
        self.told = Told()

    def read(self, stat: os.stat_result) -> Told:
        anew, found = self._tail.more(stat)
        # What follows the last newline is torn, or not yet written.
        whole = found[: found.rfind(b"\n") + 1]
        self._tail.take(found, len(whole))
        if anew:
            self.told = Told()
        if whole:
            self.told = self.told.having(parse_lines(whole, self._tail.path), self._ranks)
        return self.told
