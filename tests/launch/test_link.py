"""Hosts that know the run's secret hear each other; others hear nothing."""

import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.launch.link import Link, connect, greeted

SECRET = "known to both"


class Server:
    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.met: queue.Queue[tuple[Link, dict] | None] = queue.Queue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                other, _ = self.socket.accept()
            except OSError:
                return
            self.met.put(greeted(other, SECRET))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.socket.close()


def test_a_line_carries_messages_both_ways(server: Server) -> None:
    link = connect(("127.0.0.1",), server.port, SECRET, {"node": "b"})
    assert link is not None
    met = server.met.get(timeout=10)
    assert met is not None
    other, hello = met
    assert hello == {"node": "b"}
    assert (link.own_address, other.other_address) == ("127.0.0.1", "127.0.0.1")
    heard: queue.Queue[dict] = queue.Queue()
    other.read_with(heard.put)
    link.send({"text": "ä" * 100_000})
    link.send({"n": 1})
    assert heard.get(timeout=10) == {"text": "ä" * 100_000}
    assert heard.get(timeout=10) == {"n": 1}
    other.send({"n": 2})
    assert link.receive() == {"n": 2}


def test_who_does_not_know_the_secret_is_not_heard(server: Server) -> None:
    assert connect(("127.0.0.1",), server.port, "guessed", {"node": "b"}) is None
    assert server.met.get(timeout=10) is None


def test_a_server_that_does_not_know_it_is_not_believed() -> None:
    """Somebody else may listen there by now."""
    with socket.create_server(("127.0.0.1", 0)) as fake:

        def answer() -> None:
            sock, _ = fake.accept()
            sock.sendall(b'{"drawn":"x"}\n{"proof":"made up"}\n')

        threading.Thread(target=answer, daemon=True).start()
        assert connect(("127.0.0.1",), fake.getsockname()[1], SECRET, {}) is None


def test_the_first_address_that_answers_is_taken(server: Server) -> None:
    with socket.create_server(("127.0.0.2", 0)) as closed:
        port = closed.getsockname()[1]
    link = connect(("127.0.0.2", "127.0.0.1"), server.port, SECRET, {})
    assert link is not None
    assert link.other_address == "127.0.0.1"
    assert connect(("127.0.0.2",), port, SECRET, {}) is None


def test_both_sides_see_the_end(server: Server) -> None:
    link = connect(("127.0.0.1",), server.port, SECRET, {})
    assert link is not None
    met = server.met.get(timeout=10)
    assert met is not None
    other, _ = met
    link.close()
    assert other.receive() is None
    assert other.closed
    other.send({"late": True})  # no error: whoever owns it looks at `closed`
    assert link.receive() is None
