"""Encrypted tunnels between the hosts of a run, as the process that supervises a host uses them.

    tunnel = Tunnel(secret, node, addresses, {"link": port, "shelf": port}, folder)
    tunnel.port                                  the one port that other hosts connect to
    tunnel.forward(addresses, port, service)     where on loopback a service of another host is
    tunnel.set_hosts(hosts)                      where the hosts of the next attempt are

The work is done by a process of its own (`tunnel_process.py`), so that a busy or stopped supervisor
holds no collective up.
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

Address = tuple[Sequence[str], int]  # addresses of a host, and the port of its tunnel


@dataclass(frozen=True)
class Forward:
    """A way to a service of another host."""

    port: int  # on loopback
    address: str  # of the other host, by which it was reached
    own_address: str  # of this host on that way


class Tunnel:
    def __init__(
        self,
        secret: str,
        node: str,
        bind: Sequence[str],
        services: Mapping[str, int],
        folder: Path,
        strangers: Callable[[int, str, str], None] = lambda count, address, why: None,
    ) -> None:
        certificates.contexts(secret, node)  # a missing library is told here
        self._strangers = strangers
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
        self._told = threading.Condition()
        self._lost = False
        self.port = 0
        # By the socket, not by the environment or the command line, which others can read.
        setup = {"secret": secret, "node": node, "bind": list(bind), "services": dict(services)}
        self._order(**setup, socket=str(self.socket))
        threading.Thread(target=self._hear, name="tunnel", daemon=True).start()
        with self._told:
            self._told.wait_for(lambda: self.port or self._lost, READY_S)
        if not self.port:
            self.close()
            raise RunFailed("the process that connects this host to the others did not come up")

    def set_service(self, name: str, port: int) -> None:
        """Let other hosts reach a port of this one's loopback by a name."""
        self._order(services={name: port})

    def set_hosts(self, hosts: Sequence[Address]) -> None:
        """Say where the hosts of the next attempt are, in their order."""
        self._order(hosts=[[list(addresses), port] for addresses, port in hosts])

    def forward(
        self, addresses: Sequence[str], port: int, service: str, check: bool = True
    ) -> Forward:
        """Open a way to a service of another host.

        With `check` it is tried once, and an OSError where none of the addresses answers; without,
        the first address is taken as it is.
        """
        number = next(self._numbers)
        order = {"addresses": list(addresses), "port": port, "service": service, "check": check}
        self._order(forward=number, **order)
        limit_s = ANSWER_S * max(1, len(addresses))
        with self._told:
            self._told.wait_for(lambda: number in self._answers or self._lost, limit_s)
            answer = self._answers.pop(number, {"error": "the tunnel gives no answer"})
        if "error" in answer:
            raise OSError(answer["error"])
        return Forward(answer["local"], answer["address"], answer["own"])

    @property
    def lost(self) -> bool:
        """Whether the process is gone, and with it every way to other hosts."""
        return self._lost

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._orders.shutdown(socket.SHUT_RDWR)
        self._orders.close()
        self._process.kill()
        self._process.wait()

    def _order(self, **order: Any) -> None:
        try:
            self._orders.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            self._lost = True

    def _hear(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._orders.makefile("rb") as lines:
            for line in lines:
                self._take(json.loads(line))
        with self._told:
            self._lost = True
            self._told.notify_all()

    def _take(self, told: dict[str, Any]) -> None:
        if "strangers" in told:
            self._strangers(told["strangers"], told["address"], told["why"])
            return
        with self._told:
            if "port" in told:
                self.port = told["port"]
            else:
                self._answers[told["id"]] = told
            self._told.notify_all()
