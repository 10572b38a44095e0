"""The supervisor's part of live mode: which replicas belong to the run at this moment.

It ends what is left of a replica that lost a rank, publishes the next generation of replicas,
starts the lost one again and lets it back in. `policy/quorum.py` decides what to do. The replicas
read the generations in `train/replicas/membership.py`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.launch.supervisor.attempt import AttemptRecords, describe_exit
from penstock.launch.supervisor.rank_processes import RankProcesses
from penstock.ledger.journal.events import GenerationStarted, ReplicaGone, ReplicaLeftOut
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
from penstock.train.replicas.membership import ReplicaGeneration, ReplicaMembership

# A replica that dies breaks the collectives of the others. They may report that before the
# supervisor sees the death, so it waits this long before it believes in a break without a death.
DEATH_S = 1.0


@dataclass
class Quorum:
    """The replicas of one attempt: who takes part, who was lost, who comes back."""

    membership: ReplicaMembership
    processes: RankProcesses
    records: AttemptRecords
    replicas: int
    ranks_per_replica: int
    restarts_allowed: int  # guard.restarts
    start: Callable[[int, int], None]  # a rank, for the n-th life of its replica
    journal: SupervisorJournal
    show_fault: Callable[[int, str, str], None]  # rank, reason, action
    host_failure: Callable[[int], str] = lambda rank: ""  # how the host of a rank failed
    end_reason: str = ""  # why the attempt is over, if it did not simply finish
    _steps_before: dict[int, int] = field(default_factory=dict)  # of a replica in earlier lives
    _broken_s: float = float("inf")

    def __post_init__(self) -> None:
        self.state = QuorumState.new(self.replicas, self.restarts_allowed)
        self.membership.publish(ReplicaGeneration(0, self.state.members))

    def ranks(self, replica: int) -> range:
        return range(replica * self.ranks_per_replica, (replica + 1) * self.ranks_per_replica)

    def finished_ranks(self, codes: Mapping[int, int | None]) -> list[int]:
        """Return the ranks of replicas that came to the end."""
        replicas = range(self.replicas)
        whole = (self.ranks(n) for n in replicas if all(codes[r] == 0 for r in self.ranks(n)))
        return [rank for ranks in whole for rank in ranks]

    def update(self, codes: Mapping[int, int | None]) -> bool:
        """Act on deaths and on what replicas report; return whether the attempt goes on.

        `codes` are the exit codes of all ranks.
        """
        finished = self.membership.finished_step() is not None  # no replica needs another
        for number, replica in enumerate(self.state.replicas):
            dead = [rank for rank in self.ranks(number) if codes[rank]]
            if replica.up and dead and not self.end_reason and not finished:
                # One that was killed is the reason why its neighbours failed.
                self._handle_death(min(dead, key=lambda rank: codes[rank] or 0), codes)
        if not self.end_reason and not finished:
            self._read_board()
        members = (r for n in self.state.members for r in self.ranks(n))
        return not self.end_reason and any(codes[rank] is None for rank in members)

    def drop_ranks(self, ranks: Sequence[int], reason: str, since: float) -> bool:
        """Drop the replicas of ranks that live and hang; return whether the others can go on."""
        for number in sorted({rank // self.ranks_per_replica for rank in ranks}):
            if not self.end_reason:
                rank = next(rank for rank in ranks if rank in self.ranks(number))
                self._drop_replica(rank, reason, since)
        return not self.end_reason

    def _handle_death(self, rank: int, codes: Mapping[int, int | None]) -> None:
        """Drop the replica of a dead rank, or end the attempt where a new start cannot help.

        Bad input and too little memory would end the rank again wherever it starts.
        """
        code, end = codes[rank] or 0, self.records.end_record(rank)
        reason = self.host_failure(rank)
        if not reason:
            reason = describe_exit(code) if code < 0 or end is None else str(end.error or "")
        if code > 0 and end is not None and end.result in ("refused", "oom"):
            self.end_reason = reason
        else:
            self._drop_replica(rank, reason, now())

    def _drop_replica(self, rank: int, reason: str, since: float) -> None:
        number = rank // self.ranks_per_replica
        ranks = self.ranks(number)
        self.processes.end_ranks(ranks)  # no other replica may wait for one of them
        steps = max(self.records.step_count(rank) for rank in ranks)
        event = ReplicaLost(number, steps > self._steps_before.get(number, 0))
        self._steps_before[number] = steps
        self.journal.write(
            ReplicaGone(
                attempt=self.records.attempt,
                replica=number,
                ranks=[ranks[0], ranks[-1]],
                since=since,
                rank=rank,
                reason=reason,
            )
        )
        self._decide(event)
        if not self.end_reason:
            self.show_fault(rank, reason, "the other replicas go on")

    def _read_board(self) -> None:
        """Act on what the replicas wrote: one is ready to join, or a collective broke."""
        for number, replica in enumerate(self.state.replicas):
            if replica.up and not replica.member and self.membership.is_ready(number, replica.life):
                self._decide(ReplicaReady(number, replica.life))
        step = self.membership.broken_after_step(self.state.generation)
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
                self.membership.publish(ReplicaGeneration(number, members))
                self.journal.write(
                    GenerationStarted(
                        attempt=self.records.attempt, number=number, members=list(members)
                    )
                )
                self._broken_s = float("inf")
            case StartReplica(replica, life):
                for rank in self.ranks(replica):
                    self.start(rank, life)
            case LeaveOutReplica(replica):
                self.journal.write(ReplicaLeftOut(attempt=self.records.attempt, replica=replica))
            case EndAttempt(why):
                self.end_reason = why
