"""The memory server of a host: other hosts put copies of their fast tier here and fetch them back.

It listens on loopback; other hosts come through the tunnel. It serves only files of a slot below
the run's folder in memory, and only clients that know the secret. A file is written aside, compared
with the hash that its sender signed, and renamed. A file without room is refused, and its sender
reports that.
"""

import contextlib
import json
import re
import shutil
import threading
import time
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from blake3 import blake3

from penstock.guard.tiers.free_space import free_bytes
from penstock.guard.tiers.peers import PROOF_S, RequestProof, list_seals
from penstock.meter.rendezvous import LOOPBACK

_FILE = re.compile(r"/(fast-\d+/[0-9a-f]{16}/slot-\d/(?:[\w-][\w.-]*/)?[\w-][\w.-]*)")
_CHUNK_BYTES = 1 << 20
SILENT_S = 60.0  # a sender that stops in the middle is disconnected


class MemoryServer:
    """An HTTP server for the copies that this host keeps in memory."""

    def __init__(self, memory: Path, secret: str) -> None:
        self.memory, self.secret = memory, secret
        self._used_nonces: dict[str, float] = {}  # and when they came
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer((LOOPBACK, 0), partial(_Handler, self))
        self._server.daemon_threads = True
        serve = partial(self._server.serve_forever, poll_interval=0.05)
        threading.Thread(target=serve, name="memory", daemon=True).start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def refusal(self, proof: RequestProof, method: str, path: str) -> str:
        """Return why a request is refused; "" for one that is not. A proof can be used once."""
        if why := proof.problem(self.secret, method, path):
            return why
        now_s = time.monotonic()
        with self._lock:
            if proof.nonce in self._used_nonces:
                return "used before"
            expired = [n for n, at_s in self._used_nonces.items() if now_s - at_s > 2 * PROOF_S]
            for nonce in expired:
                del self._used_nonces[nonce]
            self._used_nonces[proof.nonce] = now_s
        return ""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = SILENT_S

    def __init__(self, copies: MemoryServer, *request: Any) -> None:
        self.copies = copies
        super().__init__(*request)  # answers it

    def do_GET(self) -> None:
        if not self._authorized():
            return
        if self.path == "/seals":
            seals = [(one.slot, vars(one.seal)) for one in list_seals(self.copies.memory)]
            self._answer(HTTPStatus.OK, json.dumps(seals).encode())
        elif path := self._requested_file():
            try:
                with path.open("rb") as file:
                    size = path.stat().st_size
                    self._answer(HTTPStatus.OK, size=size)
                    shutil.copyfileobj(file, self.wfile, _CHUNK_BYTES)
            except FileNotFoundError:
                self._answer(HTTPStatus.NOT_FOUND)

    def do_PUT(self) -> None:
        path = self._requested_file() if self._authorized() else None
        if path is None:
            return
        length = self.headers.get("Content-Length") or ""
        size = int(length) if length.isdecimal() and len(length) < 20 else -1
        path.parent.mkdir(parents=True, exist_ok=True)
        if size < 0 or size > free_bytes(path.parent):
            self.close_connection = True  # the rest is not read
            self._answer(HTTPStatus.INSUFFICIENT_STORAGE)
            return
        aside = path.with_name(f".sent-{path.name}")
        hashed = blake3(max_threads=blake3.AUTO)
        with aside.open("wb") as file:
            left = size
            while left and (data := self.rfile.read(min(left, _CHUNK_BYTES))):
                file.write(data)
                hashed.update(data)
                left -= len(data)
        if left:
            aside.unlink()  # the sender is gone
            return
        if hashed.hexdigest() != RequestProof.of(self.headers).digest:
            aside.unlink()
            self._answer(HTTPStatus.FORBIDDEN)
            return
        aside.replace(path)
        self._answer(HTTPStatus.CREATED)

    def do_DELETE(self) -> None:
        if self._authorized() and (path := self._requested_file()):
            path.unlink(missing_ok=True)
            self._answer(HTTPStatus.NO_CONTENT)

    def _authorized(self) -> bool:
        why = self.copies.refusal(RequestProof.of(self.headers), self.command, self.path)
        if not why:
            return True
        self.close_connection = True
        self._answer(HTTPStatus.FORBIDDEN, why=why)
        return False

    def _requested_file(self) -> Path | None:
        match = _FILE.fullmatch(self.path)
        if match is None:
            self.close_connection = True
            self._answer(HTTPStatus.BAD_REQUEST)
        return self.copies.memory / match[1] if match else None

    def _answer(
        self, status: HTTPStatus, body: bytes = b"", size: int | None = None, why: str = ""
    ) -> None:
        with contextlib.suppress(OSError):  # the client is gone
            self.send_response(status, why or None)
            self.send_header("Content-Length", str(len(body) if size is None else size))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal belongs to the run."""
