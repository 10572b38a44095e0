"""One host's part in a run on several hosts: it leads while it holds the lease, else it follows.

The same command runs on each host, and the hosts find each other. No host is special and none is
named anywhere. Each reads the lease in the meeting place: one host leads and supervises
(`leader.py`), the others follow it and run ranks (`follower.py`). When the leader is lost or
leaves, another host takes the lease and goes on with what it finds in the meeting place.
"""

import contextlib
import socket
import time
from dataclasses import dataclass, field
from functools import partial

from penstock.data.store.meeting_place import ObjectStore, SharedFolder
from penstock.launch.hosts import meeting
from penstock.launch.hosts.admission import hello, refusal
from penstock.launch.hosts.follower import Follower
from penstock.launch.hosts.journal_sync import JournalSync
from penstock.launch.hosts.leader import Leader
from penstock.launch.hosts.lease import Lease, LeaseObserver, LeaseRecord
from penstock.launch.hosts.link import Message, connect
from penstock.launch.hosts.membership import LeaseLost, Member
from penstock.launch.hosts.notice import StopNotice
from penstock.launch.hosts.services import HostCallbacks, HostServices, open_services
from penstock.launch.hosts.supervisor import HANDED_OVER
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.prepared_run import PreparedRun
from penstock.launch.supervisor import addresses
from penstock.launch.supervisor.head_start import HeadStart
from penstock.launch.supervisor.supervisor import RunOutcome
from penstock.ledger.journal.events import StrangersRefused
from penstock.meter.clock import now
from penstock.meter.sampler import metered
from penstock.policy.lease import FENCED_S
from penstock.run.folder import RunFolder
from penstock.run.schema.run import Run

POLL_S = 0.5


@dataclass
class HostSession:
    """This host's part in a run, from the first reading of the lease to the end."""

    run: Run
    prepared: PreparedRun
    folder: RunFolder
    place: SharedFolder | ObjectStore
    journal_sync: JournalSync
    listener: Listener
    began: float
    head_start: HeadStart = field(default_factory=HeadStart)
    notice: StopNotice = field(default_factory=StopNotice)
    node: str = field(default_factory=addresses.node)
    leader: Leader | None = None  # while this host leads
    lost_t: float | None = None  # when a leader was lost: the run was already under way

    def take_part(self) -> RunOutcome:
        """Lead or follow until the run ends, or until this host leaves it."""
        machine = self.prepared.machine
        secret = meeting.read_or_create_secret(self.place)
        callbacks = HostCallbacks(
            greet=partial(self._greet, secret),
            greeting_failed=lambda error: self.listener.host_message(
                f"a host that came was not understood: {error!r}"
            ),
            refused=self._record_strangers,
        )
        with (
            open_services(
                self.folder,
                secret,
                self.node,
                self.run.cluster.interface,
                machine.kind,
                machine.threads(self.slots),
                callbacks,
                self.head_start,
                self.run.train.compile,
            ) as services,
            metered(self.folder.journal, self.node, machine, self.slots, self.began),
        ):
            return self._lead_or_follow(services)

    @property
    def slots(self) -> int:
        """The ranks that this host has room for."""
        return self.prepared.machine.ranks(self.run.cluster.accelerators)

    def _lead_or_follow(self, services: HostServices) -> RunOutcome:
        observer = LeaseObserver(self.place, report_damage=self.listener.host_message)
        unreachable = False
        self.listener.host_message(f"{self.node}: looking for the other hosts in {self.place}")
        while not self.notice.given:
            outcome = None
            try:
                record, free_number = observer.poll()
                if free_number is not None:
                    outcome = self._try_to_lead(services, free_number, observer.last_beat)
                elif record is not None and record.node != self.node:
                    outcome = self._follow(services, record)
                unreachable = False
            except OSError as error:
                if not unreachable:
                    self.listener.host_message(f"{self.place} cannot be reached: {error}")
                unreachable = True
            if outcome is not None:
                return outcome
            time.sleep(POLL_S)
        return RunOutcome("left")

    def _hello(self, services: HostServices) -> Message:
        return hello(self.node, self.slots, services.tunnel.port, self.prepared)

    def _follow(self, services: HostServices, record: LeaseRecord) -> RunOutcome | None:
        """Follow the holder of the lease; return None when another host is to lead."""
        link = connect(
            services.tunnel,
            record.addresses,
            record.port,
            services.secret,
            self._hello(services),
        )
        if link is None:
            return None
        self.listener.host_message(f"{self.node}: following {record.node} ({link.other_address})")
        services.fence.move(time.monotonic() + FENCED_S)
        follower = Follower(
            self.folder, link, services.fork_client, services.fence, services.network
        )
        outcome = follower.follow(self.notice)
        self.lost_t = now()
        if outcome is None:
            self.listener.host_message(f"{record.node}, which led the run, was lost")
        elif outcome.result != HANDED_OVER:
            with contextlib.suppress(OSError):  # the report of this host is then shorter
                self.journal_sync.pull()
            return outcome
        return None

    def _try_to_lead(
        self, services: HostServices, number: int, last_beat: str | None
    ) -> RunOutcome | None:
        """Take the lease and lead; return None when another host has it, or gets it later."""
        record = LeaseRecord(number, self.node, services.addresses, services.tunnel.port)
        lease = Lease.take(self.place, record, last_beat, on_renewed=services.fence.move)
        if lease is None:
            return None
        services.fence.move(lease.until_s)
        me = Member(
            self.node,
            self.slots,
            str(self.prepared.machine),
            tunnel_port=services.tunnel.port,
        )
        self.leader = Leader(
            run=self.run,
            prepared=self.prepared,
            folder=self.folder,
            journal_sync=self.journal_sync,
            listener=self.listener,
            services=services,
            me=me,
            lease=lease,
            refusal=partial(refusal, self._hello(services)),
            notice=self.notice,
            began=self.began,
            lost_t=self.lost_t,
        )
        try:
            return self.leader.lead()
        except LeaseLost as lost:
            self.lost_t = now()
            self.listener.host_message(f"{lost}: its ranks were ended")
            return None
        finally:
            self.leader = None
            with contextlib.suppress(OSError):  # then the others wait until the lease expires
                lease.release()

    # Other hosts that connect, on threads of their own

    def _greet(self, secret: str, sock: socket.socket) -> None:
        leader = self.leader
        if leader is None or leader.remote_ranks is None:
            sock.close()
        else:
            leader.remote_ranks.admit(sock, secret)

    def _record_strangers(self, count: int, address: str, why: str) -> None:
        """Record connections that the tunnel refused."""
        leader = self.leader
        if leader is not None and leader.remote_ranks is not None:
            journal = leader.remote_ranks.journal
            with contextlib.suppress(ValueError, OSError):  # the journal may be closed by now
                journal.write(StrangersRefused(count=count, address=address, why=why))
