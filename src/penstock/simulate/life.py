"""One life of a run: the next event of the superposed process, and what it takes along.

All failures of all nodes are one Poisson process. Its next event comes after an exponential time,
and thinning gives it a cause and a node. So a life costs by its events, not by nodes or steps.
"""

from bisect import bisect
from copy import copy
from dataclasses import dataclass
from functools import partial
from heapq import heappop
from itertools import accumulate
from math import exp, inf

from penstock.plan.life import causes
from penstock.plan.life.causes import CUT, SITE, SOFTWARE, FaultClass, hardware_classes
from penstock.plan.life.rates import FailureRates, software_at
from penstock.simulate.account import CHECKPOINT, DATA_WAIT, DOWN, STARTUP
from penstock.simulate.conditions import Conditions
from penstock.simulate.draws import Draws
from penstock.simulate.record import Recorder
from penstock.simulate.recovery import LifeResult, SimulatedRecovery

CLASSES = hardware_classes()
SUMS = list(accumulate(one.share for one in CLASSES))
INFANT_S = 21 * 86400.0  # over which new machines settle (estimated)


@dataclass(frozen=True)
class LostHardware:
    """Hardware that one failure took: whole nodes, a host that no longer answers, replicas."""

    nodes: int
    host: bool
    replicas: set[int]


class Life(SimulatedRecovery):
    """One life of a run: draws the failures, and when they come."""

    def __init__(
        self,
        own: Conditions,
        rates: FailureRates,
        draws: Draws,
        record: Recorder | None = None,
        ticks: tuple[float, ...] = (),
    ) -> None:
        super().__init__(own, rates, draws, record)
        self.node_per_s = rates.node * own.per_failure_node
        self.software_per_s = software_at(rates.software, own.nodes)
        domain = own.trays.domain_nodes
        self.taken = {one.name: causes.nodes_taken(one, domain) for one in CLASSES}
        self.straggler_per_s = own.nodes * causes.STRAGGLER_PER_S
        self.site_per_s = own.sites * causes.SITE_PER_S
        self._weight = self._per_s = -1.0  # of the nodes at work, and the rate of all with it
        self.slowness: list[float] = []  # factors of stragglers at work
        self.hours = copy(own.hours)
        for t in ticks:
            self.schedule(t, self._tick)

    def run(self) -> LifeResult:
        """Simulate until the last step or the horizon."""
        own, account, events = self.own, self.account, self.events
        exponential, horizon_s, steps = self.draws.exponential, own.horizon_s, own.steps
        self.follow_trace()
        self.come_up(STARTUP, own.startup_s)
        while (t := account.t) < horizon_s:
            per_s = self.per_s()
            fault_t = t + exponential() / per_s if per_s > 0 else inf
            event_t = events[0][0] if events else inf
            end_t = horizon_s
            if steps < inf:
                end_t = min(horizon_s, t + account.seconds_to_step(steps))
            until = fault_t if fault_t < event_t else event_t
            until = until if until < end_t else end_t
            self.work(until - t if until > t else 0.0)
            if until == end_t:
                break
            if until == event_t:
                heappop(events)[2]()
            else:
                self._fail(per_s)
        return self._close()

    def _ready(self, cause: int) -> None:
        super()._ready(cause)
        if self.hours:
            self.schedule(self.account.t, self._ask_hours)

    def come_up(self, cause: int, needed_s: float) -> None:
        """Wait for an hour to train in, and start on as many ranks as it has the power for."""
        account, hours = self.account, self.hours
        while hours and account.t < self.own.horizon_s:
            decision = hours.look(account.t, self._work_left_s(), None, self._stop_s())
            if decision.level is not None:
                self.level = decision.level
                self.allowed = hours.terms.levels[decision.level].accelerators
                break
            paused_t = account.t
            self._spend(DOWN, max(0.0, decision.until_s - paused_t))
            self.result.paused_s += account.t - paused_t
            if self.record:
                self.record.paused(paused_t, account.t)
        super().come_up(cause, needed_s)

    def _work_left_s(self) -> float:
        """Return the time that the life still takes, on all ranks."""
        return self.account.seconds_to_step(self.own.steps) * self.account.speed

    def _stop_s(self) -> float:
        """Return the time that the ranks take to save and end."""
        return self.own.save_cost_s + self.own.save_s + self.own.step_s

    def _ask_hours(self) -> None:
        """Go on until the hours are to be looked at again; or save, pause or change the number of
        ranks, and start again.
        """
        own, account, hours = self.own, self.account, self.hours
        if hours is None or not self.working:
            return  # asked again when all are ready
        stop_s, t = self._stop_s(), account.t
        decision = hours.look(t, self._work_left_s(), self.level, stop_s)
        # What is left of a stretch may be too short for a start; its power may leave no choice.
        short = decision.until_s - t <= hours.terms.switch_s and hours.has_power(t, self.level)
        if decision.level == self.level or short:
            self.schedule(max(t, hours.next_look_s(decision, stop_s)), self._ask_hours)
            return
        self._finish_step()
        self._spend(CHECKPOINT, own.save_cost_s + own.save_s)
        position = int(account.step)
        if self.record:
            self.record.stopped(account.t, position)
        account.resume(position)
        self.working = False
        self.come_up(STARTUP, own.again_s + own.load_s if own.stall_s is None else own.stall_s)

    def work(self, seconds: float) -> None:
        """Train for so many seconds, in which nothing changes."""
        account = self.account
        if self.allowed < self.own.ranks:
            self.result.fewer_s += seconds
        if not self.record:
            account.work(seconds)
            return
        t, step, stalled = account.t, account.step, account.stalled_s()
        account.work(seconds)
        spent = account.stalled_s()
        self.record.worked(
            t, account.t, step, account.step, spent[0] - stalled[0], spent[1] - stalled[1]
        )

    def _tick(self) -> None:
        account = self.account
        self.result.course.append((account.t, account.step, account.seconds.copy()))

    def _close(self) -> LifeResult:
        account, out = self.account, self.result
        self.count_withdrawn()
        out.finished = account.step >= self.own.steps * (1 - 1e-12)
        if out.finished:  # the last save is waited for
            self._spend(CHECKPOINT, self.own.save_s)
        out.wall_s, out.seconds, out.steps = account.t, account.seconds, account.step
        out.quarantined = len(self.pool.gone)
        self._tick()
        self.events.clear()  # they refer to this life: it would wait for the garbage collector
        if self.record:
            self.record.end(account.t, int(account.step + 1e-9), out.finished)
        return out

    # --- The next failure ---

    def per_s(self) -> float:
        """Return the rate of all that may happen by chance."""
        weight = self.pool.weight
        if weight != self._weight:  # it changes with the nodes at work, and nothing else does
            self._weight = weight
            self._per_s = (
                self.node_per_s * self.own.infant * weight
                + self.software_per_s
                + self.straggler_per_s
                + self.site_per_s
                + self.own.cut_per_s
                + causes.DATA_STALL_PER_S
            )
        return self._per_s

    def _fail(self, per_s: float) -> None:
        """Draw what happened, and let it."""
        own, x = self.own, self.draws.uniform() * per_s
        if (x := x - self.software_per_s) < 0:
            self.stop_all(SOFTWARE, self._noticed_s(False))
        elif (x := x - self.straggler_per_s) < 0:
            self._straggle()
        elif (x := x - self.site_per_s) < 0:
            self._lose_site(SITE, self.draws.exponential() * (SITE.repair_s or 0.0))
        elif (x := x - own.cut_per_s) < 0:
            self._lose_site(CUT, self.draws.exponential() * own.cut_s)
        elif x - causes.DATA_STALL_PER_S < 0:
            self._wait_for_data()
        elif self._old_enough():
            self._break(self._hardware_class())

    def fail_while_down(self, per_s: float) -> set[int] | None:
        """Let something fail while no rank works; return the replicas that it hit. An empty set is
        all of them, None is nothing.
        """
        own, x = self.own, self.draws.uniform() * per_s
        if (x := x - self.straggler_per_s) < 0:
            self._straggle()
            return None
        if (x := x - self.software_per_s) < 0:
            self.count(SOFTWARE)
            return set()
        if (x := x - own.cut_per_s - causes.DATA_STALL_PER_S) < 0:
            return None  # nobody needs the network or the data now
        if (x := x - self.site_per_s) < 0:
            self.count(SITE)
            self._spend(DOWN, self.draws.exponential() * (SITE.repair_s or 0.0))
            return set()
        if not self._old_enough():
            return None
        cause = self._hardware_class()
        self.count(cause)
        return self._lose(self.pool.pick(), cause).replicas

    def _hardware_class(self) -> FaultClass:
        return CLASSES[min(bisect(SUMS, self.draws.uniform()), len(CLASSES) - 1)]

    def _old_enough(self) -> bool:
        """Return whether a drawn failure happens: draws use the rate of the age that fails most."""
        most = self.own.infant
        if most == 1.0:
            return True
        now = 1 + (most - 1) * exp(-self.account.t / INFANT_S)
        return self.draws.uniform() * most < now

    def _noticed_s(self, lost: bool) -> float:
        """Return how long a failure goes unnoticed."""
        if lost:
            return self.own.timeout_s
        hangs = self.draws.uniform() < causes.HANG_SHARE
        return self.own.hang_s if hangs else self.own.noticed_s

    # --- What it takes along ---

    def _straggle(self) -> None:
        """Let a node run slower for a while: all wait for it."""
        excess = causes.STRAGGLER_FACTOR * exp(causes.STRAGGLER_SPREAD * self.draws.normal())
        factor = 1 + excess
        self.slowness.append(factor)
        self.account.slow = max(self.slowness)

        def over() -> None:
            self.slowness.remove(factor)
            self.account.slow = max(self.slowness, default=1.0)

        self.schedule(self.account.t + self.draws.exponential() * causes.STRAGGLER_S, over)

    def _wait_for_data(self) -> None:
        """Let the storage answer late: all wait."""
        account, t = self.account, self.account.t
        self._spend(DATA_WAIT, self.draws.exponential() * causes.DATA_STALL_S)
        if self.record:
            self.record.worked(t, account.t, account.step, account.step, 0.0, 0.0)

    def _break(self, cause: FaultClass) -> None:
        """Let hardware fail: one node, a rack, or a row."""
        if cause.name == "corruption":
            self._corrupt(cause)
            return
        place = self.pool.pick()
        lost = self._lose(place, cause)
        noticed_s = self._noticed_s(lost.host)
        if self.own.live:
            self.lose_replicas(cause, lost.replicas, noticed_s)
        else:
            # A copy in memory outlives one node of several: it has a second copy on another.
            alone = self.own.nodes == 1 and lost.nodes == 1
            self.stop_all(cause, noticed_s, durable=alone or lost.nodes > 1)

    def _lose(self, place: int, cause: FaultClass) -> LostHardware:
        """Take what a failure costs out: nothing, when the node can go on; a tray; or nodes."""
        pool = self.pool
        stays = self.draws.uniform() < cause.stays
        taken = self.taken[cause.name]
        if self.own.trays.tray and cause.name in causes.OF_A_TRAY:
            if stays or not pool.waiting or self._spare_tray(place):
                return self._lose_tray(place, stays)
            places = [place]  # a spare node stands in for the whole of it
        elif taken == 1:
            left_out = pool.judge(place, cause, not stays, self.account.t)
            places = [] if stays and not left_out else [place]
        elif stays:
            places = []
        else:
            first = place // taken * taken
            block = range(first, min(first + taken, self.own.nodes))
            places = [one for one in block if one not in pool.open]
        hit = {replica for one in places or [place] for replica in pool.replicas_at(one)}
        mean_s = self.own.repair_s if cause.repair_s is None else cause.repair_s
        for one in places:
            node = pool.remove(one)
            back_t = self.account.t + self.draws.exponential() * mean_s
            self.schedule(back_t, partial(self._node_back, node))
        return LostHardware(len(places), bool(places), hit)

    def _spare_tray(self, place: int) -> bool:
        """Tell whether the domain of a node still has a tray that stands by."""
        return self.pool.trays_out.get(self.pool.node_at(place), 0) < self.own.trays.spares

    def _lose_tray(self, place: int, stays: bool) -> LostHardware:
        """Let a tray of a rack fail: its domain goes on with a spare one, or without it."""
        pool, trays = self.pool, self.own.trays
        if stays:
            return LostHardware(0, False, {*pool.replicas_of_tray(place, trays.tray)})
        node = pool.node_at(place)
        hit = pool.lose_tray(place, trays.spares, trays.tray)
        back_t = self.account.t + self.draws.exponential() * self.own.repair_s
        self.schedule(back_t, partial(self._tray_back, place, node))
        return LostHardware(0, True, {*(hit or pool.replicas_of_tray(place, trays.tray))})

    def _tray_back(self, place: int, node: int) -> None:
        """Take a repaired tray back, where its domain goes on without it."""
        if not self.pool.tray_back(place, node) or not self.working:
            return
        if self.own.live:
            self.start_replicas()
        else:
            self.regroup_if_due()

    def _node_back(self, node: int) -> None:
        """Take a repaired node back: as a spare, or where one is missing."""
        self.pool.back(node)
        if not self.working or not self.pool.open or not self.pool.waiting:
            return
        if self.own.live:
            self.start_replicas()
        else:
            self.regroup_if_due()

    def _corrupt(self, cause: FaultClass) -> None:
        """Let a device compute wrongly. Replicas that differ are found at the next comparison; what
        all replicas took over is found late. All that was trained since is done again.
        """
        own, account = self.own, self.account
        if own.compare_s == inf or self.draws.uniform() < causes.LATE_SHARE:
            delay_s = self.draws.exponential() * causes.LATE_S
        else:
            delay_s = self.draws.uniform() * own.compare_s
        self.count(cause)
        since, reached = account.t, int(account.step)
        self.charge(cause, account.interrupt())
        back = max(0, int(account.durable_step() - delay_s * account.rate()))
        self.charge(cause, (account.step - back) * own.step_s)
        account.resume(back)
        self._spend(DOWN, own.load_s + own.noticed_s)
        self.charge(cause, account.t - since)
        if self.record:
            self.record.rolled_back(since, account.t, reached, back)

    def _lose_site(self, cause: FaultClass, seconds: float) -> None:
        """Lose a site, or the way to it. Alone it is waited for; else the others go on."""
        own = self.own
        if own.sites == 1 or (cause is CUT and not own.live):
            # Nodes that fail while all wait for a site do not make them wait longer.
            self.stop_all(cause, own.timeout_s, durable=cause is SITE, away_s=seconds)
            return
        if self.dark >= own.sites - 1:
            return  # the last one has nobody to be cut off from
        self.dark += 1
        self.schedule(self.account.t + seconds, self._site_back)
        self.stop_all(cause, self.own.timeout_s, durable=True)

    def _site_back(self) -> None:
        self.dark -= 1
        self.regroup_if_due()
