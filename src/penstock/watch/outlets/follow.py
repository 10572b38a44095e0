"""Following a run: its folder is read, and each outlet is called in a thread of its own."""

import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import methodcaller
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from penstock.ledger.journal.events import ABSENT, InvocationEnded, InvocationStarted
from penstock.ledger.journal.read import JournalLine, lines_of, read_events
from penstock.ledger.journal.records import SUPERVISOR, journal_files
from penstock.meter.clock import now
from penstock.run.folder import RunFolder
from penstock.watch.facts.deliveries import (
    Delivery,
    delivered_before,
    newest_values,
    run_id,
    write_deliveries,
)
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.alerts import Alert, AlertDetector, FinishedStep
from penstock.watch.outlets.points import new_points
from penstock.watch.outlets.waiting import NO_ANSWER_S, ServiceWait

POLL_S = 1.0
SUMMARY_S = 30.0  # between readings of the whole run
SUMMARY_SHARE = 0.005  # of a core, for those readings
SAVE_S = 5.0  # between writings of what was sent


class Outlet(Protocol):
    """One service. Its methods are called one by one in its own thread: they may block."""

    name: str

    @property
    def wait(self) -> ServiceWait:
        """Since when the outlet waits for its service."""

    @property
    def kept(self) -> bool:
        """Whether the client keeps on this disk what it was given and could not send."""

    @property
    def remedy(self) -> str:
        """The way to send what was not sent."""

    @property
    def problem(self) -> str:
        """A message about values that were given up on the way; empty if none were."""

    def begin(self, view: RunView) -> None:
        """Prepare, and send what earlier launches could not; called before all others."""

    def send_points(self, points: np.ndarray) -> None:
        """Send new points of the curve (`ledger.journal.records.CURVE`) in the order of writing."""

    def send_summary(self, view: RunView) -> None:
        """Send values of the whole run; called now and then, and at the end."""

    def send_alert(self, alerts: Alert) -> None:
        """Send an alert: a crash, a stall, a recovery, the end."""

    def close(self, result: str) -> None:
        """Finish; `result` is done, stopped, stopped early, failed or killed."""


@dataclass(frozen=True)
class Call:
    """A call of an outlet, and what it has delivered once it returned."""

    make: Callable[[], None]
    delivers: dict[str, Any] = field(default_factory=dict)  # fields of `Delivery`


@dataclass
class OutletThread:
    """An outlet in its own thread: a slow one delays neither the others nor the reader."""

    outlet: Outlet
    say: Callable[[str], None]
    delivery: Delivery = field(default_factory=Delivery)
    worked_s: float = 0.0  # monotonic, when the last call returned
    calls: queue.SimpleQueue[Call | None] = field(default_factory=queue.SimpleQueue)

    @cached_property
    def thread(self) -> threading.Thread:
        return threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        while (call := self.calls.get()) is not None:
            try:
                call.make()
            except Exception as error:  # reported, and this outlet stops
                traceback.print_exc()
                why = str(error).partition("\n")[0]
                self.give_up(f"{type(error).__name__}: {why}; no more is sent now", kept=False)
                return
            self.delivery = replace(self.delivery, **call.delivers)
            self.worked_s = time.monotonic()
        self.delivery = replace(self.delivery, complete=True, problem=self.outlet.problem)

    def is_late(self, ended_s: float) -> bool:
        """Return whether the outlet still works on a run that ended then, and no longer may."""
        since = max(ended_s, self.worked_s)
        return self.thread.is_alive() and self.outlet.wait.late(since, time.monotonic())

    def give_up(self, why: str, kept: bool) -> None:
        """Tell the user why values were not sent and what to do, and record it.

        `kept`: the client has them all on this disk, so that Penstock sends none of them.
        """
        problem = f"{why}; {self.outlet.remedy}"
        self.delivery = replace(self.delivery, problem=problem, complete=kept)
        self.say(f"{self.outlet.name}: {problem}")


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
    deliveries: dict[str, Delivery] = field(default_factory=dict)  # of earlier launches, by outlet
    result: str = ""
    _read: dict[Path, int] = field(default_factory=dict)
    _summary_s: float = 0.0
    _id: str = ""  # of the run
    _save_s: float = 0.0
    _saved: dict[str, Delivery] = field(default_factory=dict)

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
        self._begin()
        while not self.detector.over:
            if self._is_removed():
                return
            alive = self.alive()  # before reading: its last events come first
            self.poll()
            self._save()
            if not alive and not self.detector.over:
                self._send_alerts(self.detector.supervisor_died(now()))
            elif not self.detector.over:
                time.sleep(poll_s)
        self._finish()

    def send_rest(self) -> None:
        """Send what earlier launches could not, of a run that is over."""
        for thread in self.threads:
            thread.thread.start()
        self._begin()
        self._read_result(read_events(self.folder.journal / SUPERVISOR))
        self._finish()
        for thread in self.threads:
            if thread.delivery.complete and not thread.delivery.problem:
                self.say(f"{thread.outlet.name}: has all values of the run now")

    def _begin(self) -> None:
        view = RunView(self.folder)
        self._id = run_id(self.folder)
        before = delivered_before(view, self.first_attempt)
        self._read = {self.folder.journal / name: n for name, n in before.points.items()}
        for thread in self.threads:
            known = self.deliveries.get(thread.outlet.name, before)
            thread.delivery = replace(known, complete=False, problem="")
        self._save(at_once=True)
        self._call_all(methodcaller("begin", view), {"points": before.points})

    def _read_result(self, events: list[JournalLine]) -> None:
        for line in lines_of(events, InvocationEnded):
            self.result = "" if line.event.result is ABSENT else str(line.event.result)

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
        new_by_attempt = self._new_points()
        read = {path.name: count for path, count in self._read.items()}
        for attempt, new in new_by_attempt:
            last = attempt == new_by_attempt[-1][0]
            self._call_all(methodcaller("send_points", new), {"points": read} if last else {})
            steps = [FinishedStep(float(p["t"]), int(p["step"]), attempt) for p in new]
            self._send_alerts(self.detector.add_steps(steps))
        self._read_result(events)
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
        self._call_all(methodcaller("send_summary", view), {"newest": newest_values(view)})
        spent = time.thread_time() - began
        self._summary_s = time.monotonic() + max(SUMMARY_S, spent / SUMMARY_SHARE)

    def _send_alerts(self, alerts: list[Alert]) -> None:
        for alert in alerts:
            self._call_all(methodcaller("send_alert", alert))

    def _call_all(
        self, call: Callable[[Outlet], None], delivers: dict[str, Any] | None = None
    ) -> None:
        for thread in self.threads:
            thread.calls.put(Call(partial(call, thread.outlet), delivers or {}))

    def _finish(self) -> None:
        """Wait for the outlets: for a service that answers until it has all, else not for long."""
        self._send_summaries()
        self._call_all(methodcaller("close", self.result or "killed"))
        for thread in self.threads:
            thread.calls.put(None)
        ended_s, left = time.monotonic(), list(self.threads)
        while left:
            left[0].thread.join(0.1)
            self._save()
            late = [thread for thread in left if thread.is_late(ended_s)]
            for thread in late:
                why = f"no answer for {NO_ANSWER_S:.0f} s, not everything was sent"
                thread.give_up(why, thread.outlet.kept)
            left = [one for one in left if one.thread.is_alive() and one not in late]
        self._save(at_once=True)

    def _save(self, at_once: bool = False) -> None:
        """Record what was sent."""
        sent = {thread.outlet.name: thread.delivery for thread in self.threads}
        if at_once or (time.monotonic() >= self._save_s and sent != self._saved):
            self._saved, self._save_s = sent, time.monotonic() + SAVE_S
            try:
                write_deliveries(self.folder, self._id, self.deliveries | sent)
            except OSError:  # a full disk: the next launch sends more than it has to
                traceback.print_exc()
