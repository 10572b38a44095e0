"""A scratch run on two hosts of the drill's own, and what happens to hosts and to what is between.

Each host is a network namespace with a memory of its own; they share the run's folder, as on a
parallel file system. The same command is given on both.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.drill.net import Net
from penstock.drill.scene import Held, Scene
from penstock.launch.supervisor.preload import ForkedProcess

HOSTS = (1, 2)
FIELDS = ("cluster.nodes=2", "cluster.accelerators=1", "cluster.wait=60 s")
LOSS = 0.02


@dataclass
class HostsScene(Scene):
    net: Net = field(default_factory=Net)
    running: dict[int, subprocess.Popen[bytes] | ForkedProcess] = field(default_factory=dict)

    def start(self) -> None:
        """On every host where it does not run."""
        if not self.commands:
            self.net.up()
            self.after.append(self.net.down)
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
        """When all commands have ended: how the one that led to the end did."""
        self.until(self.over, "the commands did not end")
        return min(one.wait() for one in self.running.values())

    def leader(self) -> int:
        found = [self.event(kind) for kind in ("invocation", "took_over")]
        last = max((event for event in found if event), key=lambda event: event.t)
        return int(str(last.payload["node"]).rsplit("-", 1)[1])

    def follower(self) -> int:
        return next(number for number in HOSTS if number != self.leader())

    def comes_back(self, number: int) -> None:
        """While the run is held on the host that is left."""
        self.held(1)
        if self.running[number].poll() is not None:
            self.start_on(number)
        self.told("host_came", times=2)
        self.release(1)

    def kill_host(self, number: int, held: Held) -> None:
        """All of its processes go at once, as when its power does."""
        self.strike(f"loss of host {number}", held, lethal=True)
        self.running[number].send_signal(signal.SIGKILL)
        self.running[number].wait()

    def told(self, kind: str, times: int = 1) -> None:
        """Waits until the supervisor has written so many lines of a kind."""
        self.until(lambda: self.count(kind) >= times or self.over(), f"nobody told of `{kind}`")

    def over(self) -> bool:
        return all(one.poll() is not None for one in self.running.values())

    def clear(self) -> None:
        for one in self.running.values():
            if one.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
                one.wait()
        super().clear()


HostsDeed = Callable[[HostsScene], None]


def host_lost(scene: HostsScene) -> None:
    """The one that does not lead goes, and comes back."""
    scene.start()
    held, other = scene.held(), scene.follower()
    scene.kill_host(other, held)
    scene.release()
    scene.told("host_lost")
    scene.comes_back(other)


def head_lost(scene: HostsScene) -> None:
    """The one that leads, where the ranks meet, goes, and comes back."""
    scene.start()
    held, leader = scene.held(), scene.leader()
    scene.kill_host(leader, held)
    scene.release()
    scene.told("took_over")
    scene.comes_back(leader)


def host_notice(scene: HostsScene) -> None:
    """A notice of preemption to one host: the run saves, and goes on with the other."""
    scene.start()
    held, other = scene.held(), scene.follower()
    scene.strike(f"SIGTERM to host {other}", held)
    scene.running[other].send_signal(signal.SIGTERM)
    scene.told("host_leaves")
    scene.release()
    scene.until(lambda: scene.running[other].poll() is not None, "the host did not leave")
    scene.comes_back(other)


def network_cut(scene: HostsScene) -> None:
    """The link of the host that does not lead is down until it is given up, and comes back."""
    scene.start()
    held, other = scene.held(), scene.follower()
    scene.strike(f"link of host {other} down", held, lethal=True)
    scene.net.cut(other)
    scene.release()
    scene.told("host_lost")
    scene.net.mend(other)
    scene.comes_back(other)


def packet_loss(scene: HostsScene) -> None:
    """Every fiftieth packet, for some steps."""
    scene.start()
    scene.strike(f"{LOSS:.0%} of packets lost", scene.held())
    for number in HOSTS:
        scene.net.lose(number, LOSS)
    scene.release()
    scene.held(1)
    for number in HOSTS:
        scene.net.lose_nothing(number)
    scene.release(1)


HOSTS_DEEDS: dict[str, HostsDeed] = {
    "host_lost": host_lost,
    "head_lost": head_lost,
    "host_notice": host_notice,
    "network_cut": network_cut,
    "packet_loss": packet_loss,
}
