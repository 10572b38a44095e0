"""A host's shelf: the fast tier in its memory, where other hosts put copies and take them back.

It listens on loopback; other hosts come through the tunnel. Files of a slot only, below the run's
folder in memory, and only for those who know the secret. A file is written aside, compared with the
hash that its sender signed, and renamed; what has no room is refused, and the sender tells.
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
SILENT_S = 60.0  # a sender that stops in the middle is let go


class Shelf:
    def __init__(self, memory: Path, secret: str) -> None:
        self.memory, self.secret = memory, secret
        self._used: dict[str, float] = {}  # nonces, and when they came
        self._using = threading.Lock()
        self._server = ThreadingHTTPServer((LOOPBACK, 0), partial(_Handler, self))
        self._server.daemon_threads = True
        serve = partial(self._server.serve_forever, poll_interval=0.05)
        threading.Thread(target=serve, name="shelf", daemon=True).start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def problem(self, proof: RequestProof, method: str, path: str) -> str:
        """Say why a request is refused; "" for one that is not. A proof is good once."""
        if why := proof.problem(self.secret, method, path):
            return why
        now_s = time.monotonic()
        with self._using:
            if proof.nonce in self._used:
                return "used before"
            for nonce in [n for n, at_s in self._used.items() if now_s - at_s > 2 * PROOF_S]:
                del self._used[nonce]
            self._used[proof.nonce] = now_s
        return ""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = SILENT_S

    def __init__(self, shelf: Shelf, *request: Any) -> None:
        self.shelf = shelf
        super().__init__(*request)  # answers it

    def do_GET(self) -> None:
        if not self._known():
            return
        if self.path == "/seals":
            found = [(one.slot, vars(one.seal)) for one in list_seals(self.shelf.memory)]
            self._answer(HTTPStatus.OK, json.dumps(found).encode())
        elif path := self._file():
            try:
                with path.open("rb") as file:
                    size = path.stat().st_size
                    self._answer(HTTPStatus.OK, size=size)
                    shutil.copyfileobj(file, self.wfile, _CHUNK_BYTES)
            except FileNotFoundError:
                self._answer(HTTPStatus.NOT_FOUND)

    def do_PUT(self) -> None:
        path = self._file() if self._known() else None
        if path is None:
            return
        given = self.headers.get("Content-Length") or ""
        size = int(given) if given.isdecimal() and len(given) < 20 else -1
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
        if self._known() and (path := self._file()):
            path.unlink(missing_ok=True)
            self._answer(HTTPStatus.NO_CONTENT)

    def _known(self) -> bool:
        why = self.shelf.problem(RequestProof.of(self.headers), self.command, self.path)
        if not why:
            return True
        self.close_connection = True
        self._answer(HTTPStatus.FORBIDDEN, why=why)
        return False

    def _file(self) -> Path | None:
        found = _FILE.fullmatch(self.path)
        if found is None:
            self.close_connection = True
            self._answer(HTTPStatus.BAD_REQUEST)
        return self.shelf.memory / found[1] if found else None

    def _answer(
        self, status: HTTPStatus, body: bytes = b"", size: int | None = None, why: str = ""
    ) -> None:
        with contextlib.suppress(OSError):  # whoever asked is gone
            self.send_response(status, why or None)
            self.send_header("Content-Length", str(len(body) if size is None else size))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal belongs to the run."""
