"""One scratch run in real processes, and the blows that fall on it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.drill.disk import Small
from penstock.drill.struck import LETHAL, Struck
from penstock.guard.detect import failpoints
from penstock.guard.detect.failpoints import Failpoint
from penstock.launch.supervisor import preload
from penstock.ledger.journal.read import Event, read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.run.folder import RunFolder

POLL_S = 0.01
LIMIT_S = 300.0  # at least, for anything that a drill waits for


class Stuck(Exception):
    """The run did not get where the drill waited for it."""


@dataclass(frozen=True)
class Held:
    """A rank that waits for the drill."""

    attempt: int
    rank: int
    pid: int


@dataclass
class Scene:
    """`train` is the command that a user would give; it may be given several times."""

    folder: RunFolder
    train: list[str]
    env: dict[str, str] = field(default_factory=dict)
    armed: list[Failpoint] = field(default_factory=list)
    waiting: list[tuple[Failpoint, bool]] = field(default_factory=list)
    deeds: list[Struck] = field(default_factory=list)  # what the drill did itself
    after: list[Callable[[], None]] = field(default_factory=list)  # to be undone at the end
    copy: Path | None = None  # of the dataset, to be damaged
    limit_s: float = LIMIT_S
    commands: int = 0

    def prepare(self, traps: list[tuple[Failpoint, bool]]) -> None:
        """The folder as the ranks will look for it, with the first traps armed."""
        self.folder.audit.mkdir(parents=True)
        self.folder.traps.mkdir()
        self.waiting = list(traps)
        self._arm()

    def start(self) -> None:
        """Give the command, for the first time or again."""
        self.process = self.command()

    def command(
        self, inside: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes] | preload.ForkedProcess:
        """`inside` is what it begins with, such as a namespace."""
        self.commands += 1
        log = self.folder.control / f"command-{self.commands}"
        env = {**os.environ, **self.env, **(env or {})}
        with log.open("wb") as file, open(os.devnull) as nothing:
            if not inside:
                fds = {0: nothing.fileno(), 1: file.fileno(), 2: file.fileno()}
                return preload.python_m(["penstock", *self.train], env, fds)
            return subprocess.Popen(
                [*inside, sys.executable, "-m", "penstock", *self.train],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self) -> int:
        """Its exit code, when it has ended."""
        self.until(self.over, "the command did not end")
        assert self.process.returncode is not None
        return self.process.returncode

    def over(self) -> bool:
        return self.process.poll() is not None

    def said(self) -> str:
        """What the last command ended with: its error, below all else that it printed."""
        log = self.folder.control / f"command-{self.commands}"
        text = log.read_text(errors="replace") if log.exists() else ""
        at = text.rfind("\nerror: ")
        return text[at:].strip() if at >= 0 else text.strip()[-200:]

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.limit_s
        while not done():
            self._arm()
            if time.monotonic() > deadline:
                raise Stuck(f"{what} within {self.limit_s:.0f} s")
            time.sleep(POLL_S)

    def held(self, number: int = 0) -> Held:
        """Waits until a rank is held by a trap; where it is."""
        self.until(lambda: len(self.armed) > number, f"trap {number} waits for the one before it")
        name = self.armed[number].name
        self.until(
            lambda: self._record(name) is not None or self.over(),
            f"no rank came to {name}",
        )
        found = self._record(name)
        if found is None:
            raise Stuck(f"the command ended before any rank came to {name}: {self.said()}")
        return Held(found["attempt"], found["rank"], found["pid"])

    def sprung(self, number: int) -> bool:
        return len(self.armed) > number and self._record(self.armed[number].name) is not None

    def kill(self, held: Held) -> None:
        """SIGKILL of the rank that is held."""
        self.strike("kill", held, lethal=True)
        os.kill(held.pid, signal.SIGKILL)

    def release(self, number: int = 0) -> None:
        """The rank that is held goes on."""
        (self.folder.traps / f"{self.armed[number].name}.go").touch()

    def event(self, kind: str) -> Event | None:
        """The last that the supervisor wrote of one kind."""
        found = read_events(self.folder.journal / SUPERVISOR)
        return next((event for event in reversed(found) if event.kind == kind), None)

    def count(self, kind: str) -> int:
        events = read_events(self.folder.journal / SUPERVISOR)
        return sum(event.kind == kind for event in events)

    def attempt(self) -> int:
        """The one that was launched last."""
        launch = self.event("launch")
        return -1 if launch is None or launch.attempt is None else launch.attempt

    def strike(self, what: str, held: Held, lethal: bool = False) -> None:
        """Put on record that the drill does something now."""
        self.deeds.append(Struck(time.monotonic(), held.attempt, held.rank, what, lethal))

    def struck(self) -> list[Struck]:
        """All blows by time. A trap that only held a rank for a deed is none."""
        sprung = [self._fired(one.name) for one in self.armed if one.action != "hold"]
        return sorted([*self.deeds, *(one for one in sprung if one)], key=lambda one: one.t)

    def missed(self) -> list[str]:
        """Traps that never sprung."""
        late = [one.name for one, _ in self.waiting]
        return [one.name for one in self.armed if self._fired(one.name) is None] + late

    def on_small_disk(self, all_of_it: bool) -> Small:
        """The run's folder, or its checkpoints, on a disk of its own; what the drill itself writes
        stays outside."""
        if all_of_it:
            outside = self.folder.path.with_name(f"{self.folder.name}.control")
            self.folder.control.rename(outside)
            disk = self._mounted(self.folder.path)
            self.folder.control.symlink_to(outside)
            return disk
        self.folder.checkpoints.mkdir()
        return self._mounted(self.folder.checkpoints)

    def _mounted(self, folder: Path) -> Small:
        disk = Small(folder)
        disk.mount()
        self.after.append(disk.unmount)
        return disk

    def clear(self) -> None:
        """End what is left of it, and what it holds in memory."""
        if getattr(self, "process", None) and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.folder.drop_scratch()
        while self.after:
            self.after.pop()()

    def _arm(self) -> None:
        """The next traps, up to one that waits for those before it."""
        while self.waiting:
            one, then = self.waiting[0]
            if then and not all(self._fired(before.name) for before in self.armed):
                return
            failpoints.arm(self.folder.traps, one)
            self.armed.append(one)
            self.waiting.pop(0)

    def _fired(self, name: str) -> Struck | None:
        record = self._record(name)
        if record is None:
            return None
        one = next(trap for trap in self.armed if trap.name == name)
        done = self.folder.traps / f"{name}.done"
        t = float(done.read_text()) if done.exists() else record["mono"]
        what, lethal = f"{one.action} in {one.phase}", one.action in LETHAL
        return Struck(t, record["attempt"], record["rank"], what, lethal)

    def _record(self, name: str) -> dict[str, Any] | None:
        try:
            return json.loads((self.folder.traps / f"{name}.fired").read_text())
        except (FileNotFoundError, ValueError):  # not sprung, or being written
            return None
