"""Limits on the connections of a server: per client, in all, and in time without a request.

A client that opens connections and sends nothing, or a byte now and then, would block all others.
So a connection must send its request within some seconds. If there are too many, the one that has
been silent longest is closed; those that are being answered stay.
"""

import contextlib
import resource
import socket
import threading
import time
from dataclasses import dataclass

MOST = 256
MOST_OF_ONE = 64  # a browser opens six, and a tunnel or proxy brings several people
REQUEST_S = 10.0  # for a whole request to arrive


@dataclass
class Connection:
    """An open connection. `waits_since` is None while its request is being answered."""

    sock: socket.socket
    client: str
    waits_since: float | None


class Connections:
    """All open connections of a server. Thread-safe."""

    def __init__(self, most: int | None = None, most_of_one: int = MOST_OF_ONE) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = most or max(8, min(MOST, files // 4))
        self.most_of_one = min(most_of_one, self.most)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, Connection] = {}

    def add(self, sock: socket.socket, client: str) -> bool:
        """Add a connection; return False if there is no room and all others are at work."""
        with self._lock:
            of_client = [other for other in self._open.values() if other.client == client]
            if len(of_client) >= self.most_of_one and not self._make_room(of_client):
                return False
            if len(self._open) >= self.most and not self._make_room(list(self._open.values())):
                return False
            self._open[sock] = Connection(sock, client, time.monotonic())
            return True

    def remove(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.pop(sock, None)

    def waits(self, sock: socket.socket) -> None:
        """Start the time in which the connection must send its next request."""
        self._note(sock, time.monotonic())

    def works(self, sock: socket.socket) -> None:
        """Stop that time: the whole request has arrived."""
        self._note(sock, None)

    def end_silent(self, longest_s: float = REQUEST_S) -> None:
        """End those that have not sent their request in time."""
        before = time.monotonic() - longest_s
        with self._lock:
            for since, connection in self._waiting(list(self._open.values())):
                if since < before:
                    self._end(connection)

    def _note(self, sock: socket.socket, moment: float | None) -> None:
        with self._lock:
            if connection := self._open.get(sock):
                connection.waits_since = moment

    def _make_room(self, among: list[Connection]) -> bool:
        waiting = self._waiting(among)
        if waiting:
            self._end(min(waiting, key=lambda pair: pair[0])[1])
        return bool(waiting)

    def _waiting(self, among: list[Connection]) -> list[tuple[float, Connection]]:
        return [(c.waits_since, c) for c in among if c.waits_since is not None]

    def _end(self, connection: Connection) -> None:
        """Shut a connection down: its thread reads the end of the stream and closes it."""
        del self._open[connection.sock]
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
