"""A scratch run on two hosts, and the faults of hosts and of the network between them.

Each host is a network namespace with a memory folder of its own; the hosts share the run folder, as
on a parallel file system. The same command runs on both.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.drill.drill_run import DrillRun, HeldRank
from penstock.drill.namespaces import NamespaceNetwork
from penstock.launch.supervisor.preload import ForkedProcess
from penstock.ledger.journal.events import (
    HostCame,
    HostLeaving,
    HostLost,
    InvocationStarted,
    JournalEvent,
    LeaseTaken,
)

HOSTS = (1, 2)
FIELDS = ("cluster.nodes=2", "cluster.accelerators=1", "cluster.wait=60 s")
LOSS = 0.02


@dataclass
class MultiHostDrillRun(DrillRun):
    net: NamespaceNetwork = field(default_factory=NamespaceNetwork)
    running: dict[int, subprocess.Popen[bytes] | ForkedProcess] = field(default_factory=dict)

    def start(self) -> None:
        """Start the command on every host where it does not run."""
        if not self.commands:
            self.net.up()
            self.cleanups.append(self.net.down)
        for number in HOSTS:
            if number not in self.running or self.running[number].poll() is not None:
                self.start_on(number)

    def start_on(self, number: int) -> None:
        memory = self.folder.path.with_name(f"{self.folder.name}.memory-{number}")
        memory.mkdir(exist_ok=True)
        own = {
            "PENSTOCK_NODE": f"host-{number}",
            "PENSTOCK_ADDRESS": self.net.address(number),
            "PENSTOCK_MEMORY": str(memory),
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        self.process = self.running[number] = self.command(self.net.on(number), own)

    def end(self) -> int:
        """Wait until all commands have ended; return the exit code of the last leader."""
        self.wait_until(self.ended, "the commands did not end")
        return min(one.wait() for one in self.running.values())

    def leader(self) -> int:
        began = [(line.t, line.event.node) for line in self.events(InvocationStarted)[-1:]]
        began += [(line.t, line.event.node) for line in self.events(LeaseTaken)[-1:]]
        _, node = max(began, key=lambda pair: pair[0])
        return int(node.rsplit("-", 1)[1])

    def follower(self) -> int:
        return next(number for number in HOSTS if number != self.leader())

    def comes_back(self, number: int) -> None:
        """Start a host again while the run is held on the other host."""
        self.wait_for_held_rank(1)
        if self.running[number].poll() is not None:
            self.start_on(number)
        self.wait_for_event(HostCame, times=2)
        self.release(1)

    def kill_host(self, number: int, held: HeldRank) -> None:
        """Kill all processes of a host at once, as a power cut does."""
        self.record_injection(f"loss of host {number}", held, lethal=True)
        self.running[number].send_signal(signal.SIGKILL)
        self.running[number].wait()

    def wait_for_event(self, cls: type[JournalEvent], times: int = 1) -> None:
        """Wait until the supervisor has written so many events of a class."""
        self.wait_until(
            lambda: len(self.events(cls)) >= times or self.ended(), f"no event `{cls.kind}`"
        )

    def ended(self) -> bool:
        return all(one.poll() is not None for one in self.running.values())

    def clear(self) -> None:
        for one in self.running.values():
            if one.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
                one.wait()
        super().clear()


HostAction = Callable[[MultiHostDrillRun], None]


def host_lost(drill_run: MultiHostDrillRun) -> None:
    """Kill the host that follows; it comes back later."""
    drill_run.start()
    held, other = drill_run.wait_for_held_rank(), drill_run.follower()
    drill_run.kill_host(other, held)
    drill_run.release()
    drill_run.wait_for_event(HostLost)
    drill_run.comes_back(other)


def head_lost(drill_run: MultiHostDrillRun) -> None:
    """Kill the host that leads, which has the store; it comes back later."""
    drill_run.start()
    held, leader = drill_run.wait_for_held_rank(), drill_run.leader()
    drill_run.kill_host(leader, held)
    drill_run.release()
    drill_run.wait_for_event(LeaseTaken)
    drill_run.comes_back(leader)


def host_notice(drill_run: MultiHostDrillRun) -> None:
    """Send a preemption notice to one host: the run saves and goes on with the other."""
    drill_run.start()
    held, other = drill_run.wait_for_held_rank(), drill_run.follower()
    drill_run.record_injection(f"SIGTERM to host {other}", held)
    drill_run.running[other].send_signal(signal.SIGTERM)
    drill_run.wait_for_event(HostLeaving)
    drill_run.release()
    drill_run.wait_until(
        lambda: drill_run.running[other].poll() is not None, "the host did not leave"
    )
    drill_run.comes_back(other)


def network_cut(drill_run: MultiHostDrillRun) -> None:
    """Cut the link of the follower until the leader gives it up; then mend it."""
    drill_run.start()
    held, other = drill_run.wait_for_held_rank(), drill_run.follower()
    drill_run.record_injection(f"link of host {other} down", held, lethal=True)
    drill_run.net.cut(other)
    drill_run.release()
    drill_run.wait_for_event(HostLost)
    drill_run.net.mend(other)
    drill_run.comes_back(other)


def packet_loss(drill_run: MultiHostDrillRun) -> None:
    """Drop every fiftieth packet for some steps."""
    drill_run.start()
    drill_run.record_injection(f"{LOSS:.0%} of packets lost", drill_run.wait_for_held_rank())
    for number in HOSTS:
        drill_run.net.lose(number, LOSS)
    drill_run.release()
    drill_run.wait_for_held_rank(1)
    for number in HOSTS:
        drill_run.net.lose_nothing(number)
    drill_run.release(1)


HOST_ACTIONS: dict[str, HostAction] = {
    "host_lost": host_lost,
    "head_lost": head_lost,
    "host_notice": host_notice,
    "network_cut": network_cut,
    "packet_loss": packet_loss,
}
