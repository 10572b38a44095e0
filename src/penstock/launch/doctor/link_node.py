"""One end of a measurement between two nodes: what a TCP connection carries, and how soon.

A node listens at its own addresses on a port that the kernel picks, and talks only to a peer that
begins with the token of this examination. Nothing that is sent means anything.

On a busy node the two processes wait for a core, and not for the link. The kernel tells how long
they did, and that time is left out: a link is not called slow because somebody else computes.
"""

import contextlib
import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.launch.supervisor import addresses

CONNECT_S, STALLED_S = 3.0, 10.0
TOKEN_BYTES = 32
PINGS = 40
_CHUNK = bytes(1 << 18)
_BUFFER_BYTES = 1 << 20  # what a slow link still has to carry when the time is over
_RESULT = struct.Struct("!Qdd")  # bytes, seconds, of which were spent waiting for a core
_MOST_WAITING = 0.9  # of the time that is left out at most
Facts = dict[str, Any]


class LinkListener:
    """The end that listens, for as long as an examination takes."""

    def __init__(self, token: str, interface: str | None) -> None:
        self._token = bytes.fromhex(token)
        self.addresses = addresses.own(interface)
        first = _listen(self.addresses[0], 0)
        self.port: int = first.getsockname()[1]
        self._listeners = [first, *(_listen(one, self.port) for one in self.addresses[1:])]
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def close(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # else a thread in `accept` keeps it open
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            try:
                _prepare(peer)
                given = _exactly(peer, TOKEN_BYTES)
                if not hmac.compare_digest(given, self._token):
                    return
                kind = _exactly(peer, 1)
                if kind == b"p":
                    while byte := peer.recv(1):
                        peer.sendall(byte)
                elif kind == b"s":
                    peer.sendall(_RESULT.pack(*_drain(peer)))
            except OSError:
                return


def _listen(address: str, port: int) -> socket.socket:
    return socket.create_server((address, port), backlog=128)


def measure(peers: Sequence[str], port: int, token: str, for_s: float) -> Facts:
    """Measure the link to another node: the bytes per second of what is sent there, and the seconds
    of one way.
    """
    address, why = _reachable(peers, port)
    if address is None:
        return {"problem": why}
    try:
        latency_s = _latency(address, port, token)
        rate, waited = _send(address, port, token, for_s)
    except OSError as error:
        return {"problem": f"the connection broke: {error}"}
    found = {"address": address, "latency_s": latency_s, "bytes_per_s": rate, "waited": waited}
    return {"problem": "", **found}


def _reachable(peers: Sequence[str], port: int) -> tuple[str | None, str]:
    why = "it has no address"
    for address in peers:
        try:
            socket.create_connection((address, port), CONNECT_S).close()
            return address, ""
        except OSError as error:
            why = f"no connection to {address} port {port}: {error}"
    return None, why


def _open(address: str, port: int, token: str, kind: bytes) -> socket.socket:
    peer = socket.create_connection((address, port), CONNECT_S)
    _prepare(peer)
    peer.sendall(bytes.fromhex(token) + kind)
    return peer


def _prepare(peer: socket.socket) -> None:
    peer.settimeout(STALLED_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


def _latency(address: str, port: int, token: str) -> float:
    """Return half the shortest time that one byte took to come back."""
    with _open(address, port, token, b"p") as peer:
        shortest = float("inf")
        for _ in range(PINGS):
            began = time.perf_counter()
            peer.sendall(b".")
            _exactly(peer, 1)
            shortest = min(shortest, time.perf_counter() - began)
    return shortest / 2


def _send(address: str, port: int, token: str, for_s: float) -> tuple[float, float]:
    """Return the rate, and the share of the time in which an end waited for a core."""
    with _open(address, port, token, b"s") as peer:
        waited_s = _pour(peer, for_s)
        peer.shutdown(socket.SHUT_WR)
        count, seconds, waited_there_s = _RESULT.unpack(_exactly(peer, _RESULT.size))
    if not seconds:
        return 0.0, 0.0
    waited = min(_MOST_WAITING, (waited_s + waited_there_s) / seconds)
    return count / (seconds * (1 - waited)), waited


def _pour(peer: socket.socket, for_s: float) -> float:
    """Send for a while; return the seconds that this thread waited for a core."""
    before, until = _waited_s(), time.perf_counter() + for_s
    while time.perf_counter() < until:
        peer.sendall(_CHUNK)
    return _waited_s() - before


def _drain(peer: socket.socket) -> tuple[int, float, float]:
    """Read to the end; return the bytes after the first arrival, the seconds since then, and those
    in which this thread waited for a core.
    """
    buffer = bytearray(1 << 20)
    peer.recv_into(buffer)
    before, began, count, last = _waited_s(), time.perf_counter(), 0, 0.0
    while got := peer.recv_into(buffer):
        count += got
        last = time.perf_counter()
    return count, max(0.0, last - began), _waited_s() - before


def _waited_s() -> float:
    """Return how long this thread could have run and had no core, since it began; 0 if unknown."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _exactly(peer: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = peer.recv(size - len(found))
        if not part:
            raise ConnectionError("the other end closed the connection")
        found += part
    return found


def new_token() -> str:
    """Return a word that only the nodes of one examination know."""
    return os.urandom(TOKEN_BYTES).hex()
