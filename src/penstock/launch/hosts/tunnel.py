"""Encrypted tunnels between the hosts of a run, as the supervisor of a host uses them.

    tunnel = Tunnel(secret, node, addresses, {"link": port, "shelf": port}, folder)
    tunnel.port                                  the one port that other hosts connect to
    tunnel.forward(addresses, port, service)     opens a loopback port to a service of another host
    tunnel.set_hosts(hosts)                      where the hosts of the next attempt are

A process of its own does the work (`tunnel_process.py`), so that a busy or stopped supervisor does
not delay collectives.
"""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import RunFailed
from penstock.launch.hosts import certificates

PROCESS = "penstock.launch.hosts.tunnel_process"
READY_S, ANSWER_S = 30.0, 15.0
SOCKET = "tunnel"  # in the run's folder in shared memory, where ranks ask

TunnelAddress = tuple[Sequence[str], int]  # addresses of a host, and the port of its tunnel


@dataclass(frozen=True)
class Forward:
    """A loopback port that leads to a service of another host."""

    port: int
    address: str  # of the other host, by which it was reached
    own_address: str  # of this host in that connection


class Tunnel:
    """This host's tunnel process: starts it, sends it orders and reads its answers."""

    def __init__(
        self,
        secret: str,
        node: str,
        bind: Sequence[str],
        services: Mapping[str, int],
        folder: Path,
        refused: Callable[[int, str, str], None] = lambda count, address, why: None,
    ) -> None:
        certificates.contexts(secret, node)  # raises where the library is missing
        self._refused = refused
        self.socket = folder / SOCKET
        self._orders, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", PROCESS, str(other.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
        self._numbers, self._answers = itertools.count(), dict[int, dict[str, Any]]()
        self._changed = threading.Condition()
        self._lost = False
        self.port = 0
        # Over the socket: other users can read the environment and the command line.
        setup = {"secret": secret, "node": node, "bind": list(bind), "services": dict(services)}
        self._send(**setup, socket=str(self.socket))
        threading.Thread(target=self._receive, name="tunnel", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self.port or self._lost, READY_S)
        if not self.port:
            self.close()
            raise RunFailed("the process that connects this host to the others did not come up")

    def set_service(self, name: str, port: int) -> None:
        """Let other hosts reach a loopback port of this host by a name."""
        self._send(services={name: port})

    def set_hosts(self, hosts: Sequence[TunnelAddress]) -> None:
        """Set where the hosts of the next attempt are, in their order."""
        self._send(hosts=[[list(addresses), port] for addresses, port in hosts])

    def forward(
        self, addresses: Sequence[str], port: int, service: str, check: bool = True
    ) -> Forward:
        """Open a loopback port that leads to a service of another host.

        With `check` the addresses are tried once, and OSError is raised where none answers; without
        it, the first address is taken.
        """
        number = next(self._numbers)
        order = {"addresses": list(addresses), "port": port, "service": service, "check": check}
        self._send(forward=number, **order)
        limit_s = ANSWER_S * max(1, len(addresses))
        with self._changed:
            self._changed.wait_for(lambda: number in self._answers or self._lost, limit_s)
            answer = self._answers.pop(number, {"error": "the tunnel gives no answer"})
        if "error" in answer:
            raise OSError(answer["error"])
        return Forward(answer["local"], answer["address"], answer["own"])

    @property
    def lost(self) -> bool:
        """Whether the process is gone, and with it every connection to other hosts."""
        return self._lost

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._orders.shutdown(socket.SHUT_RDWR)
        self._orders.close()
        self._process.kill()
        self._process.wait()

    def _send(self, **order: Any) -> None:
        try:
            self._orders.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            self._lost = True

    def _receive(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._orders.makefile("rb") as lines:
            for line in lines:
                self._handle(json.loads(line))
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def _handle(self, message: dict[str, Any]) -> None:
        if "strangers" in message:
            self._refused(message["strangers"], message["address"], message["why"])
            return
        with self._changed:
            if "port" in message:
                self.port = message["port"]
            else:
                self._answers[message["id"]] = message
            self._changed.notify_all()
