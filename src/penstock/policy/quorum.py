"""Membership of live mode: which replicas form the next generation, which one gives its state and
which ones take it.

A generation is a set of replicas that exchange gradients. The supervisor is the quorum: it alone
makes generations, so that there is never a doubt about which one is the last. The members of a
generation tell each other their state when they meet; that decides who is healed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

# Consecutive breaks without a step and without a dead rank that end the attempt: the network then
# connects only some pairs of replicas, and no generation would make progress.
BREAKS = 3


@dataclass(frozen=True)
class ReplicaStanding:
    """The state that a replica reports when a generation meets."""

    step: int = 0  # the last one that it passed
    whole: bool = False  # it has a state: it is not new, and was not cut off while it was healed


@dataclass(frozen=True)
class HealingPlan:
    """The donor of a state and the replicas that take it. `load`: no replica has one, so the
    donor loads it from storage.
    """

    donor: int
    healed: tuple[int, ...]
    load: bool = False


def plan_healing(standings: Mapping[int, ReplicaStanding]) -> HealingPlan:
    """Choose the donor: the replica that is furthest. A step that one replica passed is done for
    all.

    At the start of a run nobody has a state: one replica loads it, and the others are healed as any
    other that is new. So they begin as equals, whatever they are made from.
    """
    whole = {number: standing.step for number, standing in standings.items() if standing.whole}
    donor = min(whole or standings, key=lambda n: (-whole.get(n, 0), n))
    equal = {n for n, step in whole.items() if step == whole[donor]} | {donor}
    return HealingPlan(donor, tuple(sorted(standings.keys() - equal)), load=not whole)


@dataclass(frozen=True)
class LiveReplica:
    """One replica of a live run."""

    life: int = 0  # how often it was started again
    fruitless: int = 0  # lives in a row in which it passed no step
    up: bool = True  # its processes run, as far as anybody knows
    member: bool = True


@dataclass(frozen=True)
class QuorumState:
    """All replicas of a live run."""

    allowed: int  # guard.restarts: fruitless lives in a row
    replicas: tuple[LiveReplica, ...]
    generation: int = 0
    breaks: int = 0  # in a row
    step: int = -1  # passed when it last broke

    @classmethod
    def new(cls, replicas: int, allowed: int) -> "QuorumState":
        return cls(allowed, (LiveReplica(),) * replicas)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(n for n, replica in enumerate(self.replicas) if replica.member)


@dataclass(frozen=True)
class ReplicaLost:
    """Event: a rank of the replica died."""

    replica: int
    passed: bool = False  # this life of it passed a step


@dataclass(frozen=True)
class ReplicaReady:
    """Event: a replica that was started again can take a state."""

    replica: int
    life: int


@dataclass(frozen=True)
class LinkBroken:
    """Event: a member could not reach another, and all ranks live."""

    generation: int
    step: int  # the furthest that any of them passed


@dataclass(frozen=True)
class FormGeneration:
    """Action: the members form a new generation."""

    number: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class StartReplica:
    """Action: start a lost replica again."""

    replica: int
    life: int


@dataclass(frozen=True)
class LeaveOutReplica:
    """Action: leave out a replica that was started often enough; the others go on without it."""

    replica: int


@dataclass(frozen=True)
class EndAttempt:
    """Action: end the attempt, because no replica is left or none makes progress."""

    why: str


Event = ReplicaLost | ReplicaReady | LinkBroken
Action = FormGeneration | StartReplica | LeaveOutReplica | EndAttempt


def decide(state: QuorumState, event: Event) -> tuple[QuorumState, tuple[Action, ...]]:
    """Return the state after an event, and the actions to take."""
    match event:
        case ReplicaLost(replica, passed):
            return _lost(state, replica, passed)
        case ReplicaReady(replica, life):
            known = state.replicas[replica]
            if known.member or not known.up or known.life != life:
                return state, ()  # the word of a life that is over
            return _form(_with(state, replica, replace(known, member=True)))
        case LinkBroken(generation, step):
            if generation != state.generation:
                return state, ()  # a newer one is on its way already
            breaks = 1 if step > state.step else state.breaks + 1
            after = replace(state, breaks=breaks, step=max(step, state.step))
            if breaks > BREAKS:
                return after, (EndAttempt(f"the replicas lost each other {breaks} times in a row"),)
            return _form(after)


def _lost(state: QuorumState, number: int, passed: bool) -> tuple[QuorumState, tuple[Action, ...]]:
    before = state.replicas[number]
    if not before.up:
        return state, ()
    fruitless = 0 if passed else before.fruitless + 1
    again = fruitless <= state.allowed
    after = LiveReplica(before.life + 1, fruitless, up=again, member=False)
    state = _with(state, number, after)
    if not state.members:
        return state, (EndAttempt("no replica is left"),)
    actions: tuple[Action, ...] = (
        StartReplica(number, after.life) if again else LeaveOutReplica(number),
    )
    if before.member:
        state, formed = _form(state)
        actions = (*formed, *actions)
    return state, actions


def _form(state: QuorumState) -> tuple[QuorumState, tuple[Action, ...]]:
    after = replace(state, generation=state.generation + 1)
    return after, (FormGeneration(after.generation, after.members),)


def _with(state: QuorumState, number: int, replica: LiveReplica) -> QuorumState:
    replicas = list(state.replicas)
    replicas[number] = replica
    return replace(state, replicas=tuple(replicas))
