"""Events of a run for a function in the process that trains it: `penstock.train(on_event=…)`.

A thread beside the supervisor reads the run's folder and calls the function. The run does not wait
for it: a slow function misses steps, and an exception in it is reported once.
"""

import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.arguments import in_python
from penstock.launch.prepare.listener import Listener
from penstock.ledger.journal.events import (
    ABSENT,
    AttemptFailed,
    AttemptLaunched,
    CheckpointSaved,
    EvaluateSpan,
    InvocationEnded,
    PairsRewarded,
    ReplicaGone,
    TaskScoresEvent,
)
from penstock.ledger.journal.read import JournalLine as Line
from penstock.ledger.journal.read import next_attempt, parse_lines
from penstock.ledger.journal.records import SUPERVISOR, journal_files, read_records
from penstock.ledger.journal.tail import FileTail
from penstock.ledger.journal.values import whole
from penstock.ledger.scores import TaskScore, TaskScores
from penstock.meter.clock import now
from penstock.run.folder import RunFolder
from penstock.watch.facts.rewards import Rewards
from penstock.watch.outlets.process import OutletProcess

if TYPE_CHECKING:
    from penstock.launch.prepare.resume import ResumeDecision

POLL_S = 0.2  # between readings of the folder: at most five steps a second are events


class Stop(Exception):
    """Raised by a callback to ask the run to save and stop, as `penstock stop` does."""


@dataclass(frozen=True)
class Event:
    """Something that happened in a run; `t` is in unix seconds."""

    kind: ClassVar[str]
    t: float
    step: int  # the last step that the run has finished, or the one that the event is about


@dataclass(frozen=True)
class Launching(Event):
    """The event before the ranks start."""

    kind: ClassVar[str] = "launching"
    folder: Path
    plan: dict[str, Any]  # plan.json: layout, ranks, steps, dataset


@dataclass(frozen=True)
class Step(Event):
    """A finished step. If steps are fast, only some are events; the last one always is."""

    kind: ClassVar[str] = "step"
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int  # trained on so far


@dataclass(frozen=True)
class Evaluation(Event):
    """An evaluation of the held-out samples."""

    kind: ClassVar[str] = "evaluation"
    loss: float
    rewards: Rewards | None = None  # of the held-out pairs


@dataclass(frozen=True)
class StepRewards(Event):
    """The rewards of the pairs of a step. If steps are fast, only some are events."""

    kind: ClassVar[str] = "rewards"
    rewards: Rewards


@dataclass(frozen=True)
class TaskEvaluation(Event):
    """Scores of benchmark tasks."""

    kind: ClassVar[str] = "tasks"
    scores: tuple[TaskScore, ...]


@dataclass(frozen=True)
class Checkpoint(Event):
    """A durable checkpoint that was published."""

    kind: ClassVar[str] = "checkpoint"
    tier: str  # disk or remote
    path: str


@dataclass(frozen=True)
class Fault(Event):
    """A rank that failed or hangs."""

    kind: ClassVar[str] = "fault"
    rank: int | None
    reason: str
    action: str  # restart, give_up; go on, where the other replicas do not restart


@dataclass(frozen=True)
class Restart(Event):
    """A new start of the ranks after a fault."""

    kind: ClassVar[str] = "restart"
    attempt: int


@dataclass(frozen=True)
class Finished(Event):
    """The end of the run, and its last event."""

    kind: ClassVar[str] = "finished"
    status: str  # done, stopped, stopped early or failed
    error: str


OnEvent = Callable[[Event], object]


class Callbacks(Listener):
    """Calls `on_event` for the events of a launch, from its own thread."""

    def __init__(self, on_event: OnEvent | None = None) -> None:
        self._on_event, self._failed = on_event, False
        self._outlets = OutletProcess()
        self._reader: EventReader | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        self._outlets.launching(folder, plan)
        self._begin(folder, plan)

    def _begin(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        if self._on_event is None:
            return
        self._reader = EventReader(folder)
        self._reader.skip_history()
        begin = Launching(now(), self._reader.step, folder.path, plan)
        self._thread = threading.Thread(target=self._follow, args=(begin,), name="on_event")
        self._thread.daemon = True  # a callback that hangs does not keep the process alive
        self._thread.start()

    def following(
        self, folder: RunFolder, plan: dict[str, Any], ask: Callable[[str], None]
    ) -> None:
        self._begin(folder, plan)

    def resuming(self, how: "ResumeDecision", folder: RunFolder) -> None:
        if how.gone:
            self.warning(how.gone)
        self._outlets.resuming(how, folder)

    def warning(self, words: str) -> None:
        warnings.warn(in_python(words), stacklevel=2)

    def close(self) -> None:
        """Pass on the last events once the run is over. Waits for the function to return."""
        self._over.set()
        if self._thread:
            self._thread.join()
        self._outlets.ended()

    def _follow(self, begin: Launching) -> None:
        assert self._reader is not None
        self._call(begin)
        over = False
        while not over:
            over = self._over.wait(POLL_S)  # before reading, so that nothing is missed
            for event in self._reader.read():
                self._call(event)

    def _call(self, event: Event) -> None:
        assert self._on_event is not None
        assert self._reader is not None
        try:
            self._on_event(event)
        except Stop:
            self._reader.folder.request("stop")
        except Exception:
            if not self._failed:
                self._failed = True
                where = f"on_event failed at {event.kind} of step {event.step}; the run goes on"
                print(f"penstock: {where}\n{traceback.format_exc()}", file=sys.stderr, flush=True)


@dataclass
class EventReader:
    """Reads what a run has written since the last call, as events by time."""

    folder: RunFolder
    step: int = 0
    _tails: dict[Path, FileTail] = field(default_factory=dict)
    _points: dict[Path, int] = field(default_factory=dict)
    _seen: set[tuple[object, ...]] = field(default_factory=set)
    _first: int = 0  # attempt of this launch

    def skip_history(self) -> None:
        """Pass over the events of earlier launches, and read the step that the run has reached."""
        self._first = next_attempt(self.folder.journal)
        list(self._lines(self.folder.journal / SUPERVISOR))
        curves = [
            read_records(f.path, "curve") for f in journal_files(self.folder.journal, "curve")
        ]
        self.step = max((int(points["step"][-1]) for points in curves if len(points)), default=0)

    def read(self) -> list[Event]:
        """Return the new events. Points of the curve are on disk before events that follow them."""
        supervised = list(self._lines(self.folder.journal / SUPERVISOR))
        events: list[Event] = []
        ranks = {0}
        for file in journal_files(self.folder.journal, "curve"):
            if file.attempt < self._first:
                continue
            ranks.add(file.ranks.start)
            new = read_records(file.path, "curve", self._points.get(file.path, 0))
            self._points[file.path] = self._points.get(file.path, 0) + len(new)
            if len(new):
                events = [_step(new[-1])]
                self.step = events[0].step
        events += [event for line in supervised for event in self._supervisor_events(line)]
        # Thousands of ranks write the same lines. Those that lead write a curve too.
        told: list[Event] = []
        for file in journal_files(self.folder.journal, "events"):
            if file.attempt >= self._first and file.ranks.start in ranks:
                told += [e for line in self._lines(file.path) for e in self._rank_events(line)]
        events += [event for event in told if not isinstance(event, StepRewards)]
        events += [event for event in told if isinstance(event, StepRewards)][-1:]
        return sorted(events, key=lambda event: (event.kind == "finished", event.t))

    def _lines(self, path: Path) -> Iterator[Line]:
        tail = self._tails.setdefault(path, FileTail(path))
        try:
            _, new = tail.read_new(path.stat())
        except FileNotFoundError:
            return
        whole = new.rfind(b"\n") + 1
        tail.consume(new, whole)
        yield from parse_lines(new[:whole], path)

    def _supervisor_events(self, line: Line) -> Iterator[Event]:
        match line.event:
            case AttemptLaunched() if (line.attempt or 0) > self._first:
                yield Restart(line.t, self.step, line.attempt or 0)
            case AttemptFailed() as fault:
                rank, action = whole(fault.rank), _text(fault.action)
                yield Fault(line.t, self.step, rank, in_python(_text(fault.reason)), action)
            case ReplicaGone() as lost:
                yield Fault(line.t, self.step, whole(lost.rank), _text(lost.reason), "go on")
            case InvocationEnded() as ended:
                error = in_python(str(ended.error or ""))
                yield Finished(line.t, self.step, _text(ended.result), error)

    def _rank_events(self, line: Line) -> Iterator[Event]:
        match line.event:
            case EvaluateSpan() as span if span.val_loss is not ABSENT:
                if (step := self._new_step(line, span.step)) is not None:
                    loss, rewards = float(str(span.val_loss)), Rewards.of(span)
                    yield Evaluation(line.end or line.t, step, loss, rewards)
            case PairsRewarded() as paid if rewards := Rewards.of(paid):
                if (step := self._new_step(line, rewards.step)) is not None:
                    yield StepRewards(line.t, step, rewards)
            case TaskScoresEvent() as scored if found := TaskScores.from_json(line.payload):
                if (step := self._new_step(line, scored.step)) is not None:
                    yield TaskEvaluation(line.t, step, found.scores)
            case CheckpointSaved() as saved:
                if (step := self._new_step(line, saved.step, saved.path)) is not None:
                    yield Checkpoint(line.t, step, str(saved.tier), str(saved.path))

    def _new_step(self, line: Line, step: object, *key: object) -> int | None:
        """Return the step of a line; None if it names none, or if another rank wrote the same."""
        number = whole(step)
        same = (type(line.event), line.attempt, number, *key)
        if number is None or same in self._seen:
            return None
        self._seen.add(same)
        return number


def _text(value: object) -> str:
    return "" if value is ABSENT else str(value)


def _step(point: np.void) -> Step:
    return Step(
        float(point["t"]),
        int(point["step"]),
        float(point["loss"]),
        float(point["grad_norm"]),
        float(point["learning_rate"]),
        int(point["tokens"]),
    )
