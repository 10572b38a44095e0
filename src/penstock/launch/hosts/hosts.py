"""A run on several hosts: the same command on each, and they find each other.

No host is special and none is named anywhere. Each looks at the lease in the place where they meet:
one leads and supervises (`lead.py`), the others follow it and run ranks (`agent.py`).
When the leader is lost or leaves, another takes the lease and goes on; what it needs for that is in
the place.
"""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock import __version__
from penstock.errors import PenstockError, RunFailed
from penstock.launch.hosts import meeting
from penstock.launch.hosts.agent import Agent, End
from penstock.launch.hosts.carry import Carrier
from penstock.launch.hosts.lead import Leading
from penstock.launch.hosts.lease import Lease, Observer, Record
from penstock.launch.hosts.link import Message, connect
from penstock.launch.hosts.membership import LeaseLost, Member
from penstock.launch.hosts.network import HostNetwork
from penstock.launch.hosts.shelf import Shelf
from penstock.launch.hosts.supervisor import HANDED_OVER
from penstock.launch.hosts.tunnel import Tunnel
from penstock.launch.prepare.known import mend_plan
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.prepare import Prepared, prepare
from penstock.launch.prepare.resume import how_to_go_on, report_start
from penstock.launch.supervisor import addresses, environment, zygote
from penstock.launch.supervisor.fence import ENVIRONMENT, Fence
from penstock.launch.supervisor.fork_client import Nursery, modules
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.meter.clock import now
from penstock.meter.devices import Devices
from penstock.meter.rendezvous import LOOPBACK
from penstock.meter.sampler import metered
from penstock.policy.lease import FENCED_S
from penstock.policy.restart import WELL
from penstock.run.fingerprint import fingerprint
from penstock.run.folder import RunFolder
from penstock.run.schema.run import Run

LOOK_S = 0.5
MOST_GREETED = 64  # hosts at once
_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What hosts of one run must have alike, and what it is called.
_MUST_EQUAL = {
    "version": "version of Penstock",
    "kind": "kind of device",
    "precision": "train.precision, where the file says auto",
    "run": "run file",
    "data": "dataset",
}


@dataclass
class Notice:
    """What this host was told by a signal. A host that is to go is told by SIGTERM; whoever
    presses Ctrl-C means the run."""

    leaving: bool = False
    stopping: bool = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def hear(number: int, frame: object) -> None:
            if self.leaving or self.stopping:
                raise KeyboardInterrupt
            self.leaving = number == signal.SIGTERM
            self.stopping = not self.leaving

        numbers = [s for s in _HEARD if signal.getsignal(s) is not signal.SIG_IGN]
        before = {number: signal.signal(number, hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass
class Host:
    """One host's part in a run."""

    run: Run
    prepared: Prepared
    folder: RunFolder
    place: meeting.Folder | meeting.Url
    carrier: Carrier
    listener: Listener
    began: float
    notice: Notice = field(default_factory=Notice)
    node: str = field(default_factory=addresses.node)
    leading: Leading | None = None
    lost_t: float | None = None  # when a leader was lost: the run was already under way

    def take_part(self) -> End:
        """Until the run ends, or this host leaves it."""
        self.fence = Fence(self.folder.make_scratch() / "fence")
        threads = self.prepared.machine.threads(self.slots)
        env = environment.for_nursery(threads) | {ENVIRONMENT: str(self.fence.path)}
        self.nursery = Nursery(env, modules(self.prepared.machine.kind), zygote.from_environment())
        self.secret = meeting.secret_of(self.place)
        self.server = socket.create_server((LOOPBACK, 0), backlog=64)
        self.shelf = Shelf(self.folder.scratch, self.secret)
        self.addresses = addresses.own(self.run.cluster.interface)
        services = {"link": self.server.getsockname()[1], "shelf": self.shelf.port}
        self.tunnel = Tunnel(
            self.secret,
            self.node,
            self.addresses,
            services,
            self.folder.scratch,
            self._strangers,
        )
        kind = self.prepared.machine.kind
        self.network = HostNetwork(self.tunnel, self.secret, self.shelf.port, kind)
        threading.Thread(target=self._listen, name="listen", daemon=True).start()
        with (
            contextlib.closing(self.server),
            contextlib.closing(self.shelf),
            contextlib.closing(self.tunnel),
            contextlib.closing(self.nursery),
            metered(self.folder.journal, self.node, self.prepared.machine, self.slots, self.began),
        ):
            return self._live()

    @property
    def slots(self) -> int:
        return self.prepared.machine.ranks(self.run.cluster.accelerators)

    def _live(self) -> End:
        observer, unreachable = Observer(self.place, odd=self.listener.told), False
        self.listener.told(f"{self.node}: looking for the other hosts in {self.place}")
        while not (self.notice.leaving or self.notice.stopping):
            end = None
            try:
                record, free = observer.look()
                if free is not None:
                    end = self._try_to_lead(free, observer.judged)
                elif record is not None and record.node != self.node:
                    end = self._follow(record)
                unreachable = False
            except OSError as error:
                if not unreachable:
                    self.listener.told(f"{self.place} cannot be reached: {error}")
                unreachable = True
            if end is not None:
                return end
            time.sleep(LOOK_S)
        return End("left")

    # Following

    def hello(self) -> Message:
        return {
            "node": self.node,
            "slots": self.slots,
            "tunnel": self.tunnel.port,
            "machine": str(self.prepared.machine),
            "kind": self.prepared.machine.kind,
            "version": __version__,
            "precision": self.prepared.run.train.precision,
            "run": fingerprint(self.prepared.run),
            "data": self.prepared.dataset,
        }

    def refuses(self, hello: Message) -> str:
        """Why a host may not take part; "" when it may."""
        own = self.hello()
        for key, what in _MUST_EQUAL.items():
            if hello.get(key) != own[key]:
                return (
                    f"{hello.get('node')} has another {what} than {self.node}, which leads the run "
                    f"({hello.get(key)} and {own[key]}); start all hosts with the same"
                )
        return ""

    def _follow(self, record: Record) -> End | None:
        link = connect(self.tunnel, record.addresses, record.port, self.secret, self.hello())
        if link is None:
            return None
        self.listener.told(f"{self.node}: following {record.node} ({link.other_address})")
        self.fence.move(time.monotonic() + FENCED_S)
        agent = Agent(self.folder, link, self.nursery, self.fence, self.network)
        end = agent.follow(self.notice)
        self.lost_t = now()
        if end is None:
            self.listener.told(f"{record.node}, which led the run, was lost")
        elif end.result != HANDED_OVER:
            with contextlib.suppress(OSError):  # the report of this host is then shorter
                self.carrier.pull()
            return end
        return None

    # Leading

    def _listen(self) -> None:
        """Greet hosts that come, each on a thread of its own: a slow one holds nobody up."""
        free = threading.BoundedSemaphore(MOST_GREETED)
        while True:
            try:
                sock, _ = self.server.accept()
            except ConnectionError:
                continue  # it hung up at once
            except OSError:
                return  # closed: this host is done
            if not free.acquire(blocking=False):
                sock.close()  # a host comes again in a moment
                continue
            threading.Thread(target=self._greet, args=(sock, free), daemon=True).start()

    def _greet(self, sock: socket.socket, free: threading.BoundedSemaphore) -> None:
        try:
            leading = self.leading
            if leading is None or leading.crew is None:
                sock.close()
            else:
                leading.crew.greet(sock, self.secret)
        except (OSError, ValueError, KeyError, TypeError) as error:
            sock.close()
            self.listener.told(f"a host that came was not understood: {error!r}")
        finally:
            free.release()

    def _strangers(self, count: int, address: str, why: str) -> None:
        """Put on record that somebody else knocked."""
        leading = self.leading
        if leading is not None and leading.crew is not None:
            with contextlib.suppress(ValueError, OSError):  # the journal may be closed by now
                leading.crew.journal.event("strangers", count=count, address=address, why=why)

    def _try_to_lead(self, number: int, judged: str | None) -> End | None:
        record = Record(number, self.node, self.addresses, self.tunnel.port)
        lease = Lease.take(self.place, record, judged)
        if lease is None:
            return None
        self.fence.move(lease.until_s)
        lease.on_renewed = self.fence.move
        me = Member(self.node, self.slots, str(self.prepared.machine), tunnel=self.tunnel.port)
        self.leading = Leading(
            run=self.run,
            prepared=self.prepared,
            folder=self.folder,
            carrier=self.carrier,
            listener=self.listener,
            nursery=self.nursery,
            network=self.network,
            fence=self.fence,
            me=me,
            lease=lease,
            refuses=self.refuses,
            notice=self.notice,
            began=self.began,
            lost_t=self.lost_t,
        )
        try:
            return self.leading.lead()
        except LeaseLost as lost:
            self.lost_t = now()
            self.listener.told(f"{lost}: its ranks were ended")
            return None
        finally:
            self.leading = None
            with contextlib.suppress(OSError):  # then the others wait until it is dead
                lease.release()


def start(run: Run, machine: Devices, listener: Listener, began: float) -> None:
    """This host's part in the run, from beginning to end."""
    folder, place = RunFolder(run.folder), meeting.of(run)
    with folder.lock(f"lock-{addresses.node()}"):
        carrier = Carrier(folder, place)
        _pull(carrier, place)
        mended = mend_plan(folder)
        how = how_to_go_on(folder, run)
        for words in (*mended, *how.mended):
            listener.warning(words)
        if how.finished:
            report_start(how, folder, listener)
            return
        prepared = prepare(how.run, folder.read_plan(), machine, listener)
        prepared.planned({})  # refuse before any host waits for another
        report_start(how, folder, listener)
        host = Host(how.run, prepared, folder, place, carrier, listener, began)
        with host.notice.heard():
            end = host.take_part()
    if end.result != "failed":
        folder.drop_scratch()  # what it holds is in the durable place too
    if end.result in ("left", HANDED_OVER):
        journal = SupervisorJournal(folder.journal, clock=now)
        journal.event("left", node=host.node)
        journal.close()
        listener.told(end.error or "this host has left the run")
    elif end.result not in WELL:
        error = RunFailed if end.exit_code != PenstockError.exit_code else PenstockError
        raise error(end.error)


def _pull(carrier: Carrier, place: meeting.Place) -> None:
    """What other hosts have on record of the run: it may exist, and this host not know it."""
    try:
        carrier.pull()
    except OSError as error:
        raise RunFailed(
            f"{place}: the hosts of the run meet there, and it cannot be reached: {error}. Give "
            "the same command when it can"
        ) from None
