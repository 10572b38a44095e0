"""The host that leads a run: from taking the lease to the end of the lease or of the run.

The leader of a new run writes the first event of its journal. A host that takes over from a lost
leader goes on with that journal and records the time in between as a fault.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from penstock.data.read.run_tokenizer import keep_tokenizer
from penstock.guard.tiers.journal_facts import last_result
from penstock.launch.hosts.journal_sync import JournalSync
from penstock.launch.hosts.lease import Lease
from penstock.launch.hosts.link import Message
from penstock.launch.hosts.meeting import LEAST, RequestReader
from penstock.launch.hosts.membership import LeaseLost, Member
from penstock.launch.hosts.notice import StopNotice
from penstock.launch.hosts.remote_ranks import HostPlan, RemoteRanks
from penstock.launch.hosts.services import HostServices
from penstock.launch.hosts.supervisor import HANDED_OVER, MultiHostSupervisor, read_strikes
from penstock.launch.prepare import launch_plan, open_model
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.prepared_run import PreparedRun
from penstock.launch.prepare.replan import Replanner
from penstock.launch.supervisor.hours import HourWatch, hour_watch
from penstock.launch.supervisor.supervisor import RunOutcome
from penstock.ledger.journal.events import (
    AttemptFailed,
    HostsAssigned,
    InvocationEnded,
    InvocationStarted,
    LeaseExpired,
    LeaseHandedOver,
    LeaseTaken,
)
from penstock.ledger.journal.read import lines_of, read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.meter.clock import now
from penstock.policy.spares import majority
from penstock.run.folder import RunFolder
from penstock.run.save import save
from penstock.run.schema.run import Run

TAKE_OVER_S = 3.0  # the other hosts find a new leader within this time
LEASE_LOST = "lease lost"


@dataclass
class Leader:
    """This host while it holds the lease of a run."""

    run: Run
    prepared: PreparedRun
    folder: RunFolder
    journal_sync: JournalSync
    listener: Listener
    services: HostServices
    me: Member
    lease: Lease
    refusal: Callable[[Message], str]  # why a host may not join; "" if it may
    notice: StopNotice
    began: float
    lost_t: float | None  # when the leader before was lost; None where this one began the run
    remote_ranks: RemoteRanks | None = None
    hours: HourWatch | None = None

    def lead(self) -> RunOutcome:
        """Lead the run to its end. Raises `LeaseLost` when another host leads from now on."""
        self.journal_sync.pull()
        if self.lost_t is not None and (result := last_result(self.folder)):
            return RunOutcome(result)  # the run ended before this host could hear of it
        journal = SupervisorJournal(self.folder.journal, clock=now)
        outcome = RunOutcome("failed", "the supervisor failed")
        self.remote_ranks = ranks = self._make_remote_ranks(journal)
        self.journal_sync.allow_push(lambda: ranks.lease_left_s() > 0)
        requests = RequestReader(self.journal_sync.place, ranks.requests.add)
        try:
            outcome = self._supervise(ranks, journal)
        except KeyboardInterrupt:
            outcome = RunOutcome("stopped", "ended at once; the last checkpoint stands")
        except LeaseLost as lost:
            journal.write(LeaseExpired(node=self.me.node))
            self._record_fault(journal, ranks.attempt, now(), str(lost))
            outcome = RunOutcome(LEASE_LOST)
            raise
        finally:
            requests.close()
            self._close(ranks, journal, outcome)
        return outcome

    def _make_remote_ranks(self, journal: SupervisorJournal) -> RemoteRanks:
        return RemoteRanks(
            folder=self.folder,
            me=self.me,
            fork_client=self.services.fork_client,
            network=self.services.network,
            lease=self.lease,
            fence=self.services.fence,
            journal=journal,
            nodes=self.run.cluster.nodes,
            # A host that takes over does not wait again for hosts that never came.
            wait_s=self.run.cluster.wait if self.lost_t is None else TAKE_OVER_S,
            plan_for=self._plan_for,
            refusal=self.refusal,
            announce=self.listener.host_message,
            publish_mark=self.journal_sync.publish_mark,
            quarantined=read_strikes(read_events(self.folder.journal / SUPERVISOR)),
        )

    def _plan_for(self, slots: list[int]) -> HostPlan:
        layout, plan = self.prepared.plan_for_hosts(slots, self.folder.read_launch_record())
        fit = self.hours.fit(layout) if self.hours else layout
        if fit.ranks < layout.ranks:
            plan |= {"hour_layout": fit.to_json()}
        return HostPlan(fit, plan)

    def _supervise(self, ranks: RemoteRanks, journal: SupervisorJournal) -> RunOutcome:
        run, folder = self.prepared.run, self.folder
        layout, plan = self.prepared.plan_launch(folder.read_launch_record())
        self._record_beginning(journal, layout.ranks)
        since = self.began if self.lost_t is None else now()
        limit = launch_plan.budget_limit(run, folder, layout.ranks, since)
        folder.make()
        open_model.copy_small_files(run, folder.open_model)
        keep_tokenizer(folder, self.prepared.datasets)
        for what in ("stop", "save", "regroup"):
            folder.acknowledge(what)  # requests to an earlier invocation
        save(run, folder.run_file)
        self.listener.host_message(
            f"{self.me.node} leads, at {', '.join(self.lease.record.addresses)}"
        )
        expected = self._expected_hosts()
        few = ranks.wait_for_hosts(expected, self._show_waiting, self._least_hosts(expected))
        if self.notice.given:
            return RunOutcome(HANDED_OVER if self.notice.leaving else "stopped")
        if few and self.lost_t is None:
            return RunOutcome("failed", str(few), few.exit_code)
        for words in launch_plan.hour_notes(plan["predicted"]):
            self.listener.warning(words)
        self.listener.launching(folder, plan)
        self.hours = hour_watch(run, folder, plan)
        return MultiHostSupervisor(
            folder=folder,
            journal=journal,
            ranks=layout.ranks,
            threads=self.prepared.machine.threads(self.me.slots),
            restarts_allowed=run.guard.restarts,
            timeout_s=run.guard.timeout,
            grace_s=run.guard.grace,
            listener=self.listener,
            replanner=Replanner(run, folder, journal),
            deterministic=run.train.deterministic,
            live=run.guard.mode == "live",
            limit=limit,
            hours=self.hours,
            remote_ranks=ranks,
            journal_sync=self.journal_sync,
        ).run()

    def _record_beginning(self, journal: SupervisorJournal, ranks: int) -> None:
        if self.lost_t is None:
            machine = f"{self.run.cluster.nodes} hosts with {self.prepared.machine}"
            node = self.me.node
            journal.write(InvocationStarted(ranks=ranks, machine=machine, node=node), t=self.began)
            return
        journal.write(LeaseTaken(node=self.me.node))
        events = read_events(self.folder.journal / SUPERVISOR)
        assigned = lines_of(events, HostsAssigned)
        attempts = [line.attempt for line in assigned if line.attempt is not None]
        recorded = {line.attempt for line in lines_of(events, AttemptFailed, LeaseHandedOver)}
        if attempts and attempts[-1] not in recorded:
            reason = "the host that led the run was lost"
            self._record_fault(journal, attempts[-1], self.lost_t, reason)

    def _show_waiting(self) -> bool:
        """Refresh the display; return whether to go on waiting."""
        self.listener.tick()
        return not self.notice.given

    def _expected_hosts(self) -> int:
        """Return how many hosts to wait for.

        A host that takes over waits for those that were at work, except the leader that was lost.
        """
        if self.lost_t is None:
            return self.run.cluster.nodes
        events = read_events(self.folder.journal / SUPERVISOR)
        leaders = [
            line.event.node
            for line in events
            if isinstance(line.event, InvocationStarted | LeaseTaken)
        ]
        at_work = {host["node"] for host in self.folder.read_launch_record().hosts}
        return len(at_work - set(leaders[-2:-1]) | {self.me.node})

    def _least_hosts(self, expected: int) -> int:
        """Return the fewest hosts to begin with.

        Where an engine started the others too, one host that is early must not train alone. A host
        that takes over goes on without those that do not follow it in the end.
        """
        asked = os.environ.get(LEAST, "1")
        return min(majority(expected), int(asked)) if asked.isdigit() else 1

    def _record_fault(
        self, journal: SupervisorJournal, attempt: int, t: float, reason: str
    ) -> None:
        fault = AttemptFailed(since=t, attempt=attempt, rank=0, reason=reason, action="restart")
        journal.write(fault, t=t)
        self.listener.fault(0, reason, "restart")

    def _close(self, ranks: RemoteRanks, journal: SupervisorJournal, outcome: RunOutcome) -> None:
        """Record how the run ended, or went to another leader, and tell every host."""
        if outcome.result == HANDED_OVER:
            journal.write(LeaseHandedOver(attempt=ranks.attempt, node=self.me.node))
        elif outcome.result != LEASE_LOST:
            journal.write(InvocationEnded(result=outcome.result, error=outcome.error))
        journal.close()
        for what in ("stop", "regroup"):
            self.folder.acknowledge(what)
        with contextlib.suppress(OSError):  # the next leader uses what the hosts have
            self.journal_sync.push()
        result = HANDED_OVER if outcome.result == LEASE_LOST else outcome.result
        ranks.send_outcome(result, outcome.error, outcome.exit_code)
