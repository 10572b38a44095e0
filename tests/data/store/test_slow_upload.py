"""Uploads over a slow link: a client must not take the time of the upload for a dead server."""

import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.data.store import meeting_place
from penstock.data.store.meeting_place import ObjectStore
from penstock.data.store.objects import Store

RATE, SIZE = 1_500_000, 4_000_000  # bytes per second that are taken, bytes


def answer(link: socket.socket) -> None:
    """Take one upload as slowly as a thin link does."""
    with link:
        read = b""
        while b"\r\n\r\n" not in read:
            if not (more := link.recv(65536)):
                return
            read += more
        head, _, body = read.partition(b"\r\n\r\n")
        length, got = re.search(rb"(?i)content-length: (\d+)", head), len(body)
        while length and got < int(length[1]):
            more = link.recv(65536)
            if not more:
                return
            got += len(more)
            time.sleep(len(more) / RATE)
        link.sendall(b'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: 0\r\n\r\n')


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = socket.create_server(("127.0.0.1", 0))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)

    def serve() -> None:
        while True:
            try:
                link, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(link,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
        "AWS_ACCESS_KEY_ID": "penstock",
        "AWS_SECRET_ACCESS_KEY": "penstock-secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    yield "s3://data/slow"
    server.close()


def test_an_upload_that_takes_longer_than_an_answer_is_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(SIZE)
    with pytest.raises(ConnectionError):
        Store(url, patience_s=0.1, answer_s=0.5).create("x", content)
    monkeypatch.setattr(meeting_place, "ANSWER_S", 0.5)
    assert ObjectStore(url).create("x", content)
