"""Any bytes to the page's port: an answer or a closed connection, and the next is answered."""

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_run import made_run
from penstock.watch.web.run_cache import RunCache
from penstock.watch.web.server import PageServer

LIMIT_S = 20.0
TOKEN = "a good token"
PIECES = st.sampled_from(
    [b"GET", b"POST", b"HEAD", b" ", b"  ", b"\t", b"\r\n", b"\n", b"\r", b"\0", b"/", b"//", b"\\",
     b"/api/runs", b"/api/stream", b"/metrics", b"/static/app.js", b"/static/..", b"?", b"&", b"=",
     b"run=made", b"run=..%2f", b"token=", b"token=a+good+token", b"%00", b"%ff", b"%", b"[", b"]",
     b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"HTTP/", b"Host: localhost", b"Host: [", b"Host: x:y",
     b"Host:", b"Cookie: penstock-1=\"", b"Cookie: a=b; ;;=", b"Authorization: Bearer \xff",
     b"Content-Length: -1", b"Content-Length: 99999999999", b"Transfer-Encoding: chunked",
     b"Expect: 100-continue", b"Connection: keep-alive", b": ", b"x" * 70_000, b"A: b\r\n" * 200]
)  # fmt: skip
REQUEST = st.builds(
    lambda method, target, version, headers: b"".join(
        [method, b" ", target, b" ", version, b"\r\n", *(one + b"\r\n" for one in headers), b"\r\n"]
    ),
    st.sampled_from([b"GET", b"GET", b"GET", b"HEAD", b"PUT", b"\xff"]),
    st.just(b"/")
    | st.builds(
        lambda begin, pieces: begin + b"".join(pieces),
        st.sampled_from([b"", b"/", b"/?", b"/api/runs?", b"http://"]),
        st.lists(PIECES | st.binary(max_size=5), max_size=4),
    ),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"x"]),
    st.lists(PIECES | st.binary(max_size=20), max_size=4),
)
BYTES = st.lists(PIECES | st.binary(max_size=30), max_size=12).map(b"".join)


class Watched(PageServer):
    """Notes what a handler did not expect."""

    unexpected: list[BaseException]

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, ConnectionError):
            self.unexpected.append(error)


@pytest.fixture(scope="module", params=[None, TOKEN], ids=["open", "token"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PageServer]:
    root = tmp_path_factory.mktemp("runs")
    made_run(root)
    made = Watched(RunCache(str(root)), "127.0.0.1", 0, request.param)
    made.unexpected = []
    threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    made.close()


def answered(server: PageServer, sent: bytes) -> bytes:
    """What comes back until the server closes, or begins a stream."""
    found = b""
    link = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)
    with link, contextlib.suppress(ConnectionError):
        link.sendall(sent)
        with contextlib.suppress(OSError):  # the server has closed it: too long a request
            link.shutdown(socket.SHUT_WR)
        while data := link.recv(1 << 16):
            found += data
            if b"text/event-stream" in found:
                break
    return found


@given(sent=REQUEST | BYTES)
def test_any_bytes_get_an_answer_or_nothing(server: Watched, sent: bytes) -> None:
    found = answered(server, sent)
    assert not server.unexpected
    if server.token is not None and TOKEN.replace(" ", "+").encode() not in sent:
        assert b" 200 OK" not in found
        assert b"llama" not in found


def test_the_page_still_answers(server: Watched) -> None:
    good = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    good += b"Authorization: Bearer a good token\r\n\r\n"
    assert answered(server, good).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    "sent", [b"GET http://[ HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: [\r\n\r\n"]
)
def test_an_invalid_address_gets_an_error(server: Watched, sent: bytes) -> None:
    assert answered(server, sent).startswith(b"HTTP/1.1 400 ")


def test_an_address_has_few_fields(server: Watched, tmp_path: Path) -> None:
    sent = b"GET /?" + b"a=b&" * 1000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert answered(server, sent).startswith(b"HTTP/1.1 400 ")
