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
def hub(
    repos: dict[str, dict[str, bytes]],
    cards: dict[str, dict] | None = None,
    kind: str = "datasets",
    asked: list[str] | None = None,
) -> Iterator[str]:
    """Datasets (or models) by name, each with its files; gives the endpoint. Paths that it is
    asked for are put into `asked`."""
    inside = "/" if kind == "models" else f"/{kind}/"  # where their files are

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
            if asked is not None:
                asked.append(path)
            if path.startswith(f"/api/{kind}/"):
                name, _, revision = path.removeprefix(f"/api/{kind}/").partition("/revision/")
                name, _, tree = name.partition("/tree/")
                self._info(name, revision or tree or "main", bool(tree))
                return
            name, _, rest = path.removeprefix(inside).partition("/resolve/")
            content = repos.get(name, {}).get(rest.partition("/")[2])
            if content is None:
                self._error("EntryNotFound")
                return
            headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            self._send(200, content, headers, body)

        def _info(self, name: str, revision: str, tree: bool) -> None:
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
                rows = [
                    {"type": "file", "path": one["rfilename"], "oid": one["blobId"]} | one
                    for one in files
                ]
                self._send(200, json.dumps(rows if tree else told).encode(), {}, True)

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
