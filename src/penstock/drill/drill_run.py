"""One scratch run in real processes, and the faults that are injected into it."""

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

from penstock.drill.faults import LETHAL, InjectedFault
from penstock.drill.small_disk import SmallDisk
from penstock.guard.detect import failpoints
from penstock.guard.detect.failpoints import Failpoint
from penstock.launch.supervisor import preload
from penstock.ledger.journal.events import AttemptLaunched
from penstock.ledger.journal.read import E, LineOf, lines_of, read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.run.folder import RunFolder

POLL_S = 0.01
LIMIT_S = 300.0  # the least time limit of anything that a drill waits for


class DrillStuck(Exception):
    """A run that did not get where the drill waited for it."""


@dataclass(frozen=True)
class HeldRank:
    """A rank that waits for the drill."""

    attempt: int
    rank: int
    pid: int


@dataclass
class DrillRun:
    """A scratch run. `train` is the command of a user, which may be started several times."""

    folder: RunFolder
    train: list[str]
    env: dict[str, str] = field(default_factory=dict)
    armed: list[Failpoint] = field(default_factory=list)
    waiting: list[tuple[Failpoint, bool]] = field(default_factory=list)
    actions_done: list[InjectedFault] = field(default_factory=list)  # what the drill did itself
    cleanups: list[Callable[[], None]] = field(default_factory=list)  # to be undone at the end
    copy: Path | None = None  # of the dataset, to be damaged
    limit_s: float = LIMIT_S
    commands: int = 0

    def prepare(self, failpoints_to_arm: list[tuple[Failpoint, bool]]) -> None:
        """Make the run folder and arm the first failpoints."""
        self.folder.audit.mkdir(parents=True)
        self.folder.traps.mkdir()
        self.waiting = list(failpoints_to_arm)
        self._arm()

    def start(self) -> None:
        """Start the command, for the first time or again."""
        self.process = self.command()

    def command(
        self, inside: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes] | preload.ForkedProcess:
        """Start the command; `inside` is put before it, such as `ip netns exec`."""
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
        """Wait until the command ends; return its exit code."""
        self.wait_until(self.ended, "the command did not end")
        assert self.process.returncode is not None
        return self.process.returncode

    def ended(self) -> bool:
        return self.process.poll() is not None

    def last_error(self) -> str:
        """Return the error that the last command printed, or the end of its output."""
        log = self.folder.control / f"command-{self.commands}"
        text = log.read_text(errors="replace") if log.exists() else ""
        at = text.rfind("\nerror: ")
        return text[at:].strip() if at >= 0 else text.strip()[-200:]

    def wait_until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.limit_s
        while not done():
            self._arm()
            if time.monotonic() > deadline:
                raise DrillStuck(f"{what} within {self.limit_s:.0f} s")
            time.sleep(POLL_S)

    def wait_for_held_rank(self, number: int = 0) -> HeldRank:
        """Wait until a failpoint holds a rank; return that rank."""
        self.wait_until(
            lambda: len(self.armed) > number, f"failpoint {number} waits for the one before it"
        )
        name = self.armed[number].name
        self.wait_until(
            lambda: self._record(name) is not None or self.ended(),
            f"no rank came to {name}",
        )
        found = self._record(name)
        if found is None:
            raise DrillStuck(
                f"the command ended before any rank came to {name}: {self.last_error()}"
            )
        return HeldRank(found["attempt"], found["rank"], found["pid"])

    def triggered(self, number: int) -> bool:
        return len(self.armed) > number and self._record(self.armed[number].name) is not None

    def kill(self, held: HeldRank) -> None:
        """Kill a rank that is held."""
        self.record_injection("kill", held, lethal=True)
        os.kill(held.pid, signal.SIGKILL)

    def release(self, number: int = 0) -> None:
        """Let a held rank go on."""
        (self.folder.traps / f"{self.armed[number].name}.go").touch()

    def events(self, cls: type[E]) -> list[LineOf[E]]:
        """Return the supervisor's events of a class, by time."""
        return lines_of(read_events(self.folder.journal / SUPERVISOR), cls)

    def attempt(self) -> int:
        """Return the number of the last attempt that was launched."""
        launches = self.events(AttemptLaunched)
        last = launches[-1].attempt if launches else None
        return -1 if last is None else last

    def record_injection(self, what: str, held: HeldRank, lethal: bool = False) -> None:
        """Record that the drill disturbs the run now."""
        self.actions_done.append(
            InjectedFault(time.monotonic(), held.attempt, held.rank, what, lethal)
        )

    def injected(self) -> list[InjectedFault]:
        """Return all injected faults by time; a failpoint that only held a rank is none."""
        sprung = [self._fired(one.name) for one in self.armed if one.action != "hold"]
        return sorted([*self.actions_done, *(one for one in sprung if one)], key=lambda one: one.t)

    def missed(self) -> list[str]:
        """Return the failpoints that never triggered."""
        late = [one.name for one, _ in self.waiting]
        return [one.name for one in self.armed if self._fired(one.name) is None] + late

    def on_small_disk(self, all_of_it: bool) -> SmallDisk:
        """Mount a small disk at the run folder, or at its checkpoints.

        The files of the drill itself stay outside.
        """
        if all_of_it:
            outside = self.folder.path.with_name(f"{self.folder.name}.control")
            self.folder.control.rename(outside)
            disk = self._mounted(self.folder.path)
            self.folder.control.symlink_to(outside)
            return disk
        self.folder.checkpoints.mkdir()
        return self._mounted(self.folder.checkpoints)

    def _mounted(self, folder: Path) -> SmallDisk:
        disk = SmallDisk(folder)
        disk.mount()
        self.cleanups.append(disk.unmount)
        return disk

    def clear(self) -> None:
        """End the processes that are left, free shared memory and undo what the drill set up."""
        if getattr(self, "process", None) and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.folder.drop_scratch()
        while self.cleanups:
            self.cleanups.pop()()

    def _arm(self) -> None:
        """Arm the next failpoints, up to one that waits for those before it."""
        while self.waiting:
            one, then = self.waiting[0]
            if then and not all(self._fired(before.name) for before in self.armed):
                return
            failpoints.arm(self.folder.traps, one)
            self.armed.append(one)
            self.waiting.pop(0)

    def _fired(self, name: str) -> InjectedFault | None:
        record = self._record(name)
        if record is None:
            return None
        one = next(armed for armed in self.armed if armed.name == name)
        done = self.folder.traps / f"{name}.done"
        t = float(done.read_text()) if done.exists() else record["mono"]
        what, lethal = f"{one.action} in {one.phase}", one.action in LETHAL
        return InjectedFault(t, record["attempt"], record["rank"], what, lethal)

    def _record(self, name: str) -> dict[str, Any] | None:
        try:
            return json.loads((self.folder.traps / f"{name}.fired").read_text())
        except (FileNotFoundError, ValueError):  # not sprung, or being written
            return None
