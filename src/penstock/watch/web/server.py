"""The page's server: a few fixed addresses, GET only, and a stream of what changes.

It shows run folders and can change nothing. It listens on this machine alone unless told
otherwise, and then whoever looks needs a token. The name in the address is checked, so that a page
of somebody else's cannot reach it through a name that points here (DNS rebinding).
"""

import contextlib
import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from penstock.errors import PenstockError
from penstock.watch.facts.view import View
from penstock.watch.web.connections import Connections
from penstock.watch.web.page import asset
from penstock.watch.web.run_cache import Desk, Seen, Texts

HERE = "127.0.0.1"
PORT = 7070
MORE_PORTS = 20  # tried after the first, when nobody asked for a certain one
MOST_COMPARED = 12
MOST_FIELDS = 100  # of the query of an address
LEAST_TOKEN = 8  # characters of a token that somebody chose
PAGES = ("/", "/api/runs", "/api/stream", "/metrics")
LOOK_S, SLOW_S = 1.0, 15.0  # between looks, and for a page in the background
SILENT_S = 15.0  # a stream that has nothing to say says so, or nobody notices that it broke
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def refuse_weak(token: str | None) -> None:
    """Raise PenstockError for a token that keeps nobody out."""
    if token is None or len(token.strip()) >= LEAST_TOKEN:
        return
    found = f"{len(token.strip())} characters" if token.strip() else "empty"
    raise PenstockError(
        f"--token: {found}; give at least {LEAST_TOKEN} characters, or leave it out and one is "
        "generated. An empty one often comes from a variable that is not set"
    )


class Server(ThreadingHTTPServer):
    """The page's server. `token` None: no token is needed, and only this machine reaches it."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, desk: Desk, host: str, port: int, token: str | None) -> None:
        refuse_weak(token)
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(16)
        self.desk, self.host, self.token = desk, host, token
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.closing = threading.Event()
        self.scraped = Seen()
        self.connections = Connections()
        super().__init__((host, port), Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def cookie(self) -> str:
        """Cookies do not tell ports apart, so the name does."""
        return f"penstock-{self.port}"

    @property
    def pass_(self) -> str:
        """What the cookie holds: made from the token, whatever signs that has."""
        return hashlib.sha256(f"penstock {self.token}".encode()).hexdigest()

    def address(self, *runs: str) -> str:
        """What to open, token and all."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(
            self.host, self.host
        )
        query = [("run", run) for run in runs]
        query += [("token", self.token)] if self.token else []
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/" + (
            f"?{urlencode(query)}" if query else ""
        )

    # Each connection has a thread, which ends with it.

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.connections.add(request, str(client_address[0])):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self.connections.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called by `serve_forever` at least twice a second."""
        self.connections.end_silent()

    def close(self) -> None:
        """Ends the streams too."""
        self.closing.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that has gone is no error of ours; any other shows in its answer."""


def opened(
    desk: Desk, host: str = HERE, port: int | None = None, token: str | None = None
) -> Server:
    """A server that listens; on the next free port where none was asked for."""
    wanted = [port] if port is not None else [*range(PORT, PORT + MORE_PORTS), 0]
    for one in wanted:
        try:
            return Server(desk, host, one, token)
        except OSError as error:
            last = error
    what = f"port {port} of {host}" if port is not None else host
    raise PenstockError(f"cannot listen on {what}: {last.strerror or last}; try another --port")


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "penstock"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def handle_one_request(self) -> None:
        self.server.connections.waits(self.connection)
        super().handle_one_request()

    def parse_request(self) -> bool:
        whole = super().parse_request()
        self.server.connections.works(self.connection)
        return whole

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
            asked = parse_qs(url.query, max_num_fields=MOST_FIELDS)
            urlsplit(f"//{self.headers.get('Host', '')}")
        except ValueError:
            self.close_connection = True
            self._say(HTTPStatus.BAD_REQUEST, "this is not an address")
            return
        if not self._own_name():
            self._say(HTTPStatus.FORBIDDEN, "this name is not one of this server's")
        elif not self._may_look(url.query):
            self._say(HTTPStatus.UNAUTHORIZED, "open the address with the token that was printed")
        elif self.server.token is not None and "token" in asked:
            self._let_in(url.path, url.query)
        else:
            self._answer(url.path, asked.get("run", []), SLOW_S if "slow" in asked else LOOK_S)

    def _answer(self, path: str, runs: list[str], pause_s: float) -> None:
        try:
            if path == "/":
                self._send(*(asset("index.html") or (b"", "")))
            elif path == "/api/stream":
                self._stream(runs[:MOST_COMPARED], pause_s)
            elif path == "/api/runs":
                self._json(self._look(runs[:MOST_COMPARED]))
            elif path == "/metrics":
                self._metrics()
            elif path.startswith("/static/") and (found := asset(path.removeprefix("/static/"))):
                self._send(*found)
            else:
                self._say(HTTPStatus.NOT_FOUND, "there is nothing here")
        except PenstockError as error:
            self._say(HTTPStatus.NOT_FOUND, str(error))

    def _metrics(self) -> None:
        """For Prometheus, which may come as often as it likes: they are made now and then."""
        from penstock.watch.web import metrics

        desk = self.server.desk

        def made() -> Texts:
            found = metrics.worth_scraping(list(desk.runs().values()))
            return {"": metrics.exposition([View(folder) for folder in found])}

        text = self.server.scraped.read(lambda: None, made)[""]
        self._send(text.encode(), metrics.CONTENT_TYPE)

    def _look(self, runs: list[str]) -> dict[str, Texts]:
        """By run, its sections; by the empty name, the list of all."""
        desk = self.server.desk
        return {run: desk.sections(run) for run in runs} if runs else {"": desk.listed()}

    # The stream: server-sent events, each `{run: {section: …}}` of what has changed.

    def _stream(self, runs: list[str], pause_s: float) -> None:
        changed = self._changes(runs, pause_s)
        first = next(changed)  # an unknown run is an answer of its own, not a broken stream
        self._head(HTTPStatus.OK, {"Content-Type": "text/event-stream; charset=utf-8"})
        self.close_connection = True
        with contextlib.suppress(OSError, PenstockError):  # the reader has gone, or the run
            self._event(first)
            for found in changed:
                self._event(found)

    def _event(self, text: str) -> None:
        self.wfile.write(f"data: {text}\n\n".encode() if text else b": still here\n\n")
        self.wfile.flush()

    def _changes(self, runs: list[str], pause_s: float) -> Iterator[str]:
        known: dict[str, Texts] = {}
        silent_s = 0.0
        while not self.server.closing.is_set():
            now = self._look(runs)
            new = {
                run: {
                    name: text
                    for name, text in texts.items()
                    if known.get(run, {}).get(name) != text
                }
                for run, texts in now.items()
            }
            silent_s += pause_s
            if any(new.values()) or silent_s >= SILENT_S:
                yield _joined({run: texts for run, texts in new.items() if texts})
                silent_s = 0.0
            known = now
            self.server.closing.wait(pause_s)

    # Who may look

    def _own_name(self) -> bool:
        """With a token any name is good: another page's requests come without it."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        return self.server.token is not None or is_loopback(host) or host == self.server.host

    def _may_look(self, query: str) -> bool:
        token = self.server.token
        if token is None:
            return True
        bearer = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        shown = [*parse_qs(query).get("token", []), bearer]
        known = [hmac.compare_digest(one.encode(), token.encode()) for one in shown]
        return any(known) or hmac.compare_digest(self._cookie(), self.server.pass_)

    def _cookie(self) -> str:
        jar = SimpleCookie()
        with contextlib.suppress(CookieError):
            jar.load(self.headers.get("Cookie") or "")
        found = jar.get(self.server.cookie)
        return found.value if found else ""

    def _let_in(self, path: str, query: str) -> None:
        """Put the token into a cookie and take it out of the address, which is shown and kept.

        The redirect leads to an address of this page only. Browsers take two slashes, or a slash
        and a backslash, for the beginning of another server's name.
        """
        if path not in PAGES and not path.startswith("/static/"):
            self._say(HTTPStatus.NOT_FOUND, "there is nothing here")
            return
        rest = urlencode([(k, v) for k, v in parse_qsl(query) if k != "token"])
        cookie = f"{self.server.cookie}={self.server.pass_}; HttpOnly; SameSite=Strict; Path=/"
        self._head(
            HTTPStatus.SEE_OTHER,
            {"Location": f"{path}{'?' if rest else ''}{rest}", "Set-Cookie": cookie},
            length=0,
        )

    # How it is said

    def _json(self, found: dict[str, Texts]) -> None:
        self._send(_joined(found).encode(), "application/json")

    def _say(self, status: HTTPStatus, words: str) -> None:
        self._send(f"{words}\n".encode(), "text/plain; charset=utf-8", status)

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._head(status, {"Content-Type": kind}, len(body))
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, headers: dict[str, str], length: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Cache-Control": "no-store", **headers}.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it, and addresses may hold a token."""


def _joined(found: dict[str, Texts]) -> str:
    """The sections are JSON already."""
    if not found:
        return ""
    runs = (
        f"{json.dumps(run)}: {{{', '.join(f'{json.dumps(n)}: {t}' for n, t in texts.items())}}}"
        for run, texts in found.items()
    )
    return f"{{{', '.join(runs)}}}"
