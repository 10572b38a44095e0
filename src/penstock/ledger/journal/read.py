"""Reading the journal, even while it is written and after its writer was killed.

A process killed at any byte leaves a torn last record. Every reader returns exactly the whole
records before it.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.ledger.journal.events import MOMENTS, SPANS, JournalEvent, has_needed
from penstock.ledger.journal.records import (
    SUPERVISOR,
    JournalFile,
    journal_files,
    parse_name,
    read_records,
)
from penstock.untrusted import open_plain

# Some 30,000 years: a number beyond it in a damaged file is not a time.
LATEST_S = 1e12


@dataclass(slots=True)  # not frozen, which would take three times as long to make
class JournalLine:
    """A line of an `.events` file: a moment, or a span if it has an `end`. Never changed."""

    t: float
    kind: str
    end: float | None = None
    attempt: int | None = None
    ranks: range = range(0)  # none in the supervisor's file
    payload: dict[str, object] = field(default_factory=dict)

    def typed(self) -> JournalEvent | None:
        """Return the line as an event of its kind; None for a kind that this version has not."""
        known = (MOMENTS if self.end is None else SPANS).get(self.kind)
        return known.from_payload(self.payload) if known else None

    def whole(self, key: str) -> int | None:
        """Return a payload value that must be a whole number of zero or more, or None."""
        value = self.payload.get(key)
        return value if type(value) is int and value >= 0 else None

    def number(self, key: str) -> float | None:
        """Return a payload value that must be a number, or None."""
        value = self.payload.get(key)
        if type(value) is not int and type(value) is not float:
            return None
        return float(value) if abs(value) <= 1e300 or value != value else None

    def time(self, key: str) -> float | None:
        """Return a payload value that must be a moment, or None."""
        return _moment(self.payload.get(key))


def read_events(path: Path | str) -> list[JournalLine]:
    """Return the events of a file in the order they were written; damaged lines are left out.

    A later invocation of the supervisor closes a torn line of the one before, so such a line can
    also be in the middle.
    """
    try:
        with open_plain(path) as file:
            return parse_lines(file.read(), Path(path))
    except FileNotFoundError:
        return []


def parse_lines(written: bytes, path: Path) -> list[JournalLine]:
    """Return the events in some lines of a file; bytes after the last newline are torn."""
    file, lines = parse_name(path), written.split(b"\n")[:-1]
    return [event for found in _decoded(lines) if (event := _event(found, file))]


def _decoded(lines: list[bytes]) -> list[object]:
    """Parse all lines at once, which is five times faster; one by one if a line is damaged."""
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")
        if len(found) == len(lines):
            return list(found)
    except (ValueError, RecursionError):
        pass
    return [_one(line) for line in lines]


def _one(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def read_steps(path: Path | str) -> np.ndarray:
    """Return the step records of a file (fields: `records.STEP`)."""
    return read_records(path, "steps")


def read_curve(path: Path | str) -> np.ndarray:
    """Return the curve records of a file (fields: `records.CURVE`)."""
    return read_records(path, "curve")


def next_attempt(folder: Path | str) -> int:
    """Return the first attempt number that no file and no launch of this journal has used."""
    launches = [event.attempt for event in read_events(Path(folder) / SUPERVISOR)]
    used = [file.attempt for file in journal_files(folder)]
    return max((a for a in [*launches, *used] if a is not None), default=-1) + 1


def _event(payload: object, file: JournalFile | None) -> JournalLine | None:
    if not isinstance(payload, dict):
        return None
    t, kind, end = _moment(payload.pop("t", None)), payload.pop("kind", None), None
    if "end" in payload:
        end = _moment(payload.pop("end"))
        if end is None:
            return None
    if t is None or not isinstance(kind, str):
        return None
    if not has_needed(kind, payload):
        return None
    ranks = _ranks(payload, file.ranks) if file else range(0)
    attempt = file.attempt if file else payload.get("attempt")
    return JournalLine(t, kind, end, attempt if type(attempt) is int else None, ranks, payload)


def _moment(value: object) -> float | None:
    """Return a number of unix seconds; None for anything else."""
    if type(value) is float:
        return value if abs(value) <= LATEST_S else None
    if type(value) is not int:
        return None
    try:
        moment = float(value)
    except OverflowError:
        return None
    return moment if abs(moment) <= LATEST_S else None


def _ranks(payload: dict[str, object], of_file: range) -> range:
    """Return the ranks of a line: those of its file, or the part of them that it names."""
    if "ranks" not in payload:
        return of_file
    match payload["ranks"]:
        case [int(first), int(last)] if first in of_file and last in of_file and first <= last:
            del payload["ranks"]
            return range(first, last + 1)
    return of_file
