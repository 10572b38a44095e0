"""A network of namespaces: a switch and hosts for one drill. Needs root and iproute2.

Nothing in it can reach outside the machine: the switch is in a namespace too.
"""

import contextlib
import os
import subprocess
from dataclasses import dataclass

from penstock.errors import PenstockError

NET = "10.78.0"


@dataclass(frozen=True)
class NamespaceNetwork:
    """A switch and its hosts, which are numbered from 1."""

    hosts: int = 2
    name: str = f"drill{os.getpid()}"

    def up(self) -> None:
        switch = f"{self.name}-sw"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for number in range(1, self.hosts + 1):
            host, port = self._host(number), f"p{number}"
            _ip("netns", "add", host)
            pair = ("type", "veth", "peer", "name", "eth0", "netns", host)
            _ip("-n", switch, "link", "add", port, *pair)
            _ip("-n", switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", host, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", host, "link", "set", link, "up")

    def address(self, number: int) -> str:
        return f"{NET}.{number}"

    def on(self, number: int) -> list[str]:
        """Return what a command on that host begins with."""
        return ["ip", "netns", "exec", self._host(number)]

    def cut(self, number: int) -> None:
        _ip("-n", f"{self.name}-sw", "link", "set", f"p{number}", "down")

    def mend(self, number: int) -> None:
        _ip("-n", f"{self.name}-sw", "link", "set", f"p{number}", "up")

    def lose(self, number: int, share: float) -> None:
        """Drop a share of the packets that come to a host."""
        rule = ("-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")
        _call(*self.on(number), "iptables", "-w", "-A", "INPUT", "-i", "eth0", *rule)

    def lose_nothing(self, number: int) -> None:
        _call(*self.on(number), "iptables", "-w", "-F", "INPUT")

    def down(self) -> None:
        for name in [*map(self._host, range(1, self.hosts + 1)), f"{self.name}-sw"]:
            with contextlib.suppress(PenstockError):  # it may not have come up
                _ip("netns", "del", name)

    def _host(self, number: int) -> str:
        return f"{self.name}-{number}"


def _ip(*words: str) -> None:
    _call("ip", *words)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PenstockError(f"`{' '.join(command)}`: {done.stderr.strip()}")
