"""The supervisor of a run on several hosts: that of one host, plus hosts that come and go.

When a host comes or must leave, the ranks save, stop and start again on the new set of hosts. That
is not a fault and loses no step. The loss of a host is a fault.
"""

import json
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from penstock.launch.hosts.journal_sync import JournalSync
from penstock.launch.hosts.remote_ranks import RemoteRanks
from penstock.launch.supervisor.rank_processes import RankProcesses
from penstock.launch.supervisor.supervisor import RunOutcome, Supervisor
from penstock.ledger.journal.events import HostRequest, HostStrike, RegroupRequested
from penstock.ledger.journal.read import JournalLine, lines_of
from penstock.ledger.journal.records import file_name
from penstock.ledger.journal.values import whole
from penstock.meter.clock import now
from penstock.plan.job.layout import Layout
from penstock.policy import quarantine
from penstock.policy.quarantine import Kind

HANDED_OVER = "handed over"
SENTINELS = (b"replay_differs", b"replica_at_fault")
SENTINELS_S = 2.0  # between two readings of what the sentinels found


@dataclass
class NewLines:
    """A reader of the lines of a growing file: it returns each whole line once."""

    at: int = 0  # bytes that were read

    def read(self, path: Path) -> list[bytes]:
        try:
            with path.open("rb") as file:
                file.seek(self.at)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self.at += len(whole) + len(newline)
        return whole.splitlines()


@dataclass(kw_only=True)
class MultiHostSupervisor(Supervisor):
    """The supervisor on the host that leads."""

    remote_ranks: RemoteRanks
    journal_sync: JournalSync
    new_events: NewLines = field(default_factory=NewLines)  # of rank 0, which writes for all ranks
    sentinels_s: float = 0.0  # when to read them again

    def run(self) -> RunOutcome:
        """Run as on one host. On SIGTERM this host saves and leaves the run to the others."""
        outcome = super().run()
        leaves = self.stop_signal == signal.SIGTERM
        if outcome.result == "stopped" and leaves and (others := self.remote_ranks.others):
            return RunOutcome(HANDED_OVER, f"this host leaves; {' and '.join(others)} go on")
        return outcome

    def open_processes(self) -> RankProcesses:
        self.remote_ranks.network.tunnel.set_service("store", self.store.port)
        return self.remote_ranks

    def begin_attempt(self, attempt: int) -> None:
        self.regroup_reason, self.new_events = "", NewLines()
        self.ranks = self.remote_ranks.begin_attempt(attempt, stopping=lambda: self.stop_requested)
        self.journal_sync.push_soon()

    def poll_hosts(self) -> None:
        for request in sorted(self.remote_ranks.requests):
            self.remote_ranks.requests.remove(request)
            self.folder.request(request)
            self.stop_requested |= request == "stop"
            self.journal.write(HostRequest(what=request))
        self._read_sentinels()
        if self.regroup_reason or self.stop_requested or self.over_budget:
            return
        self.regroup_reason = self.remote_ranks.find_regroup_reason()
        if self.regroup_reason:
            self.journal.write(RegroupRequested(reason=self.regroup_reason))
            self.remote_ranks.announce(f"{self.regroup_reason}: saving, then starting again")
            self.folder.request("regroup")

    def _read_sentinels(self) -> None:
        """Count a replica that computes wrongly against the hardware that it runs on."""
        if time.monotonic() < self.sentinels_s:
            return
        self.sentinels_s = time.monotonic() + SENTINELS_S
        path = self.folder.journal / file_name(self.remote_ranks.attempt, range(1), "events")
        for line in self.new_events.read(path):
            if not any(kind in line for kind in SENTINELS):
                continue  # nearly all lines: they are not even parsed
            event = json.loads(line)
            wrong, certain = event.get("replicas"), event.get("certain", True)
            if event["kind"].encode() in SENTINELS and certain and len(wrong or []) == 1:
                self._blame_replica(wrong[0], f"{event['kind']} at step {event['step']}")

    def _blame_replica(self, replica: int, reason: str) -> None:
        """Count a fault against the replica's accelerator, or its host if it has several there.

        Nothing is counted against a replica that spans hosts.
        """
        layout = Layout(**self.folder.read_launch_record().attempt_layout)
        inner = layout.ranks // layout.pipeline // layout.replicate
        ranks = [
            rank for rank in range(layout.ranks) if rank // inner % layout.replicate == replica
        ]
        placement = self.remote_ranks.placement
        places = {(member.node, slot) for member, slot in (placement[rank] for rank in ranks)}
        nodes = {node for node, _ in places}
        if len(nodes) == 1:
            slot = next(iter(places))[1] if len(places) == 1 else None
            node = next(iter(nodes))
            self.remote_ranks.count_fault(
                quarantine.HardwareFault(node, slot, reason, now(), "differs")
            )

    def host_failure(self, rank: int) -> str:
        return self.remote_ranks.host_failure(rank)

    def blame(self, rank: int, reason: str) -> None:
        """Count a failure against the rank's accelerator; the policy reads the reason."""
        member, slot = self.remote_ranks.placement[rank]
        if not member.lost:
            self.remote_ranks.count_fault(
                quarantine.HardwareFault(member.node, slot, reason, now(), "rank")
            )


def read_strikes(journal: list[JournalLine]) -> quarantine.QuarantineState:
    """Return what earlier leaders of the run recorded against its hosts."""
    state = quarantine.QuarantineState()
    for line in lines_of(journal, HostStrike):
        strike, slot = line.event, whole(line.event.accelerator)
        kind: Kind = "lost" if slot is None else "differs"
        fault = quarantine.HardwareFault(str(strike.node), slot, str(strike.reason), line.t, kind)
        state, _ = quarantine.decide(state, fault)
    return state
