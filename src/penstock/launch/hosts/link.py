"""A connection between two hosts of a run: JSON lines, and a thread that reads them.

It goes through the tunnel of each host (`tunnel_process.py`), which encrypts it and admits only
hosts of the run. Other users of a machine can still reach its loopback, so both sides first prove
that they know the secret, each by a hash over random numbers of both; the secret itself is never
sent. A connection that fails is closed, and its owner decides what that means.
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

from penstock.launch.hosts.tunnel import Forward
from penstock.meter.rendezvous import LOOPBACK

HANDSHAKE_S = 5.0  # limit for all of it, even if the bytes come one by one
SEND_S = 5.0  # a send that blocks for so long has no reader
LONGEST_BYTES, LONGEST_HELLO_BYTES = 64 << 20, 64 << 10

Message = dict[str, Any]


class Forwarder(Protocol):
    """A `Tunnel`, as far as a link needs one."""

    def forward(self, addresses: Sequence[str], port: int, service: str) -> Forward: ...


class Link:
    """One side of a connection. `heard_s` is when the other side was last heard (monotonic)."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.name, self._socket = name, sock
        self._file = sock.makefile("rb")
        self._sending = threading.Lock()
        self._longest_bytes = LONGEST_HELLO_BYTES
        self.closed = False
        self.heard_s = time.monotonic()
        # Addresses of the hosts in the network; the connection itself is on loopback.
        self.own_address = self.other_address = LOOPBACK

    def send(self, message: Message) -> None:
        """Send a message; close the connection if that fails."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError:
                self.close()

    def receive(self) -> Message | None:
        """Wait for the next message and return it; None when there will be no more."""
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
        """Call `take` with each message, on a new thread, until the connection is closed."""

        def read() -> None:
            try:
                while (message := self.receive()) is not None:
                    take(message)
            finally:  # also where `take` fails: the other side sees a closed connection
                self.close()

        threading.Thread(target=read, name=f"link {self.name}", daemon=True).start()

    def lift_handshake_limits(self) -> None:
        """Allow long messages and silence; from here on, missing beats end the connection."""
        self._longest_bytes = LONGEST_BYTES
        seconds = int(SEND_S).to_bytes(8, "little") + bytes(8)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

    def send_last(self, message: Message) -> None:
        """Send the last message. The other side closes the connection once it has read it.

        If this side closed it at once, unread messages could be lost.
        """
        self.send(message)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):  # wakes a reader that waits in another thread
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect(
    tunnel: Forwarder, addresses: Sequence[str], port: int, secret: str, hello: Message
) -> Link | None:
    """Connect to the leader, by the first of its addresses where its tunnel answers."""
    try:
        forward = tunnel.forward(addresses, port, "link")
        sock = socket.create_connection((LOOPBACK, forward.port), timeout=HANDSHAKE_S)
        sock.settimeout(None)
        link = Link(sock, forward.address)
    except OSError:
        return None
    link.own_address, link.other_address = forward.own_address, forward.address
    with _handshake_deadline(link):
        if not _authenticate(link, secret, hello):
            link.close()
    return None if link.closed else link


def _authenticate(link: Link, secret: str, hello: Message) -> bool:
    """Prove to the leader that this host knows the secret, and check the leader's proof."""
    first = link.receive()
    if first is None:
        return False
    nonces = (str(first.get("drawn")), secrets.token_hex(16))
    proof = _proof(secret, "follows", nonces, hello)
    link.send({"hello": hello, "drawn": nonces[1], "proof": proof})
    answer = link.receive()
    if answer is None or not _equal(answer.get("proof"), _proof(secret, "leads", nonces, hello)):
        return False
    link.lift_handshake_limits()
    return True


def accept(sock: socket.socket, secret: str) -> tuple[Link, Message] | None:
    """Take the other side of `connect`; return the link and the hello, or None for a stranger.

    The tunnel has sent one line ahead, with the addresses of both hosts.
    """
    try:
        link = Link(sock, "new")
    except OSError:  # it has hung up already
        sock.close()
        return None
    with _handshake_deadline(link):
        hello = _check_hello(link, secret)
        if hello is None:
            link.close()
    return None if hello is None or link.closed else (link, hello)


def _check_hello(link: Link, secret: str) -> Message | None:
    """Return the hello of a host that knows the secret, and prove to it that this one does too."""
    origin = link.receive()
    if origin is None:
        return None
    link.own_address, link.other_address = str(origin.get("at")), str(origin.get("from"))
    nonce = secrets.token_hex(16)
    link.send({"drawn": nonce})
    answer = link.receive()
    if answer is None or not isinstance(answer.get("hello"), dict):
        return None
    nonces, hello = (nonce, str(answer.get("drawn"))), answer["hello"]
    if not _equal(answer.get("proof"), _proof(secret, "follows", nonces, hello)):
        return None
    link.send({"proof": _proof(secret, "leads", nonces, hello)})
    link.lift_handshake_limits()
    return hello


@contextlib.contextmanager
def _handshake_deadline(link: Link) -> Iterator[None]:
    """Close the connection if the block takes longer than `HANDSHAKE_S`."""
    timer = threading.Timer(HANDSHAKE_S, link.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _proof(secret: str, role: str, nonces: tuple[str, str], hello: Message) -> str:
    """Sign the role of a side, the nonces of both and the hello: it cannot be replayed."""
    text = json.dumps([role, *nonces, hello], sort_keys=True)
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()


def _equal(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
