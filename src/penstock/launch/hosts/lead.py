"""Leading a run of several hosts: from a lease that was taken to its end, or the run's.

A host that leads a new run opens its account; one that takes over from a leader that was lost goes
on with the account that is open, and the time in between is told as a fault.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from penstock.data.read.run_tokenizer import keep_tokenizer
from penstock.guard.tiers.journal_facts import last_result
from penstock.launch.hosts.agent import End, Notice
from penstock.launch.hosts.carry import Carrier
from penstock.launch.hosts.lease import Lease
from penstock.launch.hosts.link import Message
from penstock.launch.hosts.membership import LeaseLost, Member
from penstock.launch.hosts.network import HostNetwork
from penstock.launch.hosts.remote_ranks import Crew, Planned
from penstock.launch.hosts.supervisor import HANDED_OVER, Led, strikes
from penstock.launch.prepare import launch_plan, open_model
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.prepare import Prepared
from penstock.launch.prepare.replan import Replanner
from penstock.launch.supervisor.fence import Fence
from penstock.launch.supervisor.fork_client import Nursery
from penstock.launch.supervisor.supervisor import Outcome
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.meter.clock import now
from penstock.run.folder import RunFolder
from penstock.run.save import save
from penstock.run.schema.run import Run

# A host that takes over need not wait for those that never came; the others find it within this.
TAKE_OVER_S = 3.0
LEASE_LOST = "lease lost"


@dataclass
class Leading:
    run: Run
    prepared: Prepared
    folder: RunFolder
    carrier: Carrier
    listener: Listener
    nursery: Nursery
    network: HostNetwork
    fence: Fence
    me: Member
    lease: Lease
    refuses: Callable[[Message], str]
    notice: Notice
    began: float
    lost_t: float | None  # when the leader before was lost, of a run that was under way
    crew: Crew | None = None

    def lead(self) -> End:
        """How the run ended. Raises `LeaseLost` when another host leads from now on."""
        self.carrier.pull()
        if self.lost_t is not None and (result := last_result(self.folder)):
            return End(result)  # it ended while nobody told this host
        journal = SupervisorJournal(self.folder.journal, clock=now)
        outcome = Outcome("failed", "the supervisor failed")
        self.crew = crew = self._crew(journal)
        self.carrier.may = lambda: crew.left_s() > 0
        try:
            outcome = self._supervise(crew, journal)
        except KeyboardInterrupt:
            outcome = Outcome("stopped", "ended at once; the last checkpoint stands")
        except LeaseLost as lost:
            journal.event("lease_lost", node=self.me.node)
            self._fault(journal, crew.attempt, now(), str(lost))
            outcome = Outcome(LEASE_LOST)
            raise
        finally:
            self._end(crew, journal, outcome)
        return End(outcome.result, outcome.error, outcome.exit_code)

    def _crew(self, journal: SupervisorJournal) -> Crew:
        return Crew(
            folder=self.folder,
            me=self.me,
            nursery=self.nursery,
            network=self.network,
            lease=self.lease,
            fence=self.fence,
            journal=journal,
            nodes=self.run.cluster.nodes,
            wait_s=self.run.cluster.wait if self.lost_t is None else TAKE_OVER_S,
            plan_for=self._plan_for,
            refuses=self.refuses,
            told=self.listener.told,
            bad=strikes(read_events(self.folder.journal / SUPERVISOR)),
        )

    def _plan_for(self, slots: list[int]) -> Planned:
        return Planned(*self.prepared.planned_for(slots, self.folder.read_plan()))

    def _supervise(self, crew: Crew, journal: SupervisorJournal) -> Outcome:
        run, folder = self.prepared.run, self.folder
        layout, plan = self.prepared.planned(folder.read_plan())
        self._open_account(journal, layout.ranks)
        since = self.began if self.lost_t is None else now()
        limit = launch_plan.limit(run, folder, layout.ranks, since)
        folder.make()
        open_model.keep(run, folder.open_model)
        keep_tokenizer(folder, self.prepared.datasets)
        for what in ("stop", "save", "regroup"):
            folder.acknowledge(what)  # requests to an earlier start
        save(run, folder.run_file)
        self.listener.told(f"{self.me.node} leads, at {', '.join(self.lease.record.addresses)}")
        crew.gather(self._waiting, self._expected())
        if self.notice.leaving or self.notice.stopping:
            return Outcome(HANDED_OVER if self.notice.leaving else "stopped")
        self.listener.launching(folder, plan)
        return Led(
            folder=folder,
            journal=journal,
            ranks=layout.ranks,
            threads=self.prepared.machine.threads(self.me.slots),
            allowed=run.guard.restarts,
            timeout_s=run.guard.timeout,
            grace_s=run.guard.grace,
            listener=self.listener,
            replanner=Replanner(run, folder, journal),
            deterministic=run.train.deterministic,
            live=run.guard.mode == "live",
            limit=limit,
            crew=crew,
            carrier=self.carrier,
        ).run()

    def _open_account(self, journal: SupervisorJournal, ranks: int) -> None:
        if self.lost_t is None:
            machine = f"{self.run.cluster.nodes} hosts with {self.prepared.machine}"
            node = self.me.node
            journal.event("invocation", t=self.began, ranks=ranks, machine=machine, node=node)
            return
        journal.event("took_over", node=self.me.node)
        events = read_events(self.folder.journal / SUPERVISOR)
        attempts = [e.attempt for e in events if e.kind == "mustered" and e.attempt is not None]
        told = {e.attempt for e in events if e.kind in ("fault", "handed_over")}
        if attempts and attempts[-1] not in told:
            self._fault(journal, attempts[-1], self.lost_t, "the host that led the run was lost")

    def _waiting(self) -> bool:
        """Shows that it waits; whether it should go on to."""
        self.listener.tick()
        return not (self.notice.leaving or self.notice.stopping)

    def _expected(self) -> int:
        """How many hosts there should be: on taking over, those that were at work, but for the one
        that led them."""
        if self.lost_t is None:
            return self.run.cluster.nodes
        events = read_events(self.folder.journal / SUPERVISOR)
        led = [e.payload["node"] for e in events if e.kind in ("invocation", "took_over")]
        at_work = {host["node"] for host in self.folder.read_plan().get("hosts", [])}
        return len(at_work - set(led[-2:-1]) | {self.me.node})

    def _fault(self, journal: SupervisorJournal, attempt: int, t: float, reason: str) -> None:
        about = {"attempt": attempt, "rank": 0, "reason": reason, "action": "restart"}
        journal.event("fault", t=t, since=t, **about)
        self.listener.fault(0, reason, "restart")

    def _end(self, crew: Crew, journal: SupervisorJournal, outcome: Outcome) -> None:
        if outcome.result == HANDED_OVER:
            journal.event("handed_over", attempt=crew.attempt, node=self.me.node)
        elif outcome.result != LEASE_LOST:
            journal.event("ended", result=outcome.result, error=outcome.error)
        journal.close()
        for what in ("stop", "regroup"):
            self.folder.acknowledge(what)
        with contextlib.suppress(OSError):  # whoever leads next goes by what the hosts have
            self.carrier.push()
        result = HANDED_OVER if outcome.result == LEASE_LOST else outcome.result
        crew.dismiss(result, outcome.error, outcome.exit_code)
