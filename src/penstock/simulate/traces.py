"""Preemption from a trace: how many nodes a provider leaves to the run, over time.

A CSV file with the columns `start_s`, `end_s` and `available`: from one second to another so many
nodes. Other columns are ignored. A life that is longer than the trace begins it again.
"""

import csv
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from penstock.errors import PenstockError

MOST_ROWS = 1_000_000
NEEDED = ("start_s", "end_s", "available")


@dataclass(frozen=True)
class Trace:
    """Nodes that are there, from each moment to the next; it repeats after `length_s`."""

    starts_s: tuple[float, ...]  # the first is 0
    nodes: tuple[int, ...]
    length_s: float

    def at(self, moment_s: float) -> int:
        """Return the nodes that are there at a moment."""
        return self.nodes[bisect_right(self.starts_s, moment_s % self.length_s) - 1]

    def changes(self, from_s: float = 0.0) -> Iterator[tuple[float, int]]:
        """Yield every change after the first moment, without end."""
        base = from_s
        while True:
            for start_s, count in zip(self.starts_s, self.nodes, strict=True):
                if base + start_s > 0:
                    yield base + start_s, count
            base += self.length_s


def read_trace(path: Path) -> Trace:
    """Read a trace; refuse one that is not in order, with its line."""
    rows: list[tuple[float, float, int]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            if twice := [name for n, name in enumerate(columns) if name in columns[:n]]:
                raise PenstockError(f"{path}:1: the column '{twice[0]}' is there twice; remove one")
            missing = [name for name in NEEDED if name not in columns]
            if missing:
                raise PenstockError(
                    f"{path}:1: no column {' and '.join(missing)}; a trace has {', '.join(NEEDED)}"
                )
            for row in reader:
                rows.append(_row(row, f"{path}:{reader.line_num}", rows))
                if len(rows) > MOST_ROWS:
                    raise PenstockError(f"{path}: over {MOST_ROWS:,} rows; give a shorter trace")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise PenstockError(f"{path}: cannot be read as a trace: {why}") from None
    if not rows:
        raise PenstockError(f"{path}: the trace has no rows; write one per span of time")
    first = rows[0][0]
    return Trace(
        tuple(start - first for start, _, _ in rows),
        tuple(count for _, _, count in rows),
        rows[-1][1] - first,
    )


def _row(
    row: dict[str, str], where: str, before: list[tuple[float, float, int]]
) -> tuple[float, float, int]:
    try:
        start, end, count = float(row["start_s"]), float(row["end_s"]), int(row["available"])
    except (TypeError, ValueError):
        raise PenstockError(
            f"{where}: start_s = {row['start_s']}, end_s = {row['end_s']}, available = "
            f"{row['available']}: not numbers; write seconds, seconds and nodes"
        ) from None
    if not (isfinite(start) and isfinite(end) and end > start and count >= 0):
        raise PenstockError(
            f"{where}: from {start:g} s to {end:g} s, {count} nodes: a span must end after it "
            "starts and have no fewer than 0 nodes"
        )
    if before and abs(start - before[-1][1]) > 1e-6:
        raise PenstockError(
            f"{where}: starts at {start:g} s and the row before it ends at {before[-1][1]:g} s; "
            "sort the trace by time, without gaps"
        )
    return start, end, count
