"""A line between two hosts of a run: JSON lines over TCP, and a thread that reads them.

Both sides prove that they know the secret of the lease before anything else is said, each by a hash
over what the other drew, so the secret itself never travels. A line that fails is closed; what that
means is for its owner to say.
"""

import contextlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

CONNECT_S = 3.0
# A send that blocks for so long has no reader.
SEND_S = 5.0
LONGEST_BYTES = 64 << 20

Message = dict[str, Any]


class Link:
    """One side. `heard_s` is when the other was last heard, by this host's monotonic clock."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.name, self._socket = name, sock
        self._file = sock.makefile("rb")
        self._sending = threading.Lock()
        self.closed = False
        self.heard_s = time.monotonic()
        # What this side's address looks like to the other: the one that others can reach it by.
        self.own_address: str = sock.getsockname()[0]
        self.other_address: str = sock.getpeername()[0]

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
        try:
            line = self._file.readline(LONGEST_BYTES)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            message = None
        if message is None:
            self.close()
        self.heard_s = time.monotonic()
        return message

    def read_with(self, take: Callable[[Message], None]) -> None:
        """Reads on a thread of its own until the line is closed."""

        def read() -> None:
            try:
                while (message := self.receive()) is not None:
                    take(message)
            finally:  # a message that cannot be taken ends the line, and is seen as that
                self.close()

        threading.Thread(target=read, name=f"link {self.name}", daemon=True).start()

    def timeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

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


def connect(addresses: tuple[str, ...], port: int, secret: str, hello: Message) -> Link | None:
    """A line to the host that leads, by the first of its addresses where it answers."""
    for address in addresses:
        try:
            sock = socket.create_connection((address, port), timeout=CONNECT_S)
        except OSError:
            continue
        link = Link(sock, address)
        if _greet(link, secret, hello):
            return link
        link.close()
    return None


def _greet(link: Link, secret: str, hello: Message) -> bool:
    drawn = secrets.token_hex(16)
    first = link.receive()
    if first is None:
        return False
    link.send({"hello": hello, "drawn": drawn, "proof": _proof(secret, str(first.get("drawn")))})
    answer = link.receive()
    if answer is None or not hmac.compare_digest(str(answer.get("proof")), _proof(secret, drawn)):
        return False
    _steady(link)
    return True


def greeted(sock: socket.socket, secret: str) -> tuple[Link, Message] | None:
    """The other side of `connect`: a line and the hello, or None where it knows no secret."""
    sock.settimeout(CONNECT_S)
    link = Link(sock, "new")
    drawn = secrets.token_hex(16)
    link.send({"drawn": drawn})
    said = link.receive()
    if said is None or not hmac.compare_digest(str(said.get("proof")), _proof(secret, drawn)):
        link.close()
        return None
    link.send({"proof": _proof(secret, str(said.get("drawn")))})
    _steady(link)
    return link, said["hello"]


def _steady(link: Link) -> None:
    """Reading may wait for ever, since silence is judged by beats; sending may not."""
    link.timeout(None)
    seconds = int(SEND_S).to_bytes(8, "little") + bytes(8)
    link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)


def _proof(secret: str, drawn: str) -> str:
    return hmac.new(secret.encode(), drawn.encode(), "sha256").hexdigest()
