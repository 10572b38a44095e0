"""Failpoints of a drill in `control/traps/`: each triggers one fault once, at a named point of the
work.

A failpoint is a file ID.json. Triggering it first writes ID.fired to disk, so that it cannot
trigger twice and the drill knows when it did. Without armed failpoints none of this costs anything.
"""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.files import sync

LOOK_S = 0.2  # between looks for traps that are armed while the run goes on
HOLD_S = 0.005  # between looks of a rank that is held


@dataclass(frozen=True)
class Failpoint:
    """One fault at one point. `rank`, `phase` and `step` say where; None matches any of them."""

    name: str
    # "kill", "kill_soon", "stop", "sleep", "hold", "exit", "raise", or a handler's name
    action: str
    phase: str
    rank: int | None = None
    step: int | None = None
    ms: float = 0.0

    def fits(self, phase: str, step: int) -> bool:
        return self.phase == phase and self.step in (None, step)


@dataclass
class Failpoints:
    """The armed failpoints of one rank. `handlers` do what needs the rank's own tensors."""

    folder: Path  # control/traps
    rank: int
    attempt: int
    handlers: dict[str, Callable[[Failpoint], None]] = field(default_factory=dict)
    armed: list[Failpoint] = field(default_factory=list)
    alive: Callable[[], None] = lambda: None  # a sign of life
    _looked: float = float("-inf")
    _changed: int = -1

    @property
    def in_drill(self) -> bool:
        """Whether this run is in a drill at all."""
        return self._changed != -1

    def reload(self) -> None:
        """Read the armed failpoints, if anything changed since the last time."""
        if not self.in_drill or time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            try:
                changed = self.folder.stat().st_mtime_ns
            except OSError:
                return
            if changed != self._changed:
                self._changed = changed
                self.armed = [t for t in read(self.folder) if t.rank in (None, self.rank)]

    def trigger(self, phase: str, step: int) -> None:
        """Trigger the failpoints of this phase and step."""
        self.reload()
        for trap in [trap for trap in self.armed if trap.fits(phase, step)]:
            self.armed.remove(trap)
            if claim(self.folder, trap.name, self.rank, self.attempt):
                self._act(trap)

    def _act(self, trap: Failpoint) -> None:
        match trap.action:
            case "kill":
                self._signal(trap, signal.SIGKILL)
            case "kill_soon":
                args = (trap, signal.SIGKILL)
                kill = threading.Timer(trap.ms / 1e3, self._signal, args)
                kill.daemon = True
                kill.start()
            case "stop":
                self._signal(trap, signal.SIGSTOP)
            case "sleep":
                time.sleep(trap.ms / 1e3)
            case "hold":
                self._hold(trap)
            case "exit":
                os._exit(7)
            case "raise":
                raise RuntimeError(f"drill: trap {trap.name}")
            case handler:
                self.handlers[handler](trap)

    def _signal(self, trap: Failpoint, number: int) -> None:
        """Send a signal to this process, after its time is on record: a timer takes a while."""
        aside = self.folder / f".{trap.name}.done"  # a reader sees all of it or none
        aside.write_text(str(time.monotonic()))
        aside.rename(self.folder / f"{trap.name}.done")
        os.kill(os.getpid(), number)

    def _hold(self, trap: Failpoint) -> None:
        """Wait until the drill has acted and lets go, at most for `ms`."""
        until = time.monotonic() + trap.ms / 1e3
        while time.monotonic() < until and not (self.folder / f"{trap.name}.go").exists():
            self.alive()  # it waits, and does not hang
            time.sleep(HOLD_S)


def arm(folder: Path, trap: Failpoint) -> None:
    """Put a failpoint where the ranks look."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{trap.name}"
    aside.write_text(json.dumps({k: v for k, v in vars(trap).items() if k != "name"}))
    aside.rename(folder / f"{trap.name}.json")


def read(folder: Path) -> list[Failpoint]:
    """Return all failpoints that have not been triggered."""
    found = []
    for path in sorted(folder.glob("*.json")):
        if not path.with_suffix(".fired").exists():
            with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
                # sprung and cleared meanwhile, or no trap
                found.append(Failpoint(path.stem, **json.loads(path.read_text())))
    return found


def claim(folder: Path, name: str, rank: int, attempt: int) -> bool:
    """Return whether this process may trigger it; the record is on disk when this returns."""
    try:
        file = os.open(folder / f"{name}.fired", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    record = {"t": time.time(), "mono": time.monotonic(), "pid": os.getpid()}
    os.write(file, json.dumps(record | {"rank": rank, "attempt": attempt}).encode())
    os.fsync(file)
    os.close(file)
    sync(folder)
    return True
