"""A real HTTP server that keeps what is posted, and answers as it is told."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hook(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[dict[str, Any]] = []  # whole messages that were taken
        self.asked = 0  # requests, whatever became of them
        self.answers: list[int] = []  # codes for the next requests; then 204
        self.headers: dict[str, str] = {}
        self.delay_s = 0.0  # before each answer
        self.hang = threading.Event()  # set: no answer until the test is over
        self.over = threading.Event()
        self.more = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/T0/s3cr3t?key=hush"

    def wait(self, count: int, limit_s: float = 120.0) -> list[dict[str, Any]]:
        """The first `count` messages."""
        with self.more:
            assert self.more.wait_for(lambda: len(self.got) >= count, limit_s), self.got
            return self.got[:count]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        hook = self.server
        hook.asked += 1
        if hook.hang.is_set():
            hook.over.wait()
            return
        time.sleep(hook.delay_s)
        code = hook.answers.pop(0) if hook.answers else 204
        if code < 300:
            with hook.more:
                hook.got.append(json.loads(body))
                hook.more.notify_all()
        self.send_response(code)
        for name, value in hook.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Quiet."""


@contextmanager
def hook() -> Iterator[Hook]:
    server = Hook()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
