"""Hosts that know the run's secret hear each other; others hear nothing."""

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.launch.hosts.link import Link, _proof, accept, connect
from penstock.launch.hosts.tunnel import Tunnel

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
            self.met.put(accept(other, SECRET))


@pytest.fixture(scope="module")
def tunnel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tunnel]:
    """Both sides in one: it leads to itself."""
    made = Tunnel(SECRET, "a", ["127.0.0.1"], {}, tmp_path_factory.mktemp("tunnel"))
    yield made
    made.close()


@pytest.fixture
def server(tunnel: Tunnel) -> Iterator[Server]:
    made = Server()
    tunnel.set_service("link", made.port)
    yield made
    made.socket.close()


def test_a_connection_carries_messages_both_ways(server: Server, tunnel: Tunnel) -> None:
    link = connect(tunnel, ["127.0.0.1"], tunnel.port, SECRET, {"node": "b"})
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


def test_who_does_not_know_the_secret_is_not_heard(server: Server, tunnel: Tunnel) -> None:
    assert connect(tunnel, ["127.0.0.1"], tunnel.port, "guessed", {"node": "b"}) is None
    assert server.met.get(timeout=10) is None


def test_a_server_that_does_not_know_it_is_not_believed(tunnel: Tunnel) -> None:
    """Somebody else may listen there by now."""
    with socket.create_server(("127.0.0.1", 0)) as fake:
        tunnel.set_service("link", fake.getsockname()[1])

        def answer() -> None:
            sock, _ = fake.accept()
            sock.sendall(b'{"drawn":"x"}\n{"proof":"made up"}\n')

        threading.Thread(target=answer, daemon=True).start()
        assert connect(tunnel, ["127.0.0.1"], tunnel.port, SECRET, {}) is None


def test_the_first_address_that_answers_is_taken(server: Server, tunnel: Tunnel) -> None:
    link = connect(tunnel, ["127.0.0.2", "127.0.0.1"], tunnel.port, SECRET, {})
    assert link is not None
    assert link.other_address == "127.0.0.1"
    assert connect(tunnel, ["127.0.0.2"], tunnel.port, SECRET, {}) is None


def test_both_sides_see_the_end(server: Server, tunnel: Tunnel) -> None:
    link = connect(tunnel, ["127.0.0.1"], tunnel.port, SECRET, {})
    assert link is not None
    met = server.met.get(timeout=10)
    assert met is not None
    other, _ = met
    link.close()
    assert other.receive() is None
    assert other.closed
    other.send({"late": True})  # no error: whoever owns it looks at `closed`
    assert link.receive() is None


def test_the_last_word_arrives_before_the_end(server: Server, tunnel: Tunnel) -> None:
    link = connect(tunnel, ["127.0.0.1"], tunnel.port, SECRET, {})
    met = server.met.get(timeout=10)
    assert link is not None
    assert met is not None
    link.send({"before": "x" * 1_000_000})
    link.send_last({"end": "done"})
    assert met[0].receive() == {"before": "x" * 1_000_000}
    assert met[0].receive() == {"end": "done"}
    assert met[0].receive() is None


HOSTILE = [
    b"[]\n",
    b"null\n",
    b"{}\n[]\n",
    b'{"from":"x"}\n{"hello":[],"proof":1}\n',
    b'{"from":"x"}\n{"hello":{},"proof":null,"drawn":{}}\n',
    b"\xff\xfe\n",
    b"[" * 60_000 + b"\n",
    b"x" * 200_000,
    b"",
]


@pytest.mark.parametrize("said", HOSTILE)
def test_strange_words_end_one_connection_and_nothing_else(said: bytes) -> None:
    pair = _tcp()
    pair[1].sendall(said)
    pair[1].shutdown(socket.SHUT_WR)
    assert accept(pair[0], SECRET) is None


@given(st.binary(max_size=300))
@settings(max_examples=50)
def test_random_words_end_one_connection_and_nothing_else(said: bytes) -> None:
    pair = _tcp()
    pair[1].sendall(b'{"from":"x","at":"y"}\n' + said)
    pair[1].shutdown(socket.SHUT_WR)
    assert accept(pair[0], SECRET) is None


def test_a_peer_that_resets_at_once_is_no_error() -> None:
    ours, theirs = _tcp()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    assert accept(ours, SECRET) is None


def test_one_byte_now_and_then_does_not_stretch_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.launch.hosts.link.HANDSHAKE_S", 0.3)
    ours, theirs = _tcp()
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.02):
            with contextlib.suppress(OSError):
                theirs.send(b" ")

    threading.Thread(target=drip, daemon=True).start()
    began = time.monotonic()
    assert accept(ours, SECRET) is None
    over.set()
    assert time.monotonic() - began < 5.0


def test_a_proof_of_one_side_is_none_of_the_other(server: Server, tunnel: Tunnel) -> None:
    """What the leader says cannot be sent back to it as a follower's."""
    drawn, hello = ("a", "b"), {"node": "x"}
    assert _proof(SECRET, "leads", drawn, hello) != _proof(SECRET, "follows", drawn, hello)
    assert _proof(SECRET, "leads", drawn, hello) != _proof(SECRET, "leads", drawn, {"node": "y"})


def _tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    return ours, theirs
