"""The supervisor's part of live mode: it ends what is left of a replica that lost a rank, writes
the next generation of those that go on, starts the lost one again and lets it back in.

What to do is `policy/quorum.py`. The replicas read the generations in `train/replicas/board.py`.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.launch.supervisor.ending import how_died
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.meter.clock import now
from penstock.policy.quorum import (
    Action,
    EndAttempt,
    Event,
    FormGeneration,
    LeaveOutReplica,
    LinkBroken,
    QuorumState,
    ReplicaLost,
    ReplicaReady,
    StartReplica,
    decide,
)
from penstock.train.replicas.board import Board, Generation

# A replica that dies breaks its group; its death is known a moment later than the break.
DEATH_S = 1.0


class Processes(Protocol):
    """Of a `Nursery`."""

    def codes(self) -> dict[int, int | None]: ...
    def end(self, ranks: Iterable[int] | None = None) -> None: ...


class Records(Protocol):
    """Of an `Ending`."""

    @property
    def attempt(self) -> int: ...
    def last_word(self, rank: int) -> dict[str, object]: ...
    def steps(self, rank: int) -> int: ...


@dataclass
class Quorum:
    """Of one attempt."""

    board: Board
    nursery: Processes
    ending: Records
    replicas: int
    each: int  # ranks of a replica
    allowed: int  # guard.restarts
    start: Callable[[int, int], None]  # a rank, for the n-th life of its replica
    journal: SupervisorJournal
    tell: Callable[[int, str, str], None]  # rank, reason, what is done now
    why_lost: Callable[[int], str] = lambda rank: ""  # where its host is the reason
    ended: str = ""  # why the attempt is over, if it did not simply finish
    _passed: dict[int, int] = field(default_factory=dict)  # steps of a replica in earlier lives
    _broken_s: float = float("inf")

    def __post_init__(self) -> None:
        self.state = QuorumState.new(self.replicas, self.allowed)
        self.board.publish(Generation(0, self.state.members))

    def ranks(self, replica: int) -> range:
        return range(replica * self.each, (replica + 1) * self.each)

    def done(self, codes: Mapping[int, int | None]) -> list[int]:
        """Ranks of replicas that came to the end."""
        replicas = range(self.replicas)
        whole = (self.ranks(n) for n in replicas if all(codes[r] == 0 for r in self.ranks(n)))
        return [rank for ranks in whole for rank in ranks]

    def look(self, codes: Mapping[int, int | None]) -> bool:
        """Whether the attempt goes on, now that the processes of its ranks are as `codes` says."""
        over = self.board.finished() is not None  # nobody needs anybody any more
        for number, replica in enumerate(self.state.replicas):
            dead = [rank for rank in self.ranks(number) if codes[rank]]
            if replica.up and dead and not self.ended and not over:
                # One that was killed is the reason why its neighbours failed.
                self._judge(min(dead, key=lambda rank: codes[rank] or 0), codes)
        if not self.ended and not over:
            self._hear()
        members = (r for n in self.state.members for r in self.ranks(n))
        return not self.ended and any(codes[rank] is None for rank in members)

    def lose(self, ranks: Sequence[int], reason: str, since: float) -> bool:
        """Ranks that live, and are of no use: they hang. Whether the others can go on."""
        for number in sorted({rank // self.each for rank in ranks}):
            if not self.ended:
                rank = next(rank for rank in ranks if rank in self.ranks(number))
                self._lose(rank, reason, since)
        return not self.ended

    def _judge(self, rank: int, codes: Mapping[int, int | None]) -> None:
        """A rank died. Bad input and too little memory would end it again wherever it starts."""
        code, said = codes[rank] or 0, self.ending.last_word(rank)
        reason = self.why_lost(rank)
        reason = reason or (how_died(code) if code < 0 or not said else str(said.get("error", "")))
        if code > 0 and said.get("result") in ("refused", "oom"):
            self.ended = reason
        else:
            self._lose(rank, reason, now())

    def _lose(self, rank: int, reason: str, since: float) -> None:
        number = rank // self.each
        ranks = self.ranks(number)
        self.nursery.end(ranks)  # nobody outside may still wait for one of them
        passed = max(self.ending.steps(rank) for rank in ranks)
        event = ReplicaLost(number, passed > self._passed.get(number, 0))
        self._passed[number] = passed
        self.journal.event(
            "lost",
            attempt=self.ending.attempt,
            replica=number,
            ranks=[ranks[0], ranks[-1]],
            since=since,
            rank=rank,
            reason=reason,
        )
        self._decide(event)
        if not self.ended:
            self.tell(rank, reason, "the other replicas go on")

    def _hear(self) -> None:
        """What the replicas wrote on the board."""
        for number, replica in enumerate(self.state.replicas):
            if replica.up and not replica.member and self.board.announced(number, replica.life):
                self._decide(ReplicaReady(number, replica.life))
        step = self.board.complaint(self.state.generation)
        if step is None:
            self._broken_s = float("inf")
        elif self._broken_s == float("inf"):
            self._broken_s = time.monotonic()
        elif time.monotonic() - self._broken_s > DEATH_S:
            self._decide(LinkBroken(self.state.generation, step))

    def _decide(self, event: Event) -> None:
        self.state, actions = decide(self.state, event)
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case FormGeneration(number, members):
                self.board.publish(Generation(number, members))
                self.journal.event(
                    "generation", attempt=self.ending.attempt, number=number, members=list(members)
                )
                self._broken_s = float("inf")
            case StartReplica(replica, life):
                for rank in self.ranks(replica):
                    self.start(rank, life)
            case LeaveOutReplica(replica):
                self.journal.event("left_out", attempt=self.ending.attempt, replica=replica)
            case EndAttempt(why):
                self.ended = why
