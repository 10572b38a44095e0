"""The process that carries what a host says to the other hosts of its run, over mutual TLS.

One port of each host is open to the network, and only here. Whoever connects must show a
certificate made from the run's secret (`certificates.py`) and then name one service of the host in
one line; from there on bytes are relayed to that service on loopback. In the other direction this
process opens ports on loopback, each of which leads to one service of another host.

    link, shelf, store     ports of the supervisor on this host
    port N                 where a rank of this host listens, as that rank has told

Strangers cost a bounded number of connections, a few seconds each, and one line in the journal.

It is told what to do by JSON lines on a socket, from `tunnel.py`; ranks ask by a Unix socket in the
run's private folder (`train/world/tunnel_store.py`).
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
from penstock.meter.orphan import die_with
from penstock.meter.rendezvous import LOOPBACK
from penstock.train.world.unix_path import short_path

HANDSHAKE_S = 5.0  # from the connection to the name of the service
CONNECT_S = 3.0
MOST_WAITING = 512  # connections that have not named a service yet
LONGEST_LINE = 256
TELL_S = 10.0  # between two reports of strangers
CHECK = "check"  # a service that is always there and says one byte


@dataclass
class Newcomer:
    """A connection that has not named its service yet."""

    tls: ssl.SSLSocket
    address: str
    own_address: str
    deadline_s: float
    line: bytes = b""
    shaken: bool = False  # hands: its certificate is good


@dataclass
class Strangers:
    """Connections that were refused, told in few words however many there are."""

    told_s: float = -TELL_S
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, address: str, why: str) -> None:
        self.seen[address, why] += 1

    def report(self, now_s: float) -> dict[str, Any] | None:
        if not self.seen or now_s - self.told_s < TELL_S:
            return None
        (address, why), _ = self.seen.most_common(1)[0]
        told = {"strangers": self.seen.total(), "address": address, "why": why}
        self.seen.clear()
        self.told_s = now_s
        return told


class Tunnels:
    """The whole process: one loop for newcomers and orders, a thread for each relay."""

    def __init__(self, orders: socket.socket, setup: dict[str, Any]) -> None:
        self.orders, self.unread = orders, b""
        self.server, self.client = certificates.contexts(setup["secret"], setup["node"])
        self.services: dict[str, int] = dict(setup["services"])
        self.ports: set[int] = set()  # where ranks of this host listen
        self.hosts: list[tuple[list[str], int]] = []  # addresses and port of each host's tunnel
        self.forwards: dict[tuple[str, int, str], socket.socket] = {}
        self.waiting: deque[Newcomer] = deque()
        self.strangers = Strangers()
        self.lock = threading.Lock()  # of ports, hosts, forwards: ranks ask on threads
        self.selector = selectors.DefaultSelector()
        self.selector.register(orders, selectors.EVENT_READ, self._obey)
        self.port = self._listen(setup["bind"])
        path = Path(setup["socket"])
        path.unlink(missing_ok=True)
        asked = socket.socket(socket.AF_UNIX)
        with short_path(path) as short:
            asked.bind(short)
        asked.listen(128)
        threading.Thread(target=self._answer_ranks, args=(asked,), daemon=True).start()

    def _listen(self, addresses: Sequence[str]) -> int:
        """Open the same port at every address by which other hosts reach this one."""
        for _ in range(50):
            made = [socket.create_server((addresses[0], 0), backlog=1024)]
            port = made[0].getsockname()[1]
            try:
                for address in addresses[1:]:
                    made.append(socket.create_server((address, port), backlog=1024))
            except OSError:  # somebody has that port at another address
                for one in made:
                    one.close()
                continue
            for one in made:
                one.setblocking(False)
                self.selector.register(one, selectors.EVENT_READ, partial(self._accept, one))
            return port
        raise OSError(f"no port is free at all of {', '.join(addresses)}")

    def serve(self) -> None:
        """Until the other side hangs up."""
        self.tell(port=self.port)
        while True:
            for key, _ in self.selector.select(0.5 if self.waiting else TELL_S / 2):
                key.data()
            self._drop_late()
            if told := self.strangers.report(time.monotonic()):
                self.tell(**told)

    def tell(self, **facts: Any) -> None:
        with contextlib.suppress(OSError):  # the reader is gone, and this process goes next
            self.orders.sendall(json.dumps(facts).encode() + b"\n")

    # Newcomers

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
            self.strangers.add(address, "it hung up")
            return
        if len(self.waiting) >= MOST_WAITING:
            self._make_room()
        made = Newcomer(tls, address, own, time.monotonic() + HANDSHAKE_S)
        self.waiting.append(made)
        self.selector.register(tls, selectors.EVENT_READ, partial(self._hear, made))

    def _make_room(self) -> None:
        """Drop the oldest connection of the address that has the most of them."""
        counts = Counter(one.address for one in self.waiting)
        if counts:
            ((address, _),) = counts.most_common(1)
            oldest = next(one for one in self.waiting if one.address == address)
            self._refuse(oldest, "too many connections at once")

    def _hear(self, newcomer: Newcomer) -> None:
        """Go on with a handshake, then with the line that names the service."""
        tls = newcomer.tls
        try:
            if not newcomer.shaken:
                tls.do_handshake()
                newcomer.shaken = True
            while not newcomer.line.endswith(b"\n"):
                data = tls.recv(1)  # not a byte of what belongs to the service
                if not data or len(newcomer.line) > LONGEST_LINE:
                    return self._refuse(newcomer, "it named no service")
                newcomer.line += data
        except ssl.SSLWantReadError:
            return self._wait_for(newcomer, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            return self._wait_for(newcomer, selectors.EVENT_WRITE)
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or type(error).__name__
            return self._refuse(newcomer, f"no certificate of this run ({why})")
        self._let_go(newcomer)
        service = newcomer.line.decode(errors="replace").strip()
        port = self._port_of(service)
        if port is None:
            with contextlib.suppress(OSError):
                tls.send(b"!" if service == CHECK else b"")
            tls.close()
            return None
        origin = {"from": newcomer.address, "at": newcomer.own_address}
        preface = json.dumps(origin).encode() + b"\n" if newcomer.line == b"link\n" else b""
        threading.Thread(target=_inward, args=(tls, port, preface), daemon=True).start()
        return None

    def _port_of(self, service: str) -> int | None:
        kind, _, number = service.partition(" ")
        with self.lock:
            if kind == "port" and number.isdecimal() and int(number) in self.ports:
                return int(number)
            return self.services.get(service)

    def _wait_for(self, newcomer: Newcomer, events: int) -> None:
        self.selector.modify(newcomer.tls, events, partial(self._hear, newcomer))

    def _let_go(self, newcomer: Newcomer) -> None:
        self.selector.unregister(newcomer.tls)
        self.waiting.remove(newcomer)

    def _refuse(self, newcomer: Newcomer, why: str) -> None:
        self._let_go(newcomer)
        newcomer.tls.close()
        self.strangers.add(newcomer.address, why)

    def _drop_late(self) -> None:
        while self.waiting and self.waiting[0].deadline_s < time.monotonic():
            self._refuse(self.waiting[0], f"no handshake within {HANDSHAKE_S:g} s")

    # Orders

    def _obey(self) -> None:
        data = self.orders.recv(1 << 16)
        if not data:
            os._exit(0)  # the relays go with the host that they served
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "forward" in order:
                threading.Thread(target=self._forward_for, args=(order,), daemon=True).start()
            else:
                with self.lock:
                    self.services |= order.get("services", {})
                    if "hosts" in order:
                        self._new_attempt(order["hosts"])

    def _forward_for(self, order: dict[str, Any]) -> None:
        address, own = order["addresses"][0], ""
        try:
            if order["check"]:
                found = self._reach(order["addresses"], order["port"], CHECK)
                address, own = found.getpeername()[0], found.getsockname()[0]
                found.close()
            local = self.forward(address, order["port"], order["service"])
            self.tell(id=order["forward"], local=local, address=address, own=own)
        except OSError as error:
            self.tell(id=order["forward"], error=str(error))

    def forward(self, address: str, port: int, service: str) -> int:
        """Return a port of loopback that leads to a service of another host."""
        key = (address, port, service)
        with self.lock:
            if key not in self.forwards:
                listener = socket.create_server((LOOPBACK, 0), backlog=128)
                self.forwards[key] = listener
                threading.Thread(target=self._lead, args=(listener, key), daemon=True).start()
            return self.forwards[key].getsockname()[1]

    def _new_attempt(self, hosts: list[Any]) -> None:
        """Forget where ranks of earlier attempts listened."""
        self.hosts = [(list(addresses), port) for addresses, port in hosts]
        self.ports.clear()
        for key in [key for key in self.forwards if key[2].startswith("port ")]:
            with contextlib.suppress(OSError):
                self.forwards.pop(key).shutdown(socket.SHUT_RDWR)  # wakes who waits in `accept`

    def _lead(self, listener: socket.socket, to: tuple[str, int, str]) -> None:
        with listener, contextlib.suppress(OSError):  # of a listener that was shut down
            while True:
                local, _ = listener.accept()
                threading.Thread(target=self._outward, args=(local, to), daemon=True).start()

    def _outward(self, local: socket.socket, to: tuple[str, int, str]) -> None:
        address, port, service = to
        try:
            tls = self._reach([address], port, service)
        except OSError:  # whoever connected sees a closed connection, as from a dead service
            local.close()
            return
        relay(tls, local)

    def _reach(self, addresses: Sequence[str], port: int, service: str) -> ssl.SSLSocket:
        error: OSError = OSError("no address is known")
        for address in addresses:
            try:
                sock = socket.create_connection((address, port), timeout=CONNECT_S)
                sock.settimeout(HANDSHAKE_S)
                tls = self.client.wrap_socket(sock)
                tls.sendall(service.encode() + b"\n")
                # The server judges our certificate after our part of the handshake is done.
                if service == CHECK and not tls.recv(1):
                    raise OSError(f"{address}:{port} is no host of this run")
                return tls
            except OSError as why:
                error = why
        raise error

    # Ranks

    def _answer_ranks(self, asked: socket.socket) -> None:
        while True:
            line, _ = asked.accept()
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError, ValueError):  # the rank is gone
            line.settimeout(HANDSHAKE_S)
            question = json.loads(line.makefile("rb").readline(LONGEST_LINE))
            if "listens" in question:
                with self.lock:
                    self.ports.add(int(question["listens"]))
                answer = {"local": 0}
            else:
                with self.lock:
                    addresses, port = self.hosts[question["host"]]
                service = f"port {int(question['port'])}"
                answer = {"local": self.forward(addresses[0], port, service)}
            line.sendall(json.dumps(answer).encode() + b"\n")


def _inward(tls: ssl.SSLSocket, port: int, preface: bytes) -> None:
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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # stops are the supervisor's to handle
    os.umask(0o077)  # the socket for ranks is the owner's alone
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    first = b""
    while not first.endswith(b"\n"):
        data = orders.recv(1)  # not a byte of the orders that follow
        if not data:
            return
        first += data
    Tunnels(orders, json.loads(first)).serve()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
