"""A TCP proxy that cuts connections after a number of bytes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self.cuts = 0  # how many connections are still to be cut
        self.after_bytes = 0
        self.cut = 0  # so many were
        self._to = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._to)
                for pair in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        passed = 0
        with suppress(OSError):
            while content := source.recv(1 << 16):
                target.sendall(content)
                passed += len(content)
                if answers and self.cuts and passed > self.after_bytes:
                    self.cuts -= 1
                    self.cut += 1
                    break
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
                one.close()


@contextmanager
def cutting(host: str, port: int) -> Iterator[Proxy]:
    proxy = Proxy(host, port)
    try:
        yield proxy
    finally:
        proxy.close()
