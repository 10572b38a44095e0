"""A relay that copies bytes between a TLS connection and a local one until both have ended.

On the TLS connection bytes are in frames: four bytes of length, then as many bytes. A frame of
length zero ends one direction while the other goes on. TLS has an end message of its own, but
Python's `ssl` cannot send it and read on. An end without such a frame means that the peer is lost:
then the local connection is closed at once, so that its user notices.

An OpenSSL connection is not safe to read and write from two threads, so one thread does both.
"""

import contextlib
import select
import socket
import ssl
import time
from abc import ABC, abstractmethod

BUFFER_BYTES = 1 << 18
HEADER_BYTES = 4
DRAIN_S = 30.0  # how long one direction may go on without a byte after the other has ended
_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class _Lost(Exception):
    """One side of a relay that is gone."""


class _Direction(ABC):
    """Bytes on their way from one socket to another."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.buffer = memoryview(bytearray(BUFFER_BYTES + 2 * HEADER_BYTES))
        self.start = self.end = 0  # of what was read and not written yet
        self.ended = self.closed = False  # by its source; and passed on to its target

    def move(self) -> bool:
        """Read and write as far as possible without waiting; return whether bytes have moved."""
        moved = False
        while not self.closed:
            if self.start == self.end and not self.ended:
                self.start = self.end = 0
                self.read()
            before = self.start
            self._write()
            if self.ended and self.start == self.end:
                self.close()
                return True
            if self.start == before:
                break
            moved = True
        return moved

    @abstractmethod
    def read(self) -> None:
        """Fill the buffer with what the target is to get."""

    def close(self) -> None:
        """Tell the target that nothing more comes."""
        self.closed = True

    def _write(self) -> None:
        while self.start < self.end:
            try:
                self.start += self.target.send(self.buffer[self.start : self.end])
            except _WAITS:
                return
            except OSError:
                raise _Lost from None

    def _receive(self, start: int, end: int) -> int | None:
        """Read into a part of the buffer; return the number of bytes, None where there are none."""
        try:
            return self.source.recv_into(self.buffer[start:end])
        except _WAITS:
            return None
        except OSError:
            return 0


class _Outward(_Direction):
    """The direction from the local connection into frames."""

    def read(self) -> None:
        at = HEADER_BYTES
        while at < BUFFER_BYTES + HEADER_BYTES and not self.ended:
            count = self._receive(at, BUFFER_BYTES + HEADER_BYTES)
            if count is None:
                break
            self.ended = count == 0
            at += count
        if at > HEADER_BYTES:
            self.buffer[:HEADER_BYTES] = (at - HEADER_BYTES).to_bytes(HEADER_BYTES, "big")
            self.end = at
        if self.ended:
            self.buffer[self.end : self.end + HEADER_BYTES] = bytes(HEADER_BYTES)
            self.end += HEADER_BYTES


class _Inward(_Direction):
    """The direction from frames to the local connection."""

    header, left = b"", 0  # of the frame that is being read

    def read(self) -> None:
        while self.end < BUFFER_BYTES and not self.ended:
            wanted = min(self.left, BUFFER_BYTES - self.end) or HEADER_BYTES - len(self.header)
            count = self._receive(self.end, self.end + wanted)
            if count is None:
                return
            if count == 0:
                raise _Lost
            if self.left:
                self.left -= count
                self.end += count
                continue
            self.header += bytes(self.buffer[self.end : self.end + count])
            if len(self.header) == HEADER_BYTES:
                self.left, self.header = int.from_bytes(self.header, "big"), b""
                self.ended = self.left == 0

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            self.target.shutdown(socket.SHUT_WR)


def relay(tls: ssl.SSLSocket, local: socket.socket) -> None:
    """Copy until both directions have ended, or one side is lost."""
    inward, outward = _Inward(tls, local), _Outward(local, tls)
    poll, moved_s = select.poll(), time.monotonic()
    with contextlib.closing(tls), contextlib.closing(local), contextlib.suppress(_Lost):
        for sock in (tls, local):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            poll.register(sock)
        while not (inward.closed and outward.closed):
            if inward.move() | outward.move():
                moved_s = time.monotonic()
                continue
            half = inward.closed or outward.closed
            if half and time.monotonic() - moved_s > DRAIN_S:
                return
            poll.modify(tls, _events(inward, outward))
            poll.modify(local, _events(outward, inward))
            poll.poll(1000 * DRAIN_S if half else None)


def _events(read: _Direction, written: _Direction) -> int:
    """Return the poll events for a socket that `read` reads and `written` writes."""
    wants_read = not read.ended and read.start == read.end
    wants_write = written.start < written.end
    return (select.POLLIN if wants_read else 0) | (select.POLLOUT if wants_write else 0)
