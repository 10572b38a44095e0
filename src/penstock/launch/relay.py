"""Copies bytes between a TLS connection and a local one, both ways, until both have ended.

Half-closing works: the end of one direction is passed on as a TCP FIN while the other goes on. An
OpenSSL connection is not safe to read and write from two threads, so one thread does both.
"""

import contextlib
import select
import socket
import ssl
import time

BUFFER_BYTES = 1 << 18
DRAIN_S = 5.0  # how long one direction may go on without a byte after the other has ended
_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class _Direction:
    """Bytes on their way from one socket to another."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self.start = self.end = 0  # of what was read and not written yet
        self.ended = self.closed = False  # by its source; and passed on to its target

    def move(self) -> bool:
        """Read and write as far as possible without waiting; whether anything has moved."""
        moved = False
        while not self.closed:
            read = self._read()
            written = self._write()
            moved |= read or written
            if not (read or written):
                break
        return moved

    def _read(self) -> bool:
        if self.ended or self.start < self.end:
            return False
        self.start = self.end = 0
        while self.end < BUFFER_BYTES:
            try:
                count = self.source.recv_into(self.buffer[self.end :])
            except _WAITS:
                break
            except OSError:
                count = 0
            if count == 0:
                self.ended = True
                break
            self.end += count
        return self.end > 0 or self.ended

    def _write(self) -> bool:
        before = self.start
        while self.start < self.end:
            try:
                self.start += self.target.send(self.buffer[self.start : self.end])
            except _WAITS:
                break
            except OSError:  # nobody takes it: what is left is lost, as with one connection
                self.start, self.ended = self.end, True
        if self.ended and self.start == self.end and not self.closed:
            self.closed = True
            with contextlib.suppress(OSError):
                # Of the TCP connection below: `SSLSocket.shutdown` would go on in plain text.
                socket.socket.shutdown(self.target, socket.SHUT_WR)
            return True
        return self.start > before


def relay(tls: ssl.SSLSocket, local: socket.socket) -> None:
    """Copy until both directions have ended, or one has and the other is silent."""
    for sock in (tls, local):
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    inward, outward = _Direction(tls, local), _Direction(local, tls)
    poll, moved_s = select.poll(), time.monotonic()
    try:
        poll.register(tls)
        poll.register(local)
        while not (inward.closed and outward.closed):
            # Each may wait for the other's socket: a TLS record needs to be read as a whole.
            if inward.move() | outward.move():
                moved_s = time.monotonic()
                continue
            half = inward.closed or outward.closed
            if half and time.monotonic() - moved_s > DRAIN_S:
                return
            poll.modify(tls, _events(inward, outward))
            poll.modify(local, _events(outward, inward))
            poll.poll(1000 * DRAIN_S if half else None)
    finally:
        tls.close()
        local.close()


def _events(read: _Direction, written: _Direction) -> int:
    """Return what to wait for at the source of one direction and the target of the other."""
    wants_read = not read.ended and read.start == read.end
    wants_write = written.start < written.end
    return (select.POLLIN if wants_read else 0) | (select.POLLOUT if wants_write else 0)
