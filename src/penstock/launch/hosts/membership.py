"""The hosts of a run, as the one that leads sees them: who is there, who was lost, who is bad.

Threads of the lines only take in what the others say. What follows from it is found when the
supervisor looks: `look` notices who is silent, and raises `LeaseLost` once this host may not lead
any more.
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
from penstock.launch.hosts.link import Link, Message, greeted
from penstock.launch.hosts.mirror import Piece
from penstock.launch.supervisor.fence import Fence
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.meter.clock import now
from penstock.policy import lease, quarantine, spares
from penstock.policy.quarantine import HardwarePart
from penstock.run.folder import RunFolder

LOST_S = 5.0  # a host that was not heard for so long is lost
LOST_CODE = -signal.SIGKILL  # of its ranks


class LeaseLost(Exception):
    """This host could not renew its lease in time: another one leads, or will soon."""


@dataclass
class Member:
    """A host. `link` is None for the one that leads."""

    node: str
    slots: int
    machine: str
    link: Link | None = None
    came: int = 0
    ready: bool = False  # its imports are done: ranks start at once
    leaving: bool = False
    lost: str = ""  # why, once it is
    codes: dict[int, int | None] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)  # ranks that somebody's SIGSTOP holds
    used: tuple[int, ...] = ()  # accelerators that ranks of the present attempt are on
    tunnel: int = 0  # the port of its tunnel

    @property
    def working(self) -> bool:
        return bool(self.codes)


@dataclass
class Roster:
    folder: RunFolder
    me: Member
    lease: Lease
    fence: Fence
    journal: SupervisorJournal
    nodes: int  # cluster.nodes
    refuses: Callable[[Message], str]  # why a host may not join; "" if it may
    told: Callable[[str], None]  # a sentence for people
    bad: quarantine.QuarantineState = field(default_factory=quarantine.QuarantineState)
    members: dict[str, Member] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # "stop" or "save", by people on other hosts
    attempt: int = -1  # whose ranks are spoken of

    def __post_init__(self) -> None:
        self.members[self.me.node] = self.me
        self.lock = threading.RLock()
        self.awake, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._mark = f".led-{secrets.token_hex(8)}"
        for folder in (self.folder.path, self.folder.make_scratch()):
            for old in folder.glob(".led-*"):
                old.unlink(missing_ok=True)
            (folder / self._mark).touch()

    def greet(self, sock: socket.socket, secret: str) -> None:
        """A host that wants to take part; on the thread that listens."""
        met = greeted(sock, secret)
        if met is None:
            return
        link, hello = met
        node = str(hello["node"])
        if why := self.refuses(hello):
            link.send_last({"end": "refused", "error": why, "exit_code": 1})
            link.read_with(lambda message: None)  # until it closes the line
            self.journal.event("host_refused", node=node, reason=why)
            return
        with self.lock:
            old = self.members.get(node)
            if old is not None and not old.lost:
                self._lose(old, "the same host came again")
            came = max(member.came for member in self.members.values()) + 1
            member = Member(node, int(hello["slots"]), str(hello["machine"]), link, came)
            member.tunnel = int(hello["tunnel"])
            self.members[node] = member
        link.send({"welcome": self._mark})
        self.journal.event("host_came", node=node, address=link.other_address, slots=member.slots)
        link.read_with(lambda message: self._take(member, message))
        self.stir()

    def _take(self, member: Member, message: Message) -> None:
        """What a host says, on the thread of its line."""
        assert member.link is not None
        if "beat" in message:
            member.link.send({"beat": message["beat"], "left_s": self.left_s()})
        elif "piece" in message:
            with contextlib.suppress(OSError):  # a full disk, of which the ranks here tell
                mirror.write(self.folder.path, Piece.of(message))
        elif "pulses" in message:
            for rank, (count, attempt, pid, step, phase, age_s) in message["pulses"].items():
                beat = pulse.Heartbeat(count, attempt, pid, step, phase, time.monotonic() - age_s)
                pulse.write_heartbeat(self.folder.scratch, int(rank), beat)
        elif "ready" in message:
            member.ready = True
        elif message.get("attempt", self.attempt) != self.attempt:
            pass  # of an attempt that is over
        elif "started" in message:
            with self.lock:
                member.pids[message["started"]] = message["pid"]
        elif "stopped" in message:
            member.stopped = set(message["stopped"])
        elif "ended" in message:
            with self.lock:
                for rank, code in message["ended"].items():
                    if int(rank) in member.codes:
                        member.codes[int(rank)] = code
                        member.pids.pop(int(rank), None)
            self.stir()
        elif message.get("asked") == "leave":
            member.leaving = True
            self.journal.event("host_leaves", node=member.node)
        elif "asked" in message:
            self.asked.add(message["asked"])

    def _lose(self, member: Member, why: str) -> None:
        """Gone without a word; one that said that it would leave has nobody's fault."""
        if member.lost:
            return
        member.lost = why
        if member.link:
            member.link.close()
        foreseen = member.leaving or not member.working
        member.codes = {r: LOST_CODE if c is None else c for r, c in member.codes.items()}
        member.pids, member.stopped = {}, set()
        self.journal.event("host_left" if foreseen else "host_lost", node=member.node, reason=why)
        if not foreseen:
            self.blame(quarantine.HardwareFault(member.node, 0, why, now(), "lost"))

    def blame(self, fault: quarantine.HardwareFault) -> None:
        """Count a fault; what failed too often is left out from now on."""
        before = len(self.bad.strikes)
        self.bad, out = quarantine.decide(self.bad, fault)
        if len(self.bad.strikes) > before:
            strike = self.bad.strikes[-1]
            self.journal.event(
                "strike",
                node=strike.part.node,
                accelerator=strike.part.accelerator,
                reason=strike.reason,
            )
        if out:
            self.journal.event("quarantined", node=out.node, accelerator=out.accelerator)
            self.told(f"{out} failed twice by its own fault and is left out from now on")

    def look(self) -> None:
        """Notice who is silent, and whether this host may still lead."""
        self._notice_silent()
        if self.left_s() <= 0:
            raise LeaseLost(f"{self.me.node} could not renew its lease in time")
        self.fence.move(time.monotonic() + self.left_s())

    def left_s(self) -> float:
        """How long this host may still lead.

        While every host that was asked for follows it, nobody is left to take the lease, so that an
        outage of the place where they meet ends nothing.
        """
        there = sum(not member.lost for member in self.members.values())
        return lease.lead_without_beat_s(self.lease.left_s(), self.lease.over, there, self.nodes)

    def _notice_silent(self) -> None:
        with self.lock:
            for member in self.members.values():
                if member.link is None or member.lost:
                    continue
                silent_s = time.monotonic() - member.link.heard_s
                if member.link.closed:
                    self._lose(member, f"host {member.node} was lost: its line was closed")
                elif silent_s > LOST_S:
                    self._lose(member, f"host {member.node} was lost: no beat for {LOST_S:g} s")

    def hosts(self) -> list[spares.AvailableHost]:
        with self.lock:
            there = sorted(self.members.values(), key=lambda member: member.came)
            return [
                spares.AvailableHost(
                    member.node,
                    len(self.bad.usable(member.node, member.slots)),
                    member.working,
                    member.leaving,
                    self.bad.node_out(member.node),
                    any(HardwarePart(member.node, slot) in self.bad.out for slot in member.used),
                )
                for member in there
                if not member.lost
            ]

    def change(self) -> str:
        """Why the present attempt should save and start again on other hosts; "" if not."""
        self.look()
        return spares.reason_to_restart(self.hosts(), self.nodes)

    @property
    def others(self) -> list[str]:
        """Hosts that would go on if this one left."""
        return [host.node for host in self.hosts() if host.fit and host.node != self.me.node]

    def stir(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it will wake all the same
            os.write(self._wake, b"x")
