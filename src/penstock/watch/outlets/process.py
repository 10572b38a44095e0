"""Where else a run is shown: a process beside the run that reads its folder and passes it on.

The run never waits for it. It is started with the ranks, follows the journal, outlives whoever
started it by as long as the last messages take, and a fault in it is a line in `logs/outlets.log`.
An outlet is one file with a class of the protocol below, and a line in `made`.
"""

import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from penstock.launch.prepare.listener import Listener
from penstock.ledger.journal.read import next_attempt, read_events
from penstock.ledger.journal.records import SUPERVISOR, parse_name, read_records
from penstock.meter.clock import now
from penstock.run.folder import RunFolder
from penstock.run.schema.run import Run
from penstock.secret import RedactedText
from penstock.watch.facts.view import View
from penstock.watch.outlets.news import News, Point, Teller

LOOK_S = 1.0
MEASURE_S = 30.0  # between looks at the whole account
MEASURE_SHARE = 0.005  # of a core, for those looks
LAST_S = 300.0  # after the run, for what is still to be sent
WAIT_S = 10.0  # that `penstock train` waits for that
LOG = "outlets.log"


class Outlet(Protocol):
    """One place. Its calls come one after the other in a thread of its own: they may block."""

    name: str

    def begin(self, view: View) -> None:
        """Before anything else."""

    def points(self, points: np.ndarray) -> None:
        """New points of the curve (`ledger.records.CURVE`), as they were written."""

    def measured(self, view: View) -> None:
        """A fresh reading of the whole run, now and then and at the end."""

    def happened(self, news: News) -> None:
        """A crash, a stall, a recovery, the end."""

    def close(self, result: str) -> None:
        """The run is over: done, stopped, failed or killed."""


def wanted(run: Run) -> bool:
    return bool(run.log.wandb or run.log.webhook)


def check(run: Run) -> None:
    """Refuses, before anything starts, what could not be sent."""
    from penstock.watch.outlets import wandb_log, webhook

    if run.log.webhook:
        webhook.address(run.log.webhook)
    if run.log.wandb:
        wandb_log.check(run.log.wandb)


def made(view: View, say: Callable[[str], None]) -> list[Outlet]:
    """The outlets of a run."""
    from penstock.watch.outlets.wandb_log import WandbLog
    from penstock.watch.outlets.webhook import Webhook, address

    log, found = view.run.log, list[Outlet]()
    if log.webhook:
        found.append(Webhook(address(log.webhook), view.folder.name, view.steps, say))
    if log.wandb:
        found.append(WandbLog(log.wandb, say))
    return found


class Elsewhere(Listener):
    """In `penstock train`: starts the process with the ranks, and sees it off."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.log: Path | None = None

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        if not wanted(View(folder).run):
            return
        heard = len(read_events(folder.journal / SUPERVISOR))
        start = (folder.path, os.getpid(), heard, next_attempt(folder.journal))
        folder.logs.mkdir(parents=True, exist_ok=True)
        self.log = folder.logs / LOG
        self.log.write_text("")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.watch.outlets.process", *map(str, start)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the run
            )

    def ended(self, wait_s: float = WAIT_S) -> list[str]:
        """What is to be said when the run is over."""
        if self.process is None or self.log is None:
            return []
        try:
            code = self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return [f"messages are still being sent, in the background; see {self.log}"]
        finally:
            self.process = None
        said = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return [f"outlets failed, see {self.log}"] if code else said[-5:]


@dataclass
class Lane:
    """An outlet in its thread: a slow one holds up neither the others nor the reader."""

    outlet: Outlet
    say: Callable[[str], None]
    calls: queue.SimpleQueue[Callable[[], None] | None] = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (call := self.calls.get()) is not None:
            try:
                call()
            except Exception as error:  # told, and nothing more is sent there
                traceback.print_exc()
                self.say(f"{self.outlet.name}: {type(error).__name__}: {error}; no more is sent")
                return


@dataclass
class Follower:
    """Reads a run folder and feeds its outlets until the run is over."""

    folder: RunFolder
    outlets: list[Outlet]
    heard: int  # events of the supervisor that are older
    first_attempt: int
    say: Callable[[str], None]
    patience_s: float = 300.0
    alive: Callable[[], bool] = lambda: True
    result: str = ""
    _read: dict[Path, int] = field(default_factory=dict)
    _measure_s: float = 0.0

    def __post_init__(self) -> None:
        self.teller = Teller(now(), self.patience_s)
        self.lanes = [Lane(outlet, self.say) for outlet in self.outlets]

    def run(self, look_s: float = LOOK_S) -> None:
        """Until the supervisor's last word or its death."""
        while not self._opened() and self.alive():
            time.sleep(min(look_s, 0.1))  # who a run is, is written with its first launch
        self._each(methodcaller("begin", View(self.folder)))
        while not self.teller.over:
            alive = self.alive()  # before the look: its last words come first
            self.look()
            if not alive and not self.teller.over:
                self._tell(self.teller.vanished(now()))
            elif not self.teller.over:
                time.sleep(look_s)
        self._finish()

    def _opened(self) -> bool:
        events = read_events(self.folder.journal / SUPERVISOR)
        return any(event.kind == "invocation" for event in events)

    def look(self) -> None:
        # What was written before an event is on disk when the event is: read it after.
        events = read_events(self.folder.journal / SUPERVISOR)[self.heard :]
        self.heard += len(events)
        for attempt, new in self._points():
            self._each(methodcaller("points", new))
            told = [Point(float(p["t"]), int(p["step"]), attempt) for p in new]
            self._tell(self.teller.finished(told))
        for event in events:
            if event.kind == "ended":
                self.result = str(event.payload.get("result", ""))
        self._tell(self.teller.heard(events))
        self._tell(self.teller.looked(now()))
        if time.monotonic() >= self._measure_s:
            self._measure()

    def _points(self) -> list[tuple[int, np.ndarray]]:
        found = []
        for path in sorted(self.folder.journal.glob("a*-r*.curve")):
            file = parse_name(path)
            if file is None or file.attempt < self.first_attempt:
                continue
            new = read_records(path, "curve", self._read.get(path, 0))
            if len(new):
                self._read[path] = self._read.get(path, 0) + len(new)
                found.append((file.attempt, new))
        return found

    def _measure(self) -> None:
        began = time.thread_time()
        view = View(self.folder)
        _ = view.account, view.curve, view.validation  # in this thread, once for all of them
        self._each(methodcaller("measured", view))
        spent = time.thread_time() - began
        self._measure_s = time.monotonic() + max(MEASURE_S, spent / MEASURE_SHARE)

    def _tell(self, news: list[News]) -> None:
        for one in news:
            self._each(methodcaller("happened", one))

    def _each(self, call: Callable[[Outlet], None]) -> None:
        for lane in self.lanes:
            lane.calls.put(partial(call, lane.outlet))

    def _finish(self) -> None:
        self._measure()
        self._each(methodcaller("close", self.result or "killed"))
        until = time.monotonic() + LAST_S
        for lane in self.lanes:
            lane.calls.put(None)
        for lane in self.lanes:
            lane.thread.join(max(0.0, until - time.monotonic()))
            if lane.thread.is_alive():
                self.say(f"{lane.outlet.name}: not everything was sent in {LAST_S:.0f} s")


def main(path: str, parent: str, heard: str, first_attempt: str) -> None:
    os.nice(10)  # the cores belong to the ranks
    folder = RunFolder(Path(path))

    def say(words: str) -> None:
        print(words, flush=True)

    view = View(folder)
    follower = Follower(
        folder,
        made(view, say),
        int(heard),
        int(first_attempt),
        say,
        patience_s=2 * view.run.guard.timeout,
        alive=lambda: os.getppid() == int(parent),
    )
    follower.run()
    sys.stdout.flush()
    os._exit(0)  # threads that still hang are not waited for


if __name__ == "__main__":
    sys.stdout = sys.stderr = RedactedText(1)
    main(*sys.argv[1:])
