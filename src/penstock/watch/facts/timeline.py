"""What befell a run, by time: when it worked, when it was down and why, and what was told."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from penstock.ledger.history import Invocation
from penstock.ledger.journal.read import Event
from penstock.watch.facts.view import View


@dataclass(frozen=True)
class Trouble:
    """A fault, and how it went on: `back` is when everybody worked again."""

    t: float
    since: float
    rank: int | None
    reason: str
    back: float | None
    step: int | None  # that the run went on from
    live: bool  # the others went on meanwhile


@dataclass(frozen=True)
class Readies:
    """When the ranks of each attempt became ready, in order of time."""

    by_attempt: dict[int, list[Event]]
    resumed: dict[int, int]

    @classmethod
    def of(cls, events: list[Event]) -> "Readies":
        ready: dict[int, list[Event]] = defaultdict(list)
        resumed: dict[int, int] = {}
        for event in events:
            if event.attempt is None:
                continue
            if event.kind == "ready":
                ready[event.attempt].append(event)
            elif event.kind == "resumed" and (step := event.whole("step")) is not None:
                resumed.setdefault(event.attempt, step)
        return cls(dict(ready), resumed)

    def all_ready(self, attempt: int) -> float | None:
        """When the last rank came up for the first time."""
        first: dict[range, float] = {}
        for event in self.by_attempt.get(attempt, []):
            first.setdefault(event.ranks, event.t)
        return max(first.values(), default=None)

    def next_after(self, attempt: int, among: tuple[int, ...]) -> tuple[float | None, int | None]:
        """When an attempt after this one was ready, and the step it went on from."""
        for later in sorted(a for a in among if a > attempt):
            if (t := self.all_ready(later)) is not None:
                return t, self.resumed.get(later, 0)
        return None, None

    def rank_after(self, rank: int, t: float) -> float | None:
        every = (e for events in self.by_attempt.values() for e in events)
        return min((e.t for e in every if e.t > t and rank in e.ranks), default=None)


def troubles(view: View) -> list[Trouble]:
    """Faults that stopped everybody, and ranks that the others went on without; by time."""
    readies = Readies.of(view.told("ready", "resumed"))
    found = []
    for invocation in view.account.invocations:
        for fault in invocation.faults:
            attempt = -1 if fault.attempt is None else fault.attempt
            back, step = readies.next_after(attempt, invocation.attempts)
            found.append(
                Trouble(fault.t, fault.since, fault.rank, fault.reason, back, step, live=False)
            )
    for event in view.supervised("lost"):
        rank = event.whole("rank")
        back = None if rank is None else readies.rank_after(rank, event.t)
        reason = str(event.payload.get("reason") or "")
        since = event.time("since") or event.t
        found.append(Trouble(event.t, since, rank, reason, back, None, live=True))
    return sorted(found, key=lambda trouble: trouble.t)


def phases(view: View, told: list[Trouble]) -> list[dict[str, Any]]:
    """Each invocation as a row of start-up, work and downtime, without gaps."""
    readies = Readies.of(view.told("ready", "resumed"))
    return [
        {
            "start": one.start,
            "end": one.end,
            "result": one.result,
            "ranks": one.ranks,
            "parts": _parts(one, readies, told),
        }
        for one in view.account.invocations
    ]


def starts_s(view: View) -> list[float]:
    """Return how long each invocation took to start, in order of time.

    A restart after a fault is no start: its time is `down`.
    """
    readies = Readies.of(view.told("ready"))
    return [_up(one, readies) - one.start for one in view.account.invocations]


def _up(one: Invocation, readies: Readies) -> float:
    """Return when an invocation began to work; its end if it never did."""
    first = [t for a in one.attempts if (t := readies.all_ready(a)) is not None]
    return min([*first, one.end])


def _parts(
    one: Invocation, readies: Readies, told: list[Trouble]
) -> list[tuple[str, float, float]]:
    up = _up(one, readies)
    parts = [("startup", one.start, up)]
    at = up
    for trouble in told:
        if trouble.live or not one.start <= trouble.t <= one.end:
            continue
        since = min(max(trouble.since, at), one.end)
        back = one.end if trouble.back is None else min(max(trouble.back, since), one.end)
        parts += [("work", at, since), ("down", since, back)]
        at = back
    parts.append(("work", at, one.end))
    return [part for part in parts if part[2] > part[1]]
