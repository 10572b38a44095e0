"""The timeline of a run: when it started, worked and was down, and each fault with its recovery."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from penstock.ledger.history import Invocation
from penstock.ledger.journal.events import CheckpointLoaded, RankReady, ReplicaGone
from penstock.ledger.journal.read import LineOf
from penstock.ledger.journal.values import unix_s, whole
from penstock.watch.facts.run_view import RunView


@dataclass(frozen=True)
class Disruption:
    """A fault or a lost rank, and its recovery. Times are unix seconds."""

    t: float  # when the supervisor noticed it
    since: float  # when work stopped
    rank: int | None
    reason: str
    back: float | None  # when all ranks worked again; None if they never did
    step: int | None  # that the run resumed from
    live: bool  # the other replicas went on meanwhile


@dataclass(frozen=True)
class ReadyTimes:
    """The `ready` events of each attempt by time, and the step that each attempt resumed from."""

    by_attempt: dict[int, list[LineOf[RankReady]]]
    resumed: dict[int, int]

    @classmethod
    def of(cls, view: RunView) -> "ReadyTimes":
        ready: dict[int, list[LineOf[RankReady]]] = defaultdict(list)
        for line in view.rank_events_of(RankReady):
            if line.attempt is not None:
                ready[line.attempt].append(line)
        resumed: dict[int, int] = {}
        for loaded in view.rank_events_of(CheckpointLoaded):
            step = whole(loaded.event.step)
            if loaded.attempt is not None and step is not None:
                resumed.setdefault(loaded.attempt, step)
        return cls(dict(ready), resumed)

    def all_ready(self, attempt: int) -> float | None:
        """Return when the last rank of an attempt was ready for the first time."""
        first: dict[range, float] = {}
        for line in self.by_attempt.get(attempt, []):
            first.setdefault(line.ranks, line.t)
        return max(first.values(), default=None)

    def next_after(self, attempt: int, among: tuple[int, ...]) -> tuple[float | None, int | None]:
        """Return when the next attempt that got ready was so, and the step it resumed from."""
        for later in sorted(a for a in among if a > attempt):
            if (t := self.all_ready(later)) is not None:
                return t, self.resumed.get(later, 0)
        return None, None

    def rank_ready_after(self, rank: int, t: float) -> float | None:
        """Return when a rank was ready for the first time after `t`."""
        every = (line for lines in self.by_attempt.values() for line in lines)
        return min((line.t for line in every if line.t > t and rank in line.ranks), default=None)


def disruptions(view: RunView) -> list[Disruption]:
    """Return faults that stopped all ranks, and ranks that the others went on without, by time."""
    ready = ReadyTimes.of(view)
    all_disruptions = []
    for invocation in view.account.invocations:
        for fault in invocation.faults:
            attempt = -1 if fault.attempt is None else fault.attempt
            back, step = ready.next_after(attempt, invocation.attempts)
            all_disruptions.append(
                Disruption(fault.t, fault.since, fault.rank, fault.reason, back, step, live=False)
            )
    for lost in view.supervisor_events_of(ReplicaGone):
        rank = whole(lost.event.rank)
        back = None if rank is None else ready.rank_ready_after(rank, lost.t)
        reason = str(lost.event.reason or "")
        since = unix_s(lost.event.since) or lost.t
        all_disruptions.append(Disruption(lost.t, since, rank, reason, back, None, live=True))
    return sorted(all_disruptions, key=lambda disruption: disruption.t)


def invocation_phases(view: RunView, found: list[Disruption]) -> list[dict[str, Any]]:
    """Return each invocation with its phases of start-up, work and downtime, without gaps."""
    ready = ReadyTimes.of(view)
    return [
        {
            "start": invocation.start,
            "end": invocation.end,
            "result": invocation.result,
            "ranks": invocation.ranks,
            "parts": _phases(invocation, ready, found),
        }
        for invocation in view.account.invocations
    ]


def starts_s(view: RunView) -> list[float]:
    """Return the start-up time of each invocation, in order of time.

    A restart after a fault does not count: its time is `down`.
    """
    ready = ReadyTimes.of(view)
    return [_first_ready(one, ready) - one.start for one in view.account.invocations]


def _first_ready(invocation: Invocation, ready: ReadyTimes) -> float:
    """Return when an invocation began to work; its end if it never did."""
    times = [t for a in invocation.attempts if (t := ready.all_ready(a)) is not None]
    return min([*times, invocation.end])


def _phases(
    invocation: Invocation, ready: ReadyTimes, found: list[Disruption]
) -> list[tuple[str, float, float]]:
    """Return (startup, work or down; start; end) from the start to the end of an invocation."""
    at = _first_ready(invocation, ready)
    phases = [("startup", invocation.start, at)]
    for one in found:
        if one.live or not invocation.start <= one.t <= invocation.end:
            continue
        since = min(max(one.since, at), invocation.end)
        back = invocation.end if one.back is None else min(max(one.back, since), invocation.end)
        phases += [("work", at, since), ("down", since, back)]
        at = back
    phases.append(("work", at, invocation.end))
    return [phase for phase in phases if phase[2] > phase[1]]
