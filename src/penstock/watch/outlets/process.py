"""A process beside a run that reads its folder and sends alerts and values to other services.

The run never waits for it. It starts with the ranks, follows the journal, and may outlive
`penstock train` until the last messages are sent. An error in it is a line in `logs/outlets.log`.
An outlet is a class of the protocol `Outlet`, or of `Tracker` (tracker.py), in a file of its own,
and a line in `build_outlets`.
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
from functools import cached_property, partial
from operator import methodcaller
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from penstock.launch.prepare.listener import Listener
from penstock.ledger.journal.events import ABSENT, InvocationEnded, InvocationStarted
from penstock.ledger.journal.read import lines_of, next_attempt, read_events
from penstock.ledger.journal.records import SUPERVISOR, journal_files
from penstock.meter.clock import now
from penstock.run.folder import RunFolder
from penstock.run.schema.log import OUTLETS
from penstock.run.schema.run import Run
from penstock.secret import RedactedText
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.alerts import Alert, AlertDetector, FinishedStep
from penstock.watch.outlets.points import new_points

POLL_S = 1.0
SUMMARY_S = 30.0  # between readings of the whole run
SUMMARY_SHARE = 0.005  # of a core, for those readings
LAST_S = 300.0  # after the run, to send what is left
WAIT_S = 10.0  # that `penstock train` waits for that
LOG = "outlets.log"
LINES = 8  # of messages that the user sees


class Outlet(Protocol):
    """One service. Its methods are called one by one in its own thread: they may block."""

    name: str

    def begin(self, view: RunView) -> None:
        """Prepare; called before all others."""

    def send_points(self, points: np.ndarray) -> None:
        """Send new points of the curve (`ledger.journal.records.CURVE`) in the order of writing."""

    def send_summary(self, view: RunView) -> None:
        """Send values of the whole run; called now and then, and at the end."""

    def send_alert(self, alerts: Alert) -> None:
        """Send an alert: a crash, a stall, a recovery, the end."""

    def close(self, result: str) -> None:
        """Finish; `result` is done, stopped, stopped early, failed or killed."""


def check(run: Run) -> None:
    """Raise PenstockError, before anything starts, for an outlet that could not send."""
    from penstock.watch.outlets import mlflow_log, tensorboard_log, trackio_log, wandb_log, webhook

    log = run.log
    if log.webhook:
        webhook.address(log.webhook)
    if log.wandb:
        wandb_log.check(log.wandb)
    if log.tensorboard:
        tensorboard_log.check(log.tensorboard)
    if log.mlflow:
        mlflow_log.check(log.mlflow)
    if log.trackio:
        trackio_log.check(log.trackio)


def build_outlets(
    view: RunView, say: Callable[[str], None], first_attempt: int = 0
) -> list[Outlet]:
    """Return the outlets of a run; `first_attempt` is the first of this launch."""
    from penstock.watch.outlets.mlflow_log import MlflowLog
    from penstock.watch.outlets.tensorboard_log import TensorboardLog
    from penstock.watch.outlets.tracker import Tracker, TrackerOutlet
    from penstock.watch.outlets.trackio_log import TrackioLog
    from penstock.watch.outlets.wandb_log import WandbLog
    from penstock.watch.outlets.webhook import Webhook, address

    log, outlets, trackers = view.run.log, list[Outlet](), list[Tracker]()
    if log.webhook:
        outlets.append(Webhook(address(log.webhook), view.folder.name, view.steps, say))
    if log.wandb:
        trackers.append(WandbLog(log.wandb, say))
    if log.tensorboard:
        trackers.append(TensorboardLog(log.tensorboard, say))
    if log.mlflow:
        trackers.append(MlflowLog(log.mlflow, say))
    if log.trackio:
        trackers.append(TrackioLog(log.trackio, say))
    return outlets + [TrackerOutlet(tracker, first_attempt) for tracker in trackers]


class OutletProcess(Listener):
    """The handle of the outlet process in `penstock train`."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.log: Path | None = None

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        if not RunView(folder).run.log.outlets:
            return
        events_read = len(read_events(folder.journal / SUPERVISOR))
        start = (folder.path, os.getpid(), events_read, next_attempt(folder.journal))
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
        """Wait a moment for the process; return messages for the user."""
        if self.process is None or self.log is None:
            return []
        try:
            code = self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return [f"messages are still being sent, in the background; see {self.log}"]
        finally:
            self.process = None
        # The rest of the log is what the clients of the services print.
        said = tuple(f"{name}: " for name in OUTLETS)
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return []  # bad input ended the run before its first step: it left no folder
        told = [line for line in lines if line.startswith(said)]
        return [f"outlets failed, see {self.log}"] if code else told[-LINES:]


@dataclass
class OutletThread:
    """An outlet in its own thread: a slow one delays neither the others nor the reader."""

    outlet: Outlet
    say: Callable[[str], None]
    calls: queue.SimpleQueue[Callable[[], None] | None] = field(default_factory=queue.SimpleQueue)

    @cached_property
    def thread(self) -> threading.Thread:
        return threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        while (call := self.calls.get()) is not None:
            try:
                call()
            except Exception as error:  # reported, and this outlet stops
                traceback.print_exc()
                self.say(f"{self.outlet.name}: {type(error).__name__}: {error}; no more is sent")
                return


@dataclass
class RunFollower:
    """Reads a run folder and calls its outlets until the run is over."""

    folder: RunFolder
    outlets: list[Outlet]
    events_read: int  # events of the supervisor so far; older ones are not sent
    first_attempt: int
    say: Callable[[str], None]
    patience_s: float = 300.0
    alive: Callable[[], bool] = lambda: True
    result: str = ""
    _read: dict[Path, int] = field(default_factory=dict)
    _summary_s: float = 0.0

    @cached_property
    def detector(self) -> AlertDetector:
        return AlertDetector(now(), self.patience_s)

    @cached_property
    def threads(self) -> list[OutletThread]:
        return [OutletThread(outlet, self.say) for outlet in self.outlets]

    def run(self, poll_s: float = POLL_S) -> None:
        """Follow the run until the supervisor's last event, its death, or the end of its folder."""
        for thread in self.threads:
            thread.thread.start()
        while not self._has_begun() and self.alive() and not self._is_removed():
            time.sleep(min(poll_s, 0.1))  # the first launch writes what identifies the run
        if self._is_removed():
            return
        self._call_all(methodcaller("begin", RunView(self.folder)))
        while not self.detector.over:
            if self._is_removed():
                return
            alive = self.alive()  # before reading: its last events come first
            self.poll()
            if not alive and not self.detector.over:
                self._send_alerts(self.detector.supervisor_died(now()))
            elif not self.detector.over:
                time.sleep(poll_s)
        self._finish()

    def _is_removed(self) -> bool:
        """Return whether bad input ended the run before its first step, which leaves no folder."""
        return not self.folder.path.exists()

    def _has_begun(self) -> bool:
        events = read_events(self.folder.journal / SUPERVISOR)
        return bool(lines_of(events, InvocationStarted))

    def poll(self) -> None:
        """Read what is new and send it."""
        # Points that were written before an event are on disk when the event is: read them after.
        events = read_events(self.folder.journal / SUPERVISOR)[self.events_read :]
        self.events_read += len(events)
        for attempt, new in self._new_points():
            self._call_all(methodcaller("send_points", new))
            steps = [FinishedStep(float(p["t"]), int(p["step"]), attempt) for p in new]
            self._send_alerts(self.detector.add_steps(steps))
        for line in lines_of(events, InvocationEnded):
            self.result = "" if line.event.result is ABSENT else str(line.event.result)
        self._send_alerts(self.detector.add_supervisor_events(events))
        self._send_alerts(self.detector.check_stall(now()))
        if time.monotonic() >= self._summary_s:
            self._send_summaries()

    def _new_points(self) -> list[tuple[int, np.ndarray]]:
        files = journal_files(self.folder.journal, "curve")
        launched = [(f.attempt, f.path) for f in files if f.attempt >= self.first_attempt]
        return new_points(launched, self._read)

    def _send_summaries(self) -> None:
        began = time.thread_time()
        view = RunView(self.folder)
        _ = view.account, view.curve, view.validation  # in this thread, once for all of them
        self._call_all(methodcaller("send_summary", view))
        spent = time.thread_time() - began
        self._summary_s = time.monotonic() + max(SUMMARY_S, spent / SUMMARY_SHARE)

    def _send_alerts(self, alerts: list[Alert]) -> None:
        for alert in alerts:
            self._call_all(methodcaller("send_alert", alert))

    def _call_all(self, call: Callable[[Outlet], None]) -> None:
        for thread in self.threads:
            thread.calls.put(partial(call, thread.outlet))

    def _finish(self) -> None:
        self._send_summaries()
        self._call_all(methodcaller("close", self.result or "killed"))
        until = time.monotonic() + LAST_S
        for thread in self.threads:
            thread.calls.put(None)
        for thread in self.threads:
            thread.thread.join(max(0.0, until - time.monotonic()))
            if thread.thread.is_alive():
                self.say(f"{thread.outlet.name}: not everything was sent in {LAST_S:.0f} s")


def main(path: str, parent: str, events_read: str, first_attempt: str) -> None:
    """Follow a run from its folder; `parent` is the process id of its supervisor."""
    os.nice(10)  # the cores belong to the ranks
    folder = RunFolder(Path(path))

    def say(words: str) -> None:
        print(words, flush=True)

    view = RunView(folder)
    follower = RunFollower(
        folder,
        build_outlets(view, say, int(first_attempt)),
        int(events_read),
        int(first_attempt),
        say,
        patience_s=2 * view.run.guard.timeout,
        alive=lambda: os.getppid() == int(parent),
    )
    follower.run()
    sys.stdout.flush()
    os._exit(0)  # do not wait for threads that hang


if __name__ == "__main__":
    sys.stdout = sys.stderr = RedactedText(1)
    main(*sys.argv[1:])
