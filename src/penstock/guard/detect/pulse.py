"""Pulse of a rank: a few bytes in shared memory that say what it does now.

Writing them costs less than a microsecond, so every phase of every step does. The supervisor reads
them to see progress and to name the rank that hangs; drills trigger their failpoints here.
"""

import contextlib
import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.guard.detect.failpoints import Failpoints
from penstock.private import private_folder

PHASES = (
    "start", "join", "build", "load", "warm_up", "ready", "fetch", "forward", "reduce", "vote",
    "voted", "update", "updated", "keep", "stage", "save", "saved", "evaluate", "regroup", "heal",
    "end",
)  # fmt: skip
# In these a rank waits for others: whoever hangs while all the rest are in them is somebody else.
WAITING = frozenset({"join", "reduce", "vote", "regroup", "heal"})
_BEAT = struct.Struct("<QQqqQd")  # count, attempt, pid, step, phase, monotonic seconds
SIZE = 64
LOOK_S = 1.0  # between looks at whether the bytes can still be seen
TRACE = struct.Struct("<qQd")  # step, phase, monotonic seconds: every beat of a rank in a drill
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}


@dataclass(frozen=True)
class Heartbeat:
    """The last sign of life of a rank. `count` grows with every sign."""

    count: int
    attempt: int
    pid: int
    step: int
    phase: str
    t_mono: float


class Pulse:
    """One rank's heartbeat. A drill sets `failpoints`, and `audit` to record every beat."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        attempt: int,
        traps: Failpoints | None = None,
        audit: Path | None = None,
    ) -> None:
        self._path = _path(folder, rank)
        self._make()
        self._count, self._attempt, self._pid = 0, attempt, os.getpid()
        self.failpoints = traps
        self._trace: int | None = None
        if audit and audit.is_dir():
            path = audit / f"pulse-a{attempt:04d}-r{rank:05d}"
            self._trace = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if traps:
            traps.alive = self.beat
            traps.reload()
        self.phase, self.step = "start", 0
        self.at("start", 0)

    def _make(self) -> None:
        private_folder(self._path.parent)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.ftruncate(file, SIZE)
        self._map = mmap.mmap(file, SIZE)
        os.close(file)
        self._made_t = time.monotonic()

    def at(self, phase: str, step: int | None = None) -> None:
        """Record that the rank is now in `phase` of `step`, or of the current step."""
        self.phase, self.step = phase, self.step if step is None else step
        self.beat()
        if self.failpoints:
            self.failpoints.trigger(phase, self.step)

    def beat(self) -> None:
        """Record a sign of life in the same phase: a microbatch or a file is done."""
        self._count += 1
        number, t = _NUMBERS[self.phase], time.monotonic()
        if t - self._made_t > LOOK_S:
            self._look(t)
        _BEAT.pack_into(self._map, 0, self._count, self._attempt, self._pid, self.step, number, t)
        if self._trace is not None:
            os.write(self._trace, TRACE.pack(self.step, number, t))

    def _look(self, t: float) -> None:
        """Create the file again if it is gone: some systems clear shared memory when a user logs
        out."""
        self._made_t = t
        if not self._path.exists():
            with contextlib.suppress(OSError):  # then it is tried again
                self._make()

    def beside(self, phase: str, step: int) -> None:
        """Trigger failpoints for a thread beside the loop; this is no sign of life."""
        if self.failpoints:
            self.failpoints.trigger(phase, step)


def read_heartbeat(folder: Path, rank: int) -> Heartbeat | None:
    """Return the last heartbeat of a rank, or None."""
    try:
        raw = _path(folder, rank).read_bytes()
    except OSError:
        return None
    if len(raw) < _BEAT.size:
        return None
    count, attempt, pid, step, number, t_mono = _BEAT.unpack_from(raw)
    return Heartbeat(count, attempt, pid, step, PHASES[number], t_mono) if count else None


def write_heartbeat(folder: Path, rank: int, beat: Heartbeat) -> None:
    """Write the heartbeat of a rank on another host, for readers on this host."""
    values = (beat.count, beat.attempt, beat.pid, beat.step, _NUMBERS[beat.phase], beat.t_mono)
    _path(folder, rank).write_bytes(_BEAT.pack(*values).ljust(SIZE, b"\0"))


def _path(folder: Path, rank: int) -> Path:
    return folder / f"pulse-r{rank:05d}"
