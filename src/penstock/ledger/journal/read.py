"""Reading the journal, even while it is written and after its writer was killed.

A process killed at any byte leaves a torn last record. Every reader returns exactly the whole
records before it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar, cast

import numpy as np

from penstock.ledger.journal.events import JournalEvent, parse_event
from penstock.ledger.journal.records import (
    SUPERVISOR,
    JournalFile,
    journal_files,
    parse_name,
    read_records,
)
from penstock.ledger.journal.values import unix_s
from penstock.untrusted import open_plain

E = TypeVar("E", bound=JournalEvent)
E_co = TypeVar("E_co", bound=JournalEvent, covariant=True)


@dataclass(slots=True)  # not frozen, which would take three times as long to make
class LineOf(Generic[E_co]):
    """A line of an `.events` file: a moment, or a span if it has an `end`. Never changed.

    Readers match on the class of `event`. `payload` has all fields as they were written, also those
    that this version does not know; it is for what shows or copies a line as it is.
    """

    t: float
    event: E_co
    end: float | None = None
    attempt: int | None = None
    ranks: range = range(0)  # none in the supervisor's file
    payload: dict[str, object] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.event.kind


JournalLine = LineOf[JournalEvent]


def lines_of(lines: Iterable[JournalLine], *classes: type[E]) -> list[LineOf[E]]:
    """Return the lines with events of some classes."""
    return cast("list[LineOf[E]]", [line for line in lines if isinstance(line.event, classes)])


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
    return [line for decoded in _decoded(lines) if (line := _line(decoded, file))]


def _decoded(lines: list[bytes]) -> list[object]:
    """Parse all lines at once, which is five times faster; one by one if a line is damaged."""
    try:
        decoded = json.loads(b"[" + b",".join(lines) + b"]")
        if len(decoded) == len(lines):
            return list(decoded)
    except (ValueError, RecursionError):
        pass
    return [_decoded_line(line) for line in lines]


def _decoded_line(line: bytes) -> object:
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
    launches = [line.attempt for line in read_events(Path(folder) / SUPERVISOR)]
    used = [file.attempt for file in journal_files(folder)]
    return max((a for a in [*launches, *used] if a is not None), default=-1) + 1


def _line(decoded: object, file: JournalFile | None) -> JournalLine | None:
    if not isinstance(decoded, dict):
        return None
    t, kind, end = unix_s(decoded.pop("t", None)), decoded.pop("kind", None), None
    if "end" in decoded:
        end = unix_s(decoded.pop("end"))
        if end is None:
            return None
    if t is None or not isinstance(kind, str):
        return None
    if file is None:
        attempt, ranks = decoded.get("attempt"), range(0)
        attempt = attempt if type(attempt) is int else None
    else:
        attempt, ranks = file.attempt, file.ranks
        if "ranks" in decoded:
            ranks = _ranks(decoded, ranks)
    event = parse_event(kind, end is not None, decoded)
    return None if event is None else LineOf(t, event, end, attempt, ranks, decoded)


def _ranks(payload: dict[str, object], of_file: range) -> range:
    """Return the ranks of a line: those of its file, or the part of them that it names."""
    match payload["ranks"]:
        case [int(first), int(last)] if first in of_file and last in of_file and first <= last:
            del payload["ranks"]
            return range(first, last + 1)
    return of_file
