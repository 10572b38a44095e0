"""The tunnel process of a host: it relays connections to and from other hosts over mutual TLS.

It opens the only port of the host that the network can reach. A client must show a certificate made
from the run's secret (`certificates.py`) and then name one service of the host in one line; from
there on bytes are relayed to that service on loopback. In the other direction this process opens
ports on loopback, each of which leads to one service of another host.

    link, shelf, store     ports of the supervisor on this host
    port N                 where a rank of this host listens, as that rank has said

Strangers cost a bounded number of connections, a few seconds each, and one line in the journal.

`tunnel.py` sends orders as JSON lines on a socket. Ranks ask over a Unix socket in the run's
private folder (`train/world/tunnel_store.py`).
"""

import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import ssl
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from penstock.launch.hosts import certificates
from penstock.launch.hosts.relay import relay
from penstock.launch.supervisor.signals import STOP_SIGNALS
from penstock.meter.orphan import die_with
from penstock.meter.rendezvous import LOOPBACK
from penstock.train.world.unix_path import short_path

HANDSHAKE_S = 5.0  # from the connection to the name of the service
CONNECT_S = 3.0
MOST_PENDING = 512  # connections that have not named a service yet
LONGEST_LINE = 256
REPORT_S = 10.0  # between two reports of refused connections
CHECK = "check"  # a service that every host has; it sends one byte


@dataclass
class PendingConnection:
    """A connection that has not named its service yet."""

    tls: ssl.SSLSocket
    address: str
    own_address: str
    deadline_s: float
    line: bytes = b""
    authenticated: bool = False  # its certificate is good


@dataclass
class RefusedConnections:
    """Counts of refused connections, reported in one line however many there are."""

    reported_s: float = -REPORT_S
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # by address and reason

    def add(self, address: str, why: str) -> None:
        self.counts[address, why] += 1

    def report(self, now_s: float) -> dict[str, Any] | None:
        """Return the counts and the most common reason; None where it is too early."""
        if not self.counts or now_s - self.reported_s < REPORT_S:
            return None
        (address, why), _ = self.counts.most_common(1)[0]
        report = {"strangers": self.counts.total(), "address": address, "why": why}
        self.counts.clear()
        self.reported_s = now_s
        return report


class TunnelProcess:
    """The whole process: one loop for new connections and orders, a thread for each relay."""

    def __init__(self, orders: socket.socket, setup: dict[str, Any]) -> None:
        self.orders, self.unread = orders, b""
        self.server, self.client = certificates.contexts(setup["secret"], setup["node"])
        self.services: dict[str, int] = dict(setup["services"])
        self.ports: set[int] = set()  # where ranks of this host listen
        self.hosts: list[tuple[list[str], int]] = []  # addresses and port of each host's tunnel
        self.forwards: dict[tuple[str, int, str], socket.socket] = {}
        self.pending: deque[PendingConnection] = deque()
        self.refused = RefusedConnections()
        self.lock = threading.Lock()  # of ports, hosts, forwards: ranks ask on threads
        self.selector = selectors.DefaultSelector()
        self.selector.register(orders, selectors.EVENT_READ, self._handle_orders)
        self.port = self._listen(setup["bind"])
        path = Path(setup["socket"])
        path.unlink(missing_ok=True)
        ranks = socket.socket(socket.AF_UNIX)
        with short_path(path) as short:
            ranks.bind(short)
        ranks.listen(128)
        threading.Thread(target=self._answer_ranks, args=(ranks,), daemon=True).start()

    def _listen(self, addresses: Sequence[str]) -> int:
        """Open the same port at every address by which other hosts reach this one."""
        for _ in range(50):
            listeners = [socket.create_server((addresses[0], 0), backlog=1024)]
            port = listeners[0].getsockname()[1]
            try:
                for address in addresses[1:]:
                    listeners.append(socket.create_server((address, port), backlog=1024))
            except OSError:  # another process has that port at one of the addresses
                for listener in listeners:
                    listener.close()
                continue
            for listener in listeners:
                listener.setblocking(False)
                accept = partial(self._accept, listener)
                self.selector.register(listener, selectors.EVENT_READ, accept)
            return port
        raise OSError(f"no port is free at all of {', '.join(addresses)}")

    def serve(self) -> None:
        """Serve until the supervisor closes its socket."""
        self.send(port=self.port)
        while True:
            for key, _ in self.selector.select(0.5 if self.pending else REPORT_S / 2):
                key.data()
            self._drop_late()
            if report := self.refused.report(time.monotonic()):
                self.send(**report)

    def send(self, **facts: Any) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone; this process ends next
            self.orders.sendall(json.dumps(facts).encode() + b"\n")

    # Connections of other hosts

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, (address, *_) = listener.accept()
        except OSError:  # it has hung up already, or there is no descriptor left for it
            self._make_room()
            return
        try:
            sock.setblocking(False)
            own = sock.getsockname()[0]
            tls = self.server.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:  # a port scan: connected and reset
            sock.close()
            self.refused.add(address, "it hung up")
            return
        if len(self.pending) >= MOST_PENDING:
            self._make_room()
        connection = PendingConnection(tls, address, own, time.monotonic() + HANDSHAKE_S)
        self.pending.append(connection)
        self.selector.register(tls, selectors.EVENT_READ, partial(self._continue, connection))

    def _make_room(self) -> None:
        """Drop the oldest connection of the address that has the most of them."""
        counts = Counter(one.address for one in self.pending)
        if counts:
            ((address, _),) = counts.most_common(1)
            oldest = next(one for one in self.pending if one.address == address)
            self._refuse(oldest, "too many connections at once")

    def _continue(self, connection: PendingConnection) -> None:
        """Continue a handshake, then read the line that names the service, then relay."""
        tls = connection.tls
        try:
            if not connection.authenticated:
                tls.do_handshake()
                connection.authenticated = True
            while not connection.line.endswith(b"\n"):
                data = tls.recv(1)  # one byte: those after the line belong to the service
                if not data or len(connection.line) > LONGEST_LINE:
                    return self._refuse(connection, "it named no service")
                connection.line += data
        except ssl.SSLWantReadError:
            return self._wait_for(connection, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            return self._wait_for(connection, selectors.EVENT_WRITE)
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or type(error).__name__
            return self._refuse(connection, f"no certificate of this run ({why})")
        self._forget(connection)
        service = connection.line.decode(errors="replace").strip()
        port = self._port_of(service)
        if port is None:
            with contextlib.suppress(OSError):
                tls.send(b"!" if service == CHECK else b"")
            tls.close()
            return None
        origin = {"from": connection.address, "at": connection.own_address}
        preface = json.dumps(origin).encode() + b"\n" if connection.line == b"link\n" else b""
        threading.Thread(target=_relay_in, args=(tls, port, preface), daemon=True).start()
        return None

    def _port_of(self, service: str) -> int | None:
        kind, _, number = service.partition(" ")
        with self.lock:
            if kind == "port" and number.isdecimal() and int(number) in self.ports:
                return int(number)
            return self.services.get(service)

    def _wait_for(self, connection: PendingConnection, events: int) -> None:
        self.selector.modify(connection.tls, events, partial(self._continue, connection))

    def _forget(self, connection: PendingConnection) -> None:
        self.selector.unregister(connection.tls)
        self.pending.remove(connection)

    def _refuse(self, connection: PendingConnection, why: str) -> None:
        self._forget(connection)
        connection.tls.close()
        self.refused.add(connection.address, why)

    def _drop_late(self) -> None:
        while self.pending and self.pending[0].deadline_s < time.monotonic():
            self._refuse(self.pending[0], f"no handshake within {HANDSHAKE_S:g} s")

    # Orders of the supervisor

    def _handle_orders(self) -> None:
        data = self.orders.recv(1 << 16)
        if not data:
            os._exit(0)  # the relays end with the supervisor
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "forward" in order:
                threading.Thread(target=self._order_forward, args=(order,), daemon=True).start()
            else:
                with self.lock:
                    self.services |= order.get("services", {})
                    if "hosts" in order:
                        self._begin_attempt(order["hosts"])

    def _order_forward(self, order: dict[str, Any]) -> None:
        """Open a forward for the supervisor and send it the port."""
        address, own = order["addresses"][0], ""
        try:
            if order["check"]:
                tls = self._connect(order["addresses"], order["port"], CHECK)
                address, own = tls.getpeername()[0], tls.getsockname()[0]
                tls.close()
            local = self.forward(address, order["port"], order["service"])
            self.send(id=order["forward"], local=local, address=address, own=own)
        except OSError as error:
            self.send(id=order["forward"], error=str(error))

    def forward(self, address: str, port: int, service: str) -> int:
        """Return a loopback port that leads to a service of another host."""
        key = (address, port, service)
        with self.lock:
            if key not in self.forwards:
                listener = socket.create_server((LOOPBACK, 0), backlog=128)
                self.forwards[key] = listener
                accept = self._accept_local
                threading.Thread(target=accept, args=(listener, key), daemon=True).start()
            return self.forwards[key].getsockname()[1]

    def _begin_attempt(self, hosts: list[Any]) -> None:
        """Set the hosts and forget where ranks of earlier attempts listened."""
        self.hosts = [(list(addresses), port) for addresses, port in hosts]
        self.ports.clear()
        for key in [key for key in self.forwards if key[2].startswith("port ")]:
            with contextlib.suppress(OSError):
                self.forwards.pop(key).shutdown(socket.SHUT_RDWR)  # wakes its `accept`

    def _accept_local(self, listener: socket.socket, to: tuple[str, int, str]) -> None:
        with listener, contextlib.suppress(OSError):  # the listener was shut down
            while True:
                local, _ = listener.accept()
                threading.Thread(target=self._relay_out, args=(local, to), daemon=True).start()

    def _relay_out(self, local: socket.socket, to: tuple[str, int, str]) -> None:
        address, port, service = to
        try:
            tls = self._connect([address], port, service)
        except OSError:  # the client sees a closed connection, as from a dead service
            local.close()
            return
        relay(tls, local)

    def _connect(self, addresses: Sequence[str], port: int, service: str) -> ssl.SSLSocket:
        """Connect to a service of another host, at the first address that answers."""
        error: OSError = OSError("no address is known")
        for address in addresses:
            try:
                sock = socket.create_connection((address, port), timeout=CONNECT_S)
                sock.settimeout(HANDSHAKE_S)
                tls = self.client.wrap_socket(sock)
                tls.sendall(service.encode() + b"\n")
                # The server checks our certificate after our part of the handshake is done.
                if service == CHECK and not tls.recv(1):
                    raise OSError(f"{address}:{port} is no host of this run")
                return tls
            except OSError as why:
                error = why
        raise error

    # Questions of ranks

    def _answer_ranks(self, listener: socket.socket) -> None:
        while True:
            rank, _ = listener.accept()
            threading.Thread(target=self._answer_rank, args=(rank,), daemon=True).start()

    def _answer_rank(self, rank: socket.socket) -> None:
        """Note where a rank listens, or return a loopback port to a rank of another host."""
        with rank, contextlib.suppress(OSError, ValueError):  # the rank is gone
            rank.settimeout(HANDSHAKE_S)
            question = json.loads(rank.makefile("rb").readline(LONGEST_LINE))
            if "listens" in question:
                with self.lock:
                    self.ports.add(int(question["listens"]))
                answer = {"local": 0}
            else:
                with self.lock:
                    addresses, port = self.hosts[question["host"]]
                service = f"port {int(question['port'])}"
                answer = {"local": self.forward(addresses[0], port, service)}
            rank.sendall(json.dumps(answer).encode() + b"\n")


def _relay_in(tls: ssl.SSLSocket, port: int, preface: bytes) -> None:
    """Relay a connection of another host to a service of this one."""
    try:
        local = socket.create_connection((LOOPBACK, port), timeout=CONNECT_S)
        local.sendall(preface)
    except OSError:
        tls.close()
        return
    relay(tls, local)


def main(orders: socket.socket, parent: int) -> None:
    die_with(parent)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the supervisor handles stops
    os.umask(0o077)  # only the owner may use the socket for ranks
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    first = b""
    while not first.endswith(b"\n"):
        data = orders.recv(1)  # one byte: those after the line are orders
        if not data:
            return
        first += data
    TunnelProcess(orders, json.loads(first)).serve()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
