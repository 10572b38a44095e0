"""The hosts of a run as the leader sees them: who is there, who was lost, who is quarantined.

The threads of the links only store what followers say. The supervisor calls `poll`, which finds the
hosts that are silent and raises `LeaseLost` once this host may not lead any more.
"""

import contextlib
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.guard.detect import pulse
from penstock.launch.hosts import mirror
from penstock.launch.hosts.lease import Lease
from penstock.launch.hosts.link import Link, Message, accept
from penstock.launch.hosts.mirror import FileChunk
from penstock.launch.supervisor.fence import Fence
from penstock.ledger.journal.events import (
    HostCame,
    HostLeaving,
    HostLeft,
    HostLost,
    HostRefused,
    HostStrike,
    Quarantined,
)
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.meter.clock import now
from penstock.policy import lease, quarantine, spares
from penstock.policy.quarantine import HardwarePart
from penstock.run.folder import RunFolder

LOST_S = 5.0  # a host that was silent for so long is lost
LOST_CODE = -signal.SIGKILL  # the exit code of its ranks


class LeaseLost(Exception):
    """A lease that this host could not renew in time: another host leads, or will soon."""


@dataclass
class Member:
    """A host of the run. `link` is None for the leader itself."""

    node: str
    slots: int  # ranks that it has room for
    machine: str
    link: Link | None = None
    joined: int = 0  # hosts are ordered by it
    ready: bool = False  # its imports are done: ranks start at once
    leaving: bool = False
    lost: str = ""  # why, once it is
    exit_codes: dict[int, int | None] = field(default_factory=dict)  # of its ranks
    pids: dict[int, int] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)  # ranks that SIGSTOP holds
    used_slots: tuple[int, ...] = ()  # accelerators that ranks of the present attempt are on
    idle: bool = False  # belongs to it without a rank: its hour has power for others only
    tunnel_port: int = 0

    @property
    def working(self) -> bool:
        return bool(self.exit_codes)


@dataclass
class HostMembership:
    """The members of a run, and what the leader knows of each."""

    folder: RunFolder
    me: Member
    lease: Lease
    fence: Fence
    journal: SupervisorJournal
    nodes: int  # cluster.nodes
    refusal: Callable[[Message], str]  # why a host may not join; "" if it may
    announce: Callable[[str], None]  # shows a sentence to people
    publish_mark: Callable[[str], None] = lambda mark: None  # tells hosts that are not linked yet
    quarantined: quarantine.QuarantineState = field(default_factory=quarantine.QuarantineState)
    members: dict[str, Member] = field(default_factory=dict)
    requests: set[str] = field(default_factory=set)  # "stop" or "save", by people on other hosts
    attempt: int = -1  # the present one; reports of earlier ones are ignored

    def __post_init__(self) -> None:
        self.members[self.me.node] = self.me
        self.lock = threading.RLock()
        self.wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        # Followers that find this file share the folder with the leader. An old one goes only when
        # the new one is known: at every moment the file of the published mark exists.
        self._mark = f".led-{secrets.token_hex(8)}"
        folders = (self.folder.path, self.folder.make_scratch())
        for folder in folders:
            (folder / self._mark).touch()
        self.publish_mark(self._mark)
        for folder in folders:
            for old in folder.glob(".led-*"):
                if old.name != self._mark:
                    old.unlink(missing_ok=True)

    def admit(self, sock: socket.socket, secret: str) -> None:
        """Admit or refuse a host that connects. Called on a thread of that connection."""
        accepted = accept(sock, secret)
        if accepted is None:
            return
        link, hello = accepted
        node = str(hello["node"])
        if why := self.refusal(hello):
            link.send_last({"end": "refused", "error": why, "exit_code": 1})
            link.read_with(lambda message: None)  # until the host closes the connection
            self.journal.write(HostRefused(node=node, reason=why))
            return
        with self.lock:
            old = self.members.get(node)
            if old is not None and not old.lost:
                self._mark_lost(old, "the same host came again")
            joined = max(member.joined for member in self.members.values()) + 1
            member = Member(node, int(hello["slots"]), str(hello["machine"]), link, joined)
            member.tunnel_port = int(hello["tunnel"])
            self.members[node] = member
        link.send({"welcome": self._mark})
        self.journal.write(HostCame(node=node, address=link.other_address, slots=member.slots))
        link.read_with(lambda message: self._receive(member, message))
        self.wake()

    def _receive(self, member: Member, message: Message) -> None:
        """Store what a host says. Called on the thread of its link."""
        assert member.link is not None
        if "beat" in message:
            member.link.send({"beat": message["beat"], "left_s": self.lease_left_s()})
        elif "piece" in message:
            with contextlib.suppress(OSError):  # a full disk, which the ranks here report
                mirror.write_chunk(self.folder.path, FileChunk.from_json(message))
        elif "pulses" in message:
            for rank, (count, attempt, pid, step, phase, age_s) in message["pulses"].items():
                beat = pulse.Heartbeat(count, attempt, pid, step, phase, time.monotonic() - age_s)
                pulse.write_heartbeat(self.folder.scratch, int(rank), beat)
        elif "ready" in message:
            member.ready = True
        elif message.get("attempt", self.attempt) != self.attempt:
            pass  # it is about an attempt that is over
        elif "started" in message:
            with self.lock:
                member.pids[message["started"]] = message["pid"]
        elif "stopped" in message:
            member.stopped = set(message["stopped"])
        elif "ended" in message:
            with self.lock:
                for rank, code in message["ended"].items():
                    if int(rank) in member.exit_codes:
                        member.exit_codes[int(rank)] = code
                        member.pids.pop(int(rank), None)
            self.wake()
        elif message.get("asked") == "leave":
            member.leaving = True
            self.journal.write(HostLeaving(node=member.node))
        elif "asked" in message:
            self.requests.add(message["asked"])

    def _mark_lost(self, member: Member, why: str) -> None:
        """Record that a host is gone; it is a fault unless the host said that it would leave."""
        if member.lost:
            return
        member.lost = why
        if member.link:
            member.link.close()
        foreseen = member.leaving or not member.working
        member.exit_codes = {
            rank: LOST_CODE if code is None else code for rank, code in member.exit_codes.items()
        }
        member.pids, member.stopped = {}, set()
        gone = HostLeft if foreseen else HostLost
        self.journal.write(gone(node=member.node, reason=why))
        if not foreseen:
            self.count_fault(quarantine.HardwareFault(member.node, 0, why, now(), "lost"))

    def count_fault(self, fault: quarantine.HardwareFault) -> None:
        """Count a fault; what failed too often is left out from now on."""
        before = len(self.quarantined.strikes)
        self.quarantined, out = quarantine.decide(self.quarantined, fault)
        if len(self.quarantined.strikes) > before:
            strike = self.quarantined.strikes[-1]
            self.journal.write(
                HostStrike(
                    node=strike.part.node, accelerator=strike.part.accelerator, reason=strike.reason
                )
            )
        if out:
            self.journal.write(Quarantined(node=out.node, accelerator=out.accelerator))
            self.announce(f"{out} failed twice by its own fault and is left out from now on")

    def poll(self) -> None:
        """Find hosts that are silent; raise `LeaseLost` if this host may not lead any more."""
        self._find_silent_hosts()
        if self.lease_left_s() <= 0:
            raise LeaseLost(f"{self.me.node} could not renew its lease in time")
        self.fence.move(time.monotonic() + self.lease_left_s())

    def lease_left_s(self) -> float:
        """Return how long this host may still lead.

        While all `cluster.nodes` hosts follow it, no other host can take the lease, so an outage of
        the meeting place does not end the run.
        """
        present = sum(not member.lost for member in self.members.values())
        return lease.lead_without_beat_s(self.lease.left_s(), self.lease.over, present, self.nodes)

    def _find_silent_hosts(self) -> None:
        with self.lock:
            for member in self.members.values():
                if member.link is None or member.lost:
                    continue
                silent_s = time.monotonic() - member.link.heard_s
                if member.link.closed:
                    why = f"host {member.node} was lost: its connection was closed"
                    self._mark_lost(member, why)
                elif silent_s > LOST_S:
                    why = f"host {member.node} was lost: no beat for {LOST_S:g} s"
                    self._mark_lost(member, why)

    def hosts(self) -> list[spares.AvailableHost]:
        """Return the hosts that are there, in the order in which they joined."""
        with self.lock:
            members = sorted(self.members.values(), key=lambda member: member.joined)
            return [
                spares.AvailableHost(
                    member.node,
                    len(self.quarantined.usable(member.node, member.slots)),
                    member.working,
                    member.leaving,
                    self.quarantined.node_out(member.node),
                    any(
                        HardwarePart(member.node, slot) in self.quarantined.out
                        for slot in member.used_slots
                    ),
                    member.idle,
                )
                for member in members
                if not member.lost
            ]

    def find_regroup_reason(self) -> str:
        """Return why the present attempt should start again on other hosts; "" if it should not."""
        self.poll()
        return spares.reason_to_restart(self.hosts(), self.nodes)

    @property
    def others(self) -> list[str]:
        """The hosts that would go on if this one left."""
        return [host.node for host in self.hosts() if host.fit and host.node != self.me.node]

    def wake(self) -> None:
        """Wake the supervisor's `wait`."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full, so it wakes anyway
            os.write(self._wake_write, b"x")
