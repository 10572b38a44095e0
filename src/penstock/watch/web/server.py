"""The server of the page: a few fixed addresses, GET only, and a stream of changes.

It shows run folders and cannot change anything. By default it listens on this machine only. If it
listens on another address, readers need a token. The host name of a request is checked, so that a
foreign web page cannot reach the server through a name that points here (DNS rebinding).
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
from penstock.watch.facts.run_view import RunView
from penstock.watch.web.assets import asset
from penstock.watch.web.connections import Connections
from penstock.watch.web.run_cache import CachedTexts, RunCache, Texts

HERE = "127.0.0.1"
PORT = 7070
MORE_PORTS = 20  # tried after the first if no port was given
MOST_COMPARED = 12
MOST_FIELDS = 100  # in the query of an address
LEAST_TOKEN = 8  # characters of a token that the user chose
PAGES = ("/", "/api/runs", "/api/stream", "/metrics")
READ_S, SLOW_S = 1.0, 15.0  # between readings for a visible page, and for one in the background
SILENT_S = 15.0  # after which a stream sends a comment, so that a broken connection is noticed
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
    """Raise PenstockError for an empty or a short token."""
    if token is None or len(token.strip()) >= LEAST_TOKEN:
        return
    problem = f"{len(token.strip())} characters" if token.strip() else "empty"
    raise PenstockError(
        f"--token: {problem}; give at least {LEAST_TOKEN} characters, or leave it out and one is "
        "generated. An empty one often comes from a variable that is not set"
    )


class PageServer(ThreadingHTTPServer):
    """The page's server. `token` None: no token is needed, and only this machine reaches it."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, cache: RunCache, host: str, port: int, token: str | None) -> None:
        refuse_weak(token)
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(16)
        self.cache, self.host, self.token = cache, host, token
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.closing = threading.Event()
        self.metrics = CachedTexts()
        self.connections = Connections()
        super().__init__((host, port), PageHandler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def cookie(self) -> str:
        """The name of the cookie, with the port: browsers send cookies to all ports."""
        return f"penstock-{self.port}"

    @property
    def cookie_value(self) -> str:
        """The value of the cookie: a hash, because a token may hold any characters."""
        return hashlib.sha256(f"penstock {self.token}".encode()).hexdigest()

    def address(self, *runs: str) -> str:
        """Return the address to open, with the token."""
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
        """Do regular work; `serve_forever` calls this at least twice a second."""
        self.connections.end_silent()

    def close(self) -> None:
        """Stop the server and its streams."""
        self.closing.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a reader that has gone is no error, and others show in their answer."""


def open_server(
    cache: RunCache, host: str = HERE, port: int | None = None, token: str | None = None
) -> PageServer:
    """Open a server that listens; on the next free port if none was given."""
    ports = [port] if port is not None else [*range(PORT, PORT + MORE_PORTS), 0]
    for candidate in ports:
        try:
            return PageServer(cache, host, candidate, token)
        except OSError as error:
            last = error
    what = f"port {port} of {host}" if port is not None else host
    raise PenstockError(f"cannot listen on {what}: {last.strerror or last}; try another --port")


class PageHandler(BaseHTTPRequestHandler):
    """The answer to one request."""

    server: PageServer
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
            query = parse_qs(url.query, max_num_fields=MOST_FIELDS)
            urlsplit(f"//{self.headers.get('Host', '')}")
        except ValueError:
            self.close_connection = True
            self._say(HTTPStatus.BAD_REQUEST, "not a valid address")
            return
        if not self._has_own_host_name():
            self._say(HTTPStatus.FORBIDDEN, "this name is not one of this server's")
        elif not self._has_access(url.query):
            self._say(HTTPStatus.UNAUTHORIZED, "open the address with the token that was printed")
        elif self.server.token is not None and "token" in query:
            self._set_cookie(url.path, url.query)
        else:
            self._answer(url.path, query.get("run", []), SLOW_S if "slow" in query else READ_S)

    def _answer(self, path: str, runs: list[str], pause_s: float) -> None:
        try:
            if path == "/":
                self._send(*(asset("index.html") or (b"", "")))
            elif path == "/api/stream":
                self._stream(runs[:MOST_COMPARED], pause_s)
            elif path == "/api/runs":
                self._json(self._read(runs[:MOST_COMPARED]))
            elif path == "/metrics":
                self._metrics()
            elif path.startswith("/static/") and (file := asset(path.removeprefix("/static/"))):
                self._send(*file)
            else:
                self._say(HTTPStatus.NOT_FOUND, "there is nothing here")
        except PenstockError as error:
            self._say(HTTPStatus.NOT_FOUND, str(error))

    def _metrics(self) -> None:
        """Send the metrics; cached, because Prometheus may ask often."""
        from penstock.watch.web import metrics

        cache = self.server.cache

        def make() -> Texts:
            folders = metrics.worth_scraping(list(cache.runs().values()))
            return {"": metrics.exposition([RunView(folder) for folder in folders])}

        text = self.server.metrics.read(lambda: None, make)[""]
        self._send(text.encode(), metrics.CONTENT_TYPE)

    def _read(self, runs: list[str]) -> dict[str, Texts]:
        """Return the sections of some runs by name, or the list of all under the empty name."""
        cache = self.server.cache
        return {run: cache.sections(run) for run in runs} if runs else {"": cache.run_list()}

    # The stream: server-sent events, each `{run: {section: …}}` with the changed sections.

    def _stream(self, runs: list[str], pause_s: float) -> None:
        changed = self._changes(runs, pause_s)
        first = next(changed)  # raises for an unknown run, before the stream begins
        self._head(HTTPStatus.OK, {"Content-Type": "text/event-stream; charset=utf-8"})
        self.close_connection = True
        with contextlib.suppress(OSError, PenstockError):  # the reader has gone, or the run
            self._event(first)
            for text in changed:
                self._event(text)

    def _event(self, text: str) -> None:
        self.wfile.write(f"data: {text}\n\n".encode() if text else b": still here\n\n")
        self.wfile.flush()

    def _changes(self, runs: list[str], pause_s: float) -> Iterator[str]:
        known: dict[str, Texts] = {}
        silent_s = 0.0
        while not self.server.closing.is_set():
            now = self._read(runs)
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

    # Access

    def _has_own_host_name(self) -> bool:
        """Return whether the host name is this server's. With a token any name is good:
        requests of a foreign page do not have it."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        return self.server.token is not None or is_loopback(host) or host == self.server.host

    def _has_access(self, query: str) -> bool:
        token = self.server.token
        if token is None:
            return True
        bearer = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        shown = [*parse_qs(query).get("token", []), bearer]
        known = [hmac.compare_digest(candidate.encode(), token.encode()) for candidate in shown]
        return any(known) or hmac.compare_digest(self._cookie(), self.server.cookie_value)

    def _cookie(self) -> str:
        jar = SimpleCookie()
        with contextlib.suppress(CookieError):
            jar.load(self.headers.get("Cookie") or "")
        morsel = jar.get(self.server.cookie)
        return morsel.value if morsel else ""

    def _set_cookie(self, path: str, query: str) -> None:
        """Move the token from the address, which browsers show and keep, into a cookie.

        The redirect leads to known paths only: browsers read two slashes, or a slash and a
        backslash, as the beginning of another server's name.
        """
        if path not in PAGES and not path.startswith("/static/"):
            self._say(HTTPStatus.NOT_FOUND, "there is nothing here")
            return
        rest = urlencode([(k, v) for k, v in parse_qsl(query) if k != "token"])
        cookie = (
            f"{self.server.cookie}={self.server.cookie_value}; HttpOnly; SameSite=Strict; Path=/"
        )
        self._head(
            HTTPStatus.SEE_OTHER,
            {"Location": f"{path}{'?' if rest else ''}{rest}", "Set-Cookie": cookie},
            length=0,
        )

    # Answers

    def _json(self, sections: dict[str, Texts]) -> None:
        self._send(_joined(sections).encode(), "application/json")

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
        """Log nothing: addresses may hold a token."""


def _joined(sections: dict[str, Texts]) -> str:
    """Join sections, which are JSON already, into one JSON text."""
    if not sections:
        return ""
    runs = (
        f"{json.dumps(run)}: {{{', '.join(f'{json.dumps(n)}: {t}' for n, t in texts.items())}}}"
        for run, texts in sections.items()
    )
    return f"{{{', '.join(runs)}}}"
