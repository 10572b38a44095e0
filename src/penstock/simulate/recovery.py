"""Recovery after a failure: all ranks start again, or the other replicas go on.

`Life` draws the failures. Here are the reactions, on a simulated clock and by the policies of
a real run: restart, quorum, spares, shrink and preempt.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import heappop, heappush
from math import ceil, inf

from penstock.plan.life.causes import PREEMPTION, FaultClass
from penstock.plan.life.rates import FailureRates
from penstock.plan.life.times import REGROUP_S
from penstock.policy import preempt, quorum, restart, shrink
from penstock.policy.quorum import LiveReplica, QuorumState
from penstock.policy.spares import AvailableHost, reason_to_restart
from penstock.simulate.account import CHECKPOINT, DOWN, REDO, STARTUP, LifeAccount
from penstock.simulate.conditions import PERSON_S, Conditions
from penstock.simulate.draws import Draws
from penstock.simulate.pool import NodePool
from penstock.simulate.record import Recorder

MEMBER, GONE = LiveReplica(), LiveReplica(member=False)  # of which nothing is known yet


@dataclass
class LifeResult:
    """One life: seconds by cause of an average rank, and what happened."""

    rates: FailureRates
    wall_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    steps: float = 0.0  # done for good
    finished: bool = False
    interruptions: dict[str, int] = field(default_factory=dict)
    cost_s: dict[str, float] = field(default_factory=dict)  # wall seconds lost, by cause of failure
    gave_up: int = 0
    fewest_spares: int = 0
    quarantined: int = 0
    paused_s: float = 0.0  # in dear hours; in `down`
    fewer_s: float = 0.0  # on some of the ranks, in hours without the power for all
    withdrawn_node_s: float = 0.0  # that a provider took back, and that cost nothing
    course: list[tuple[float, float, list[float]]] = field(default_factory=list)


@cache
def _after_loss(
    known: LiveReplica, others: bool, allowed: int, passed: bool
) -> tuple[LiveReplica, bool]:
    """Ask the policy about a lost replica, with all others as one; return it, and whether the
    attempt goes on. Answers are kept.
    """
    rest = LiveReplica(member=others, up=others)
    lost = quorum.ReplicaLost(0, passed)
    state, actions = quorum.decide(QuorumState(allowed, (known, rest)), lost)
    ends = any(isinstance(action, quorum.EndAttempt) for action in actions)
    return state.replicas[0], not ends


@cache
def _after_join(known: LiveReplica, allowed: int) -> LiveReplica | None:
    """Ask the policy about a replica that is ready; return it as a member, None if it may not
    be.
    """
    ready = quorum.ReplicaReady(0, known.life)
    state, actions = quorum.decide(QuorumState(allowed, (known, LiveReplica())), ready)
    formed = any(isinstance(action, quorum.FormGeneration) for action in actions)
    return state.replicas[0] if formed else None


class SimulatedRecovery(ABC):
    """The state of one life, and its ways back to work."""

    def __init__(
        self, own: Conditions, rates: FailureRates, draws: Draws, record: Recorder | None
    ) -> None:
        self.own, self.draws, self.record = own, draws, record
        self.account = LifeAccount(own)
        self.pool = NodePool(own, draws)
        self.result = LifeResult(rates, fewest_spares=own.spares)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.number = 0  # of the event: equal times keep their order
        self.working = False  # ranks train; else they start or wait
        self.level, self.allowed = 0, own.ranks  # of the hour: its number of ranks
        self.state = restart.RestartState(own.restarts)
        self._withdrawn_t = 0.0
        self.withdrawn = 0  # nodes that a provider took back
        self.dark = 0  # sites that are lost or cut off
        self.missing: set[int] = set()  # replicas that live mode goes on without
        self.lives: dict[int, LiveReplica] = {}
        self.joined_t: dict[int, float] = {}
        self._speeds: dict[int, float] = {}  # by the number of replicas that are up

    @abstractmethod
    def per_s(self) -> float:
        """Return the rate of all that may happen by chance."""

    @abstractmethod
    def fail_while_down(self, per_s: float) -> set[int] | None:
        """Let something fail while no rank works; return the replicas that it hit. An empty set is
        all of them, None is nothing.
        """

    @abstractmethod
    def work(self, seconds: float) -> None:
        """Train for so many seconds, in which nothing changes."""

    def _finish_step(self) -> None:
        """End the step under way: a change that nothing forces comes after it."""
        account = self.account
        left_s = account.seconds_to_step(ceil(account.step - 1e-9))
        end_s = self.own.horizon_s - account.t
        self.work(left_s if left_s < end_s else max(end_s, 0.0))
        account.interrupt()

    def schedule(self, t: float, action: Callable[[], None]) -> None:
        self.number += 1
        heappush(self.events, (t, self.number, action))

    def count(self, cause: FaultClass) -> None:
        found = self.result.interruptions
        found[cause.name] = found.get(cause.name, 0) + 1

    def charge(self, cause: FaultClass, seconds: float) -> None:
        """Note what a failure cost, in wall seconds."""
        cost = self.result.cost_s
        cost[cause.name] = cost.get(cause.name, 0.0) + seconds

    # --- Restart: all ranks stop, and start again with who is there ---

    def stop_all(
        self,
        cause: FaultClass,
        noticed_s: float,
        durable: bool = False,
        position: int | None = None,
        away_s: float = 0.0,
    ) -> None:
        """End the attempt by a failure, and come up again from a checkpoint; nothing can be started
        for `away_s` before that.
        """
        own, account = self.own, self.account
        self.count(cause)
        since, reached = account.t, int(account.step)
        self.charge(cause, account.interrupt())
        if position is None:
            position = account.durable_step() if durable else account.fast_step()
        self.charge(cause, (account.step - position) * own.step_s)
        if self.record:
            self.record.fault(since, since + noticed_s, cause, reached)
        account.resume(position)
        self.working = False
        self.missing.clear()
        self.lives.clear()
        self._decide_restart(reached)
        self._spend(DOWN, away_s)
        self._spend(REDO, own.redo_more_s)
        load_s = own.load_s if durable or not own.fast_every else 0.0
        needed_s = noticed_s + own.again_s + load_s
        self.come_up(DOWN, needed_s if own.stall_s is None else own.stall_s)
        self.charge(cause, account.t - since)

    def _decide_restart(self, reached: int) -> None:
        """Ask the policy whether to try again; a run that gave up waits for somebody."""
        end = restart.AttemptEnd(("failed",), reached)
        self.state, action = restart.decide(self.state, end)
        if action == "give_up":
            self.result.gave_up += 1
            if self.own.stall_s is None:  # a measured stall has that time in it
                self._spend(DOWN, PERSON_S)
            self.state = restart.RestartState(self.own.restarts, 0, self.state.best_step)

    def _spend(self, cause: int, seconds: float) -> None:
        """Let time pass without work, at most to the horizon."""
        account = self.account
        left_s = self.own.horizon_s - account.t
        account.spend(cause, max(seconds if seconds < left_s else left_s, 0.0))

    def come_up(self, cause: int, needed_s: float) -> None:
        """Spend the time until all ranks are ready. A failure meanwhile begins it again; where the
        stall is measured, each failure adds its own.
        """
        own, account, left = self.own, self.account, needed_s
        while account.t < own.horizon_s:
            event_s = self.events[0][0] - account.t if self.events else inf
            if not self.staff():
                if self.pool.benched:  # nothing else is left: somebody looks at it
                    self.result.gave_up += 1
                    self._spend(cause, PERSON_S)
                    self.pool.readmit()
                    continue
                self._spend(cause, event_s)
                self._handle_event()
                continue
            per_s = self.per_s()
            gap_s = self.draws.exponential() / per_s if per_s > 0 else inf
            passed_s = min(left, gap_s, max(event_s, 0.0))
            self._spend(cause, passed_s)
            left -= passed_s
            if left <= 0:
                break
            if passed_s == event_s or event_s <= 0:
                self._handle_event()
            elif (hit := self.fail_while_down(per_s)) is not None:
                if own.live and hit and self._quorum_goes_on(hit - self.missing):
                    self.missing |= hit  # it is started again beside the others
                    continue
                left = needed_s if own.stall_s is None else left + own.stall_s
                self._decide_restart(0)
        self._ready(cause)

    def _ready(self, cause: int) -> None:
        if self.own.live:
            self.missing |= self.pool.lacking.keys()
            self.set_strength()
            self.start_replicas()
        self.working = True
        if self.record:
            active = 1.0 if self.own.live else self.account.active
            ranks = min(self.allowed, round(active * self.own.ranks))
            by_hour = self.allowed < self.own.ranks
            self.record.ready(self.account.t, int(self.account.step), ranks, by_hour)
            if self.missing:
                self.record.without(self.account.t, sorted(self.missing), "failed at the start")

    def _handle_event(self) -> None:
        if self.events and self.account.t < self.own.horizon_s:
            heappop(self.events)[2]()

    def staff(self) -> bool:
        """Give open places to spares, and fit the layout to who is there; False if it does not
        fit.
        """
        own, account = self.own, self.account
        if self.pool.open:
            self.pool.replace_open()
            self.result.fewest_spares = min(self.result.fewest_spares, len(self.pool.waiting))
        account.speed = account.active = 1.0
        lacking = self.pool.open or self.pool.short or self.withdrawn or self.dark
        if not lacking and self.allowed >= own.ranks:
            return True
        out = len(self.pool.open) + self.withdrawn
        trays = sum(map(len, self.pool.short.values()))
        left = min(own.ranks, (own.nodes - out) * own.per_node - trays * own.trays.tray)
        left -= own.ranks * self.dark // own.sites
        fit = shrink.fit_to_ranks(own.layout, max(min(left, self.allowed), 0))
        if fit is None:
            return False
        ways = fit["replicate"] * fit["shard"]
        account.speed = own.speed(ways)
        account.active = min(1.0, ways / own.data_ways)
        return True

    def regroup_if_due(self) -> None:
        """Save and start again when nodes came that the attempt can use, if the policy says so."""
        most = self.allowed / self.own.ranks  # that the hour has the power for
        if not self.working or self.account.active >= most - 1e-9:
            return
        hosts = [AvailableHost("at work", 1, working=True), AvailableHost("back", 1)]
        if not reason_to_restart(hosts, 2):
            return
        account, own = self.account, self.own
        self._finish_step()
        self._spend(CHECKPOINT, own.save_cost_s)
        position = int(account.step)
        if self.record:
            self.record.stopped(account.t, position)
        account.resume(position)
        self.working = False
        self.come_up(STARTUP, own.again_s + own.load_s if own.stall_s is None else own.stall_s)

    # --- Live mode: the other replicas go on ---

    def lose_replicas(self, cause: FaultClass, replicas: set[int], noticed_s: float) -> None:
        """Go on without the replicas that a failure hit, as the quorum decides."""
        own, account = self.own, self.account
        since = account.t
        hit = replicas - self.missing
        if not self._quorum_goes_on(hit):
            self.stop_all(cause, noticed_s)
            return
        self.count(cause)
        reached = int(account.step)
        self.charge(cause, account.interrupt())
        if self.record:
            self.record.lost(since, cause, sorted(hit), reached)
        self.missing |= hit
        self._stall(own.stall_s if own.stall_s is not None else noticed_s + REGROUP_S)
        self.start_replicas()
        self.charge(cause, account.t - since)

    def _quorum_goes_on(self, hit: set[int]) -> bool:
        """Ask the policy about every lost replica; False when the attempt ends.

        The quorum decides by the lost replica and by whether any other is left, so that it is asked
        about two: this one, and all others as one.
        """
        own, t = self.own, self.account.t
        others = own.replicas - len(self.missing | hit) > 0
        for replica in hit:
            known = self.lives.get(replica, MEMBER)
            passed = t - self.joined_t.get(replica, 0.0) > own.step_s
            self.lives[replica], goes_on = _after_loss(known, others, own.restarts, passed)
            if not goes_on:
                return False
        return True

    def _stall(self, seconds: float) -> None:
        """Let all replicas wait while they form a new generation."""
        account, left, horizon_s = self.account, seconds, self.own.horizon_s
        self.working = False
        while left > 0 and account.t < horizon_s:
            per_s = self.per_s()
            gap_s = self.draws.exponential() / per_s if per_s > 0 else inf
            passed_s = left if left < gap_s else gap_s
            end_s = horizon_s - account.t
            account.spend(DOWN, passed_s if passed_s < end_s else end_s)
            left -= passed_s
            if left > 0 and (hit := self.fail_while_down(per_s)) is not None:
                left = left + seconds if self.own.stall_s is not None else seconds
                self._quorum_goes_on(hit - self.missing)
                if self.record and hit - self.missing:
                    self.record.without(account.t, sorted(hit - self.missing), "failed meanwhile")
                self.missing |= hit
        self.working = True
        self.set_strength()
        if self.record:
            self.record.regrouped(account.t, int(account.step))

    def start_replicas(self) -> None:
        """Start lost replicas again whose nodes are there, or can be replaced by spares."""
        if self.pool.replace_open():
            self.result.fewest_spares = min(self.result.fewest_spares, len(self.pool.waiting))
        t = self.account.t
        for replica in self.missing - self.pool.lacking.keys():
            known = self.lives.get(replica, GONE)
            if not known.up or self.joined_t.get(replica, 0.0) > t:
                continue  # left out for good, or on its way
            ready_t = t + self.own.replica_s
            self.joined_t[replica] = ready_t
            self.schedule(ready_t, partial(self._replica_ready, replica))

    def _replica_ready(self, replica: int) -> None:
        """Take a healed replica back into the group."""
        if not self.working or replica not in self.missing or replica in self.pool.lacking:
            return
        after = _after_join(self.lives.get(replica, GONE), self.own.restarts)
        if after is None:
            return
        self._finish_step()
        self.lives[replica] = after
        self.missing.discard(replica)
        if self.record:
            self.record.joined(self.account.t, replica, int(self.account.step))
        self._stall(REGROUP_S if self.own.stall_s is None else 0.0)

    def set_strength(self) -> None:
        """Set the speed and the share of ranks at work by the replicas that are up."""
        own = self.own
        gone = len(self.missing)
        if self.dark or self.withdrawn:
            gone += own.replicas * self.dark // own.sites
            gone += ceil(self.withdrawn * own.replicas / own.nodes)
        by_hour = self.allowed * own.replicas // own.ranks
        up = max(min(own.replicas - gone, by_hour), 1)
        self.account.active = up / own.replicas
        if up not in self._speeds:
            self._speeds[up] = own.stretched(up)
        self.account.speed = self._speeds[up]

    # --- Capacity that a provider takes back ---

    def follow_trace(self) -> None:
        """Begin with the nodes that the trace leaves, and follow its changes."""
        trace = self.own.trace
        if trace is None:
            return
        self.withdrawn = max(0, self.own.nodes - trace.nodes[0])
        changes = trace.changes()

        def next_change() -> None:
            t, nodes = next(changes)
            self.schedule(t, lambda: change(nodes))

        def change(nodes: int) -> None:
            next_change()
            self._leave_nodes(max(0, self.own.nodes - nodes))

        next_change()

    def count_withdrawn(self) -> None:
        """Count the time of the nodes that were not there since the last change."""
        t = self.account.t
        self.result.withdrawn_node_s += self.withdrawn * (t - self._withdrawn_t)
        self._withdrawn_t = t

    def _leave_nodes(self, withdrawn: int) -> None:
        before = self.withdrawn
        self.count_withdrawn()
        self.withdrawn = withdrawn
        if not self.working:
            return
        if withdrawn < before:
            self.regroup_if_due()
        elif withdrawn > before:
            own, account = self.own, self.account
            notice = preempt.PreemptState(0.0, own.grace_s, begun=True)
            saved = preempt.decide(notice, own.save_cost_s + own.save_s) == "wait"
            position = int(account.step) if saved else None
            self.stop_all(PREEMPTION, own.noticed_s, durable=True, position=position)
