"""A connection between two hosts of a run: JSON lines, and a thread that reads them.

It runs through the tunnel of each host (`tunnel_process.py`), which encrypts it and lets only hosts
of the run through. Other users of a machine can still reach its loopback, so both sides prove that
they know the secret before anything else is said, each by a hash over what both drew; the secret
itself never travels. A connection that fails is closed; what that means is for its owner to say.
"""

import contextlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from penstock.meter.rendezvous import LOOPBACK

HANDSHAKE_S = 5.0  # for the whole of it, however the bytes come
# A send that blocks for so long has no reader.
SEND_S = 5.0
LONGEST_BYTES, LONGEST_HELLO_BYTES = 64 << 20, 64 << 10

Message = dict[str, Any]


class Forward(Protocol):
    """A way to a service of another host; see `tunnel.py`."""

    @property
    def port(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def own_address(self) -> str: ...


class Forwards(Protocol):
    def forward(self, addresses: Sequence[str], port: int, service: str) -> Forward: ...


class Link:
    """One side. `heard_s` is when the other was last heard, by this host's monotonic clock."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.name, self._socket = name, sock
        self._file = sock.makefile("rb")
        self._sending = threading.Lock()
        self._longest_bytes = LONGEST_HELLO_BYTES
        self.closed = False
        self.heard_s = time.monotonic()
        # Of the hosts, by which each can reach the other; the connection itself is on loopback.
        self.own_address = self.other_address = LOOPBACK

    def send(self, message: Message) -> None:
        """Best effort: a line that does not take it is closed."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError:
                self.close()

    def receive(self) -> Message | None:
        """The next message, waiting for it; None when there will be no more."""
        message = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            line = self._file.readline(self._longest_bytes)
            message = json.loads(line) if line.endswith(b"\n") else None
        self.heard_s = time.monotonic()
        if isinstance(message, dict):
            return message
        self.close()
        return None

    def read_with(self, take: Callable[[Message], None]) -> None:
        """Reads on a thread of its own until the line is closed."""

        def read() -> None:
            try:
                while (message := self.receive()) is not None:
                    take(message)
            finally:  # a message that cannot be taken ends the line, and is seen as that
                self.close()

        threading.Thread(target=read, name=f"link {self.name}", daemon=True).start()

    def settle(self) -> None:
        """Lift the limits of the handshake: from here on silence is judged by beats."""
        self._longest_bytes = LONGEST_BYTES
        seconds = int(SEND_S).to_bytes(8, "little") + bytes(8)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

    def send_last(self, message: Message) -> None:
        """Nothing comes after it; the other side closes the line once it has read it. Closed here
        at once, what the other has not read yet could be lost."""
        self.send(message)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):  # wakes a reader that waits in another thread
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect(
    tunnel: Forwards, addresses: Sequence[str], port: int, secret: str, hello: Message
) -> Link | None:
    """Connect to the host that leads, by the first of its addresses where its tunnel answers."""
    try:
        way = tunnel.forward(addresses, port, "link")
        sock = socket.create_connection((LOOPBACK, way.port), timeout=HANDSHAKE_S)
        sock.settimeout(None)
        link = Link(sock, way.address)
    except OSError:
        return None
    link.own_address, link.other_address = way.own_address, way.address
    with _deadline(link):
        if not _introduce(link, secret, hello):
            link.close()
    return None if link.closed else link


def _introduce(link: Link, secret: str, hello: Message) -> bool:
    first = link.receive()
    if first is None:
        return False
    drawn = (str(first.get("drawn")), secrets.token_hex(16))
    link.send({"hello": hello, "drawn": drawn[1], "proof": _proof(secret, "follows", drawn, hello)})
    answer = link.receive()
    if answer is None or not _same(answer.get("proof"), _proof(secret, "leads", drawn, hello)):
        return False
    link.settle()
    return True


def greeted(sock: socket.socket, secret: str) -> tuple[Link, Message] | None:
    """Take the other side of `connect`: a connection and the hello, or None for a stranger.

    The tunnel has sent one line ahead, with the addresses of both hosts.
    """
    try:
        link = Link(sock, "new")
    except OSError:  # it has hung up already
        sock.close()
        return None
    with _deadline(link):
        hello = _heard(link, secret)
        if hello is None:
            link.close()
    return None if hello is None or link.closed else (link, hello)


def _heard(link: Link, secret: str) -> Message | None:
    origin = link.receive()
    if origin is None:
        return None
    link.own_address, link.other_address = str(origin.get("at")), str(origin.get("from"))
    own = secrets.token_hex(16)
    link.send({"drawn": own})
    said = link.receive()
    if said is None or not isinstance(said.get("hello"), dict):
        return None
    drawn, hello = (own, str(said.get("drawn"))), said["hello"]
    if not _same(said.get("proof"), _proof(secret, "follows", drawn, hello)):
        return None
    link.send({"proof": _proof(secret, "leads", drawn, hello)})
    link.settle()
    return hello


@contextlib.contextmanager
def _deadline(link: Link) -> Iterator[None]:
    """Close the connection if what is done with it takes longer than a handshake may."""
    clock = threading.Timer(HANDSHAKE_S, link.close)
    clock.daemon = True
    clock.start()
    try:
        yield
    finally:
        clock.cancel()


def _proof(secret: str, role: str, drawn: tuple[str, str], hello: Message) -> str:
    """Sign the role of a side, what both drew, and the hello: nothing of it can be used again."""
    said = json.dumps([role, *drawn, hello], sort_keys=True)
    return hmac.new(secret.encode(), said.encode(), "sha256").hexdigest()


def _same(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
