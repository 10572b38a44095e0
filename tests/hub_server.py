"""Speaks what the real Hugging Face client asks a hub: what a repository holds, and its files."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(repos: dict[str, dict[str, bytes]], cards: dict[str, dict] | None = None) -> Iterator[str]:
    """Datasets by name, each with its files; gives the endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            if path.startswith("/api/datasets/"):
                name, _, revision = path.removeprefix("/api/datasets/").partition("/revision/")
                self._info(name, revision or "main")
                return
            name, _, rest = path.removeprefix("/datasets/").partition("/resolve/")
            content = repos.get(name, {}).get(rest.partition("/")[2])
            if content is None:
                self._error("EntryNotFound")
                return
            headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            self._send(200, content, headers, body)

        def _info(self, name: str, revision: str) -> None:
            if name not in repos:
                self._error("RepoNotFound")
            elif revision not in ("main", COMMIT):
                self._error("RevisionNotFound")
            else:
                files = [
                    {"rfilename": file, "size": len(held), "blobId": hashlib.sha1(held).hexdigest()}
                    for file, held in repos[name].items()
                ]
                told = {"id": name, "sha": COMMIT, "siblings": files}
                told["cardData"] = (cards or {}).get(name, {})
                self._send(200, json.dumps(told).encode(), {}, True)

        def _error(self, code: str) -> None:
            self._send(404, b"{}", {"X-Error-Code": code}, True)

        def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body and self.command == "GET":
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
