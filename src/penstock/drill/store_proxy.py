"""A proxy in front of an object store, which makes the store unreachable for a while."""

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

ENDPOINT = "AWS_ENDPOINT_URL"


class StoreProxy:
    """A proxy that forwards everything to `endpoint` (http) until it is shut."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._to = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._shut = False
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        """Break all connections and refuse new ones."""
        self._shut = True
        for one in list(self._open):
            _close(one)

    def open(self) -> None:
        self._shut = False

    def close(self) -> None:
        self._listener.close()
        self.shut()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                if self._shut:
                    _close(client)
                    continue
                server = socket.create_connection(self._to)
                self._open |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # either side may go at any time
            while content := source.recv(1 << 16):
                target.sendall(content)
        for one in (source, target):
            self._open.discard(one)
            _close(one)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
