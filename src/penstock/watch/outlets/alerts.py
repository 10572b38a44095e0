"""Alerts about a run: crash, stall, recovery and end, each once.

The supervisor's journal tells of faults and of the end of a run, the curve that it makes progress.
Nothing here waits or sends: the outlets do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.ledger.journal.events import (
    ABSENT,
    AttemptFailed,
    HangFound,
    InvocationEnded,
    LeaderLeft,
    LeaseExpired,
    LeaseHandedOver,
    ReplicaGone,
)
from penstock.ledger.journal.read import JournalLine
from penstock.policy import restart
from penstock.style import format_duration

Kind = Literal["crash", "stall", "recovered", "finish", "stopped"]
# A run stalls if it makes no step for so many times its usual step time.
USUAL_STEPS = 20
PROBLEMS = ("crash", "stall", "recovered")  # kinds of alerts that are not about an end


@dataclass(frozen=True)
class Alert:
    """One event to alert about; `words` are a sentence without the run's name."""

    event: Kind
    t: float
    step: int
    words: str


@dataclass(frozen=True)
class FinishedStep:
    """A finished step of the curve."""

    t: float
    step: int
    attempt: int


@dataclass
class AlertDetector:
    """Turns new records of a run into alerts, without sending them.

    `patience_s` is the least time without a step that counts as a stall, from `began` on.
    """

    began: float
    patience_s: float
    over: bool = False  # the supervisor wrote its last event, or died
    step: int = 0
    steps_seen: int = 0  # finished since `began`
    _last_t: float = 0.0
    _usual_s: float = 0.0
    _problem: Alert | None = None
    _attempt: int = -1  # in which the problem began
    _hung: set[int | None] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._last_t = self.began

    def add_steps(self, points: Sequence[FinishedStep]) -> list[Alert]:
        """Add new steps, by time; the first after a problem is its recovery."""
        alerts: list[Alert] = []
        for point in points:
            if self.steps_seen:
                gap = max(0.0, point.t - self._last_t)
                self._usual_s += 0.1 * (gap - self._usual_s) if self._usual_s else gap
            self.step, self._last_t = point.step, max(self._last_t, point.t)
            self.steps_seen += 1
            before = self._problem
            if before and (point.attempt > self._attempt or point.t > before.t):
                down = format_duration(max(0.0, point.t - before.t))
                words = f"goes on: step {point.step} is done, {down} after the {before.event}"
                alerts.append(Alert("recovered", point.t, point.step, words))
                self._problem = None
        return alerts

    def add_supervisor_events(self, lines: Iterable[JournalLine]) -> list[Alert]:
        """Add new events of the supervisor."""
        return [alert for line in lines if (alert := self._alert_for(line))]

    def check_stall(self, now: float) -> list[Alert]:
        """Alert once if there was no step for long."""
        still_s = now - self._last_t
        if (
            self._problem
            or self.over
            or still_s < max(self.patience_s, USUAL_STEPS * self._usual_s)
        ):
            return []
        what = f"no step for {format_duration(still_s)}; the last was {self.step}"
        return [self._start_problem("stall", now, what, self._attempt)]

    def supervisor_died(self, now: float) -> list[Alert]:
        """Alert that the supervisor was killed, unless it had written its last event."""
        if self.over:
            return []
        self.over = True
        words = "the supervisor was killed; `penstock train` goes on from the last checkpoint"
        return [Alert("crash", now, self.step, words)]

    def _alert_for(self, line: JournalLine) -> Alert | None:
        match line.event:
            case HangFound() as hang:
                self._hung.add(line.attempt)
                phase = "" if hang.phase is ABSENT else f" ({hang.phase} of step {hang.step})"
                words = f"ranks hang{phase}: {'' if hang.why is ABSENT else hang.why}"
                return self._start_problem("stall", line.t, words, line.attempt)
            case AttemptFailed() as fault if line.attempt not in self._hung:  # it was an alert
                after = "gives up" if fault.action == "give_up" else "restarts"
                words = f"rank {fault.rank}: {fault.reason}; {after}"
                return self._start_problem("crash", line.t, words, line.attempt)
            case ReplicaGone() as lost:
                words = f"rank {lost.rank} lost: {lost.reason}; the others go on"
                return self._start_problem("crash", line.t, words, line.attempt)
            case InvocationEnded() as ended:
                return self._ended(line.t, ended)
            case LeaderLeft() | LeaseExpired() | LeaseHandedOver():
                self.over = True
        return None

    def _ended(self, t: float, ended: InvocationEnded) -> Alert:
        self.over = True
        error = str(ended.error or "").partition("\n")[0]
        match ended.result:
            case "done":
                return Alert("finish", t, self.step, "has finished")
            case restart.EARLY:
                return Alert("finish", t, self.step, "has stopped early")
            case "stopped":
                why = f" ({error})" if error else ""
                return Alert("stopped", t, self.step, f"was stopped{why}")
        return Alert("crash", t, self.step, f"has failed: {error}")

    def _start_problem(self, kind: Kind, t: float, words: str, attempt: int | None) -> Alert:
        self._problem = Alert(kind, t, self.step, words)
        self._attempt = self._attempt if attempt is None else attempt
        return self._problem


def sentence(run: str, alert: Alert, steps: int) -> str:
    """Return `code-1b has finished, at step 2,000 of 2,000`, for a chat or a phone."""
    joined = "" if alert.event in ("finish", "stopped", "recovered") else ":"
    of = f" of {steps:,}" if steps else ""
    return f"{run}{joined} {alert.words}, at step {alert.step:,}{of}"
