"""Writing the journal: facts, not verdicts, in files that survive a kill at any byte.

Rare events are lines and reach the disk before the call returns. Steps are one unbuffered write of
32 bytes: a killed process loses none that it wrote. A restart is a new attempt with new files. A
full disk stops nobody: `append.py`.
"""

import contextlib
import errno
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np

from penstock.ledger.journal.events import HeldSpan, JournalEvent
from penstock.ledger.journal.records import (
    CLOCK_ROUNDING_S,
    DTYPE,
    HEADER,
    ROLLUP_STEPS,
    STEP,
    SUPERVISOR,
    file_name,
    header,
    read_records,
)
from penstock.ledger.journal.rollups import rollup
from penstock.secret import redact_all

HELD_S = 1e-3  # less is not worth a line
_STEP = struct.Struct("<dI5f")
_CURVE = struct.Struct("<dddQff")

# Errors that pass: somebody frees room, or mounts the disk again.
PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
MOST_BYTES = 64 << 20  # kept for a disk that stays full; a rank writes some kilobytes a minute


class Appender:
    """A file that is only appended to, and that a full disk cannot turn against its writer.

    Records that cannot be written now are kept in memory and written first later: a run
    whose disk is full or read-only for a while goes on, and its journal misses nothing. `flags` are
    those of `os.open`, beside the ones for writing at the end.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.path, self._flags = path, flags
        self._file: int | None = None
        self._kept = bytearray()
        # Background saves write here too, and a signal handler may interrupt a write.
        self._lock = threading.RLock()
        with contextlib.suppress(_Later):
            self._open()

    def append(self, data: bytes, synced: bool = False) -> None:
        """Write to the file, and to the disk if `synced`; keep what cannot be written now."""
        try:
            with self._lock:
                self._kept += data
                file = self._flush()
            if synced:  # without the lock: others may write while a busy disk takes its time
                with _passing():
                    os.fsync(file)
        except _Later as full:
            if len(self._kept) > MOST_BYTES:
                raise OSError(full.error.errno, full.error.strerror, str(self.path)) from None

    def close(self) -> None:
        """Try once more to write what was kept, then close."""
        with self._lock, contextlib.suppress(_Later):
            self._flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _flush(self) -> int:
        file = self._open()
        data, self._kept = self._kept, bytearray()
        try:
            with _passing():
                # One write; the loop is for the rare short one, which would misalign the rest.
                while data:
                    del data[: os.write(file, data)]
        finally:
            self._kept = data + self._kept
        return file

    def _open(self) -> int:
        if self._file is None:
            with _passing():
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | self._flags
                self._file = os.open(self.path, flags, 0o644)
        assert self._file is not None
        return self._file

    def size(self) -> int:
        """Return the bytes in the file."""
        return os.fstat(self._file).st_size if self._file is not None else 0

    def close_line(self) -> None:
        """End the last line, after a writer that was killed within it."""
        size = self.size()
        if size and self._file is not None and os.pread(self._file, 1, size - 1) != b"\n":
            self.append(b"\n")

    def cut(self, size: int) -> None:
        """Cut the file to `size` bytes, after a writer that was killed within a record."""
        if self._file is not None and size < self.size():
            os.ftruncate(self._file, size)


class _Later(Exception):
    def __init__(self, error: OSError) -> None:
        self.error = error


@contextlib.contextmanager
def _passing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in PASSING:
            raise
        raise _Later(error) from None


def steady_clock() -> Callable[[], float]:
    """Return a clock of unix seconds that never goes back, so that a correction cannot make spans
    overlap."""
    offset = time.time() - time.perf_counter()
    return lambda: offset + time.perf_counter()


class Journal:
    """The files of one rank (or range of ranks) in one attempt, in the folder `journal/` of a run.

    `clock` is the rank's clock; what the caller times with it never overlaps by accident.
    """

    def __init__(
        self,
        folder: Path | str,
        attempt: int,
        ranks: range = range(1),
        clock: Callable[[], float] | None = None,
        again: bool = False,
    ) -> None:
        """Open the files. `again`: this process replaces one that was lost, while the attempt goes
        on."""
        assert ranks, "a journal is of one rank or more"
        assert ranks.step == 1, f"{ranks} has gaps"
        self.folder, self.attempt, self.ranks = Path(folder), attempt, ranks
        self.clock = clock or steady_clock()
        self._files: dict[str, Appender] = {}
        self._block = bytearray()
        self._busy_until = float("-inf")
        self._again = again
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file("events")

    def event(
        self, kind: str, *, t: float | None = None, synced: bool = True, **payload: object
    ) -> None:
        """Write a moment, now unless `t` is given: `start`, `ready`, `end` and other rare
        events."""
        at = self.clock() if t is None else t
        write_line(self._file("events"), at, None, kind, payload, synced)

    def write(self, event: JournalEvent, *, t: float | None = None, synced: bool = True) -> None:
        """Write a moment of a registered kind, now unless `t` is given."""
        self.event(event.kind, t=t, synced=synced, **event.to_payload())

    def write_span(
        self, event: JournalEvent, start: float, end: float, synced: bool = True
    ) -> None:
        """Write a span of a registered kind; `synced` as in `span`."""
        self.span(event.kind, start, end, synced, **event.to_payload())

    def span(
        self, kind: str, start: float, end: float, synced: bool = True, **payload: object
    ) -> None:
        """Write a rare span of the rank's time (kinds: `events.py`).

        A span that is less rare need not be `synced`: then it survives its process, but not the
        machine.
        """
        self._take(kind, start, end)
        write_line(self._file("events"), start, end, kind, payload, synced)

    def step(
        self,
        step: int,
        start: float,
        total: float,
        fetch: float,
        compute: float,
        exchange: float,
        bubble: float = 0.0,
        held: float = 0.0,
    ) -> None:
        """Write a finished step; parts in seconds. The rest of `total` is unexplained.

        The time that a save `held` it up is written as a span of its own, before the step.
        """
        held = min(held, total)
        if held >= HELD_S:
            self.write_span(HeldSpan(step=step), start, start + held, synced=False)
            start, total = start + held, total - held
        self._take(f"step {step}", start, start + total)
        record = _STEP.pack(start, step, total, fetch, compute, exchange, bubble)
        self._file("steps").append(record)
        self._block += record
        if len(self._block) == ROLLUP_STEPS * STEP.itemsize:
            made = rollup(np.frombuffer(self._block, STEP))
            self._file("rollups").append(made.tobytes())
            self._block = bytearray()

    def curve(
        self,
        step: int,
        loss: float,
        grad_norm: float,
        learning_rate: float,
        tokens: float,
        *,
        t: float | None = None,
    ) -> None:
        """Write a point of the training curve, by the one rank that reports; `tokens` since the
        start."""
        at = self.clock() if t is None else t
        point = _CURVE.pack(at, loss, tokens, step, grad_norm, learning_rate)
        self._file("curve").append(point)

    @property
    def busy_until(self) -> float:
        """The end of the last span or step."""
        return self._busy_until

    def close(self) -> None:
        """Close the files; there is nothing to flush."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _take(self, what: str, start: float, end: float) -> None:
        """Assert that spans do not overlap: a rank does one thing at a time."""
        assert end >= start, (
            f"{what} of rank {self.ranks[0]} ends {start - end:.6f} s before it starts"
        )
        overlap = self._busy_until - start
        assert overlap <= CLOCK_ROUNDING_S, (
            f"{what} of rank {self.ranks[0]} overlaps the span before it by {overlap:.6f} s"
        )
        self._busy_until = max(self._busy_until, end)

    def _file(self, kind: str) -> Appender:
        if kind not in self._files:
            path = self.folder / file_name(self.attempt, self.ranks, kind)
            # O_EXCL: an attempt number used twice would mix two processes in one file.
            file = Appender(path, 0 if self._again else os.O_EXCL)
            self._files[kind] = file
            if kind == "events":
                file.close_line()
            elif file.size() < HEADER.size:
                file.cut(0)
                file.append(header(kind, self.attempt, self.ranks), synced=True)
            else:
                self._go_on(kind, file)
        return self._files[kind]

    def _go_on(self, kind: str, file: Appender) -> None:
        """Continue behind the last whole record; rollups continue where the steps before them
        end."""
        records = read_records(file.path, kind)
        file.cut(HEADER.size + len(records) * DTYPE[kind].itemsize)
        if kind == "steps":
            done = len(records) // ROLLUP_STEPS * ROLLUP_STEPS
            self._block = bytearray(records[done:].tobytes())
            rollups = self._file("rollups") if done else None
            have = len(read_records(file.path.with_suffix(".rollups"), "rollups"))
            for at in range(have * ROLLUP_STEPS, done, ROLLUP_STEPS):
                assert rollups is not None
                rollups.append(rollup(records[at : at + ROLLUP_STEPS]).tobytes())


class SupervisorJournal:
    """`supervisor.events`, the one file that later invocations append to."""

    def __init__(self, folder: Path | str, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock or steady_clock()
        path = Path(folder) / SUPERVISOR
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = Appender(path, 0)
        self._file.close_line()  # a killed invocation may have torn its last one

    def event(self, kind: str, *, t: float | None = None, **payload: object) -> None:
        """Write an event of the whole run: `invocation`, `launch`, `fault`, `ended` and others."""
        write_line(self._file, self.clock() if t is None else t, None, kind, payload)

    def write(self, event: JournalEvent, *, t: float | None = None) -> None:
        """Write an event of a registered kind, now unless `t` is given."""
        self.event(event.kind, t=t, **event.to_payload())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_line(
    file: Appender,
    t: float,
    end: float | None,
    kind: str,
    payload: dict[str, object],
    synced: bool = True,
) -> None:
    """Append an event as one JSON line, without secrets."""
    assert not payload.keys() & {"t", "end"}, f"{kind}: t and end are the event's own times"
    times = {"t": t} if end is None else {"t": t, "end": end}
    line = json.dumps({**times, "kind": kind, **redact_all(payload)}, separators=(",", ":"))
    file.append(line.encode() + b"\n", synced=synced)
