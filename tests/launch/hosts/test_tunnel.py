"""Hosts of a run reach each other's services through their tunnels; nobody else does."""

import contextlib
import hashlib
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.launch.hosts import certificates, tunnel_process
from penstock.launch.hosts.tunnel import Tunnel
from penstock.train.world import tunnel_store

SECRET = "of this run"
LIMIT_S = 30.0


class Echo:
    """A service that sends everything back, and closes when its peer has."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.server.getsockname()[1]
        self.came = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self.server.accept()
            except OSError:
                return
            self.came += 1
            threading.Thread(target=self._echo, args=(sock,), daemon=True).start()

    def _echo(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while data := sock.recv(1 << 16):
                sock.sendall(data)


class Hosts:
    """Two tunnels, and one service behind the first."""

    def __init__(self, folder: Path) -> None:
        self.echo, self.strangers = Echo(), list[tuple[int, str, str]]()
        made = []
        for number, node in enumerate("ab"):
            (folder / node).mkdir()
            services = {"echo": self.echo.port} if node == "a" else {}
            told = (lambda *words: self.strangers.append(words)) if node == "a" else print
            bind = [f"127.0.0.{number + 1}"]
            made.append(Tunnel(SECRET, node, bind, services, folder / node, told))
        self.a, self.b = made

    def answer(self, content: bytes = b"ping") -> bytes:
        """What comes back of it from a through b."""
        way = self.b.forward(["127.0.0.1"], self.a.port, "echo")
        with socket.create_connection(("127.0.0.1", way.port), timeout=LIMIT_S) as sock:
            threading.Thread(target=_send_all, args=(sock, content), daemon=True).start()
            return b"".join(iter(lambda: sock.recv(1 << 16), b""))

    def close(self) -> None:
        self.a.close()
        self.b.close()
        self.echo.server.close()


def _send_all(sock: socket.socket, content: bytes) -> None:
    sock.sendall(content)
    sock.shutdown(socket.SHUT_WR)  # the end of one direction; the other goes on


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    yield made
    made.close()


@pytest.mark.parametrize("size", [0, 1, 65_536, 20_000_000])
def test_bytes_come_through_unchanged_both_ways(hosts: Hosts, size: int) -> None:
    content = hashlib.shake_256(b"x").digest(size)
    assert hosts.answer(content) == content


@given(st.lists(st.binary(max_size=5000), max_size=8))
@settings(max_examples=25)
def test_pieces_of_any_size_come_through(hosts: Hosts, pieces: list[bytes]) -> None:
    assert hosts.answer(b"".join(pieces)) == b"".join(pieces)


def _connected(hosts: Hosts) -> socket.socket:
    return socket.create_connection(("127.0.0.1", hosts.a.port), timeout=LIMIT_S)


def _shaken(hosts: Hosts, context: ssl.SSLContext, line: bytes) -> bytes:
    """What a's tunnel answers to somebody with another certificate, or none."""
    with _connected(hosts) as sock, contextlib.suppress(ssl.SSLError, ConnectionError):
        tls = context.wrap_socket(sock)
        tls.sendall(line)
        return tls.recv(100)
    return b""


def _no_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _other_run() -> ssl.SSLContext:
    _, context = certificates.contexts("another run", "a")
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("context", [_no_certificate, _other_run])
def test_who_has_no_certificate_of_the_run_reaches_nothing(
    hosts: Hosts, context: Callable[[], ssl.SSLContext]
) -> None:
    came = hosts.echo.came
    for service in (b"echo\n", b"check\n", b"port 22\n"):
        assert _shaken(hosts, context(), service) == b""
    assert hosts.echo.came == came
    assert hosts.answer() == b"ping"


@pytest.mark.parametrize(
    "service", [b"other\n", b"port 22\n", b"port -1\n", b"echo" + b" " * 400, b"\xff\n"]
)
def test_a_host_reaches_only_what_is_offered(hosts: Hosts, service: bytes) -> None:
    _, context = certificates.contexts(SECRET, "b")
    came = hosts.echo.came
    assert _shaken(hosts, context, service) == b""
    assert hosts.echo.came == came


def test_a_host_that_is_not_of_the_run_is_not_believed(hosts: Hosts) -> None:
    """Somebody may listen at the leader's address by now."""
    server, _ = certificates.contexts("another run", "a")
    with socket.create_server(("127.0.0.1", 0)) as fake:

        def serve() -> None:
            sock, _ = fake.accept()
            with contextlib.suppress(OSError):
                server.wrap_socket(sock, server_side=True)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(OSError, match=r"certificate verify failed"):
            hosts.b.forward(["127.0.0.1"], fake.getsockname()[1], "echo")


HOSTILE = [b"[]\n", b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 500, b"x" * 100_000]


@pytest.mark.parametrize("said", HOSTILE)
def test_strange_words_cost_one_connection(hosts: Hosts, said: bytes) -> None:
    with _connected(hosts) as sock, contextlib.suppress(OSError):
        sock.sendall(said)
        assert hosts.answer() == b"ping"


@given(st.binary(min_size=1, max_size=600), st.booleans())
@settings(max_examples=60)
def test_random_words_cost_one_connection(hosts: Hosts, said: bytes, like_tls: bool) -> None:
    with _connected(hosts) as sock, contextlib.suppress(OSError):
        sock.sendall((b"\x16\x03\x01\x02\x00\x01" if like_tls else b"") + said)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    assert hosts.answer() == b"ping"


def test_a_port_scan_is_one_line_on_record(hosts: Hosts) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError):
            sock = _connected(hosts)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
    assert hosts.answer() == b"ping"
    deadline = time.monotonic() + LIMIT_S
    while not hosts.strangers and time.monotonic() < deadline:
        time.sleep(0.05)
    count, address, why = hosts.strangers[0]
    assert count > 0
    assert address == "127.0.0.1"
    assert why
    assert len(hosts.strangers) < 10


def test_connections_that_say_nothing_do_not_keep_hosts_out(hosts: Hosts) -> None:
    """More than the tunnel keeps waiting at once, all of them silent."""
    with contextlib.ExitStack() as stack:
        for _ in range(tunnel_process.MOST_PENDING + 200):
            stack.enter_context(_connected(hosts))
        for _ in range(5):
            began = time.monotonic()
            assert hosts.answer() == b"ping"
            assert time.monotonic() - began < tunnel_process.HANDSHAKE_S


def test_the_process_goes_with_the_one_that_started_it(tmp_path: Path) -> None:
    made = Tunnel(SECRET, "x", ["127.0.0.1"], {}, tmp_path)
    made.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", made.port), timeout=LIMIT_S)
    with pytest.raises(OSError, match="no answer"):
        made.forward(["127.0.0.1"], made.port, "echo")


def test_the_secret_is_on_no_command_line_and_in_no_environment(hosts: Hosts) -> None:
    pid = hosts.a._process.pid
    for name in ("cmdline", "environ"):
        assert SECRET.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_only_the_owner_can_ask_by_the_socket(hosts: Hosts) -> None:
    assert hosts.a.socket.stat().st_mode & 0o077 == 0


def test_without_the_library_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from penstock.launch.hosts import certificates\n"
        "certificates.contexts('s', 'n')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode
    assert "penstock[hosts]" in found.stderr


# Gloo through tunnels


def _rank(sockets: list[str], groups: int) -> tuple[list[float], list[str]]:
    """Sums over all ranks in several groups, and where this process listens."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    host = rank // 2
    os.environ[tunnel_store.SOCKET], os.environ[tunnel_store.HOST] = sockets[host], str(host)
    inner = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    store = tunnel_store.wrap_for_tunnels(inner)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
    made = [dist.new_group(backend="gloo") for _ in range(groups)]
    pair = [dist.new_group([n, n + 2], backend="gloo") for n in range(2)][rank % 2]
    sums = []
    for group in (None, *made):
        values = torch.full((100_000,), float(rank + 1))
        dist.all_reduce(values, group=group)
        sums.append(values.unique().item())
    one = torch.tensor([float(rank)])
    dist.all_reduce(one, group=pair)
    sums.append(one.item())
    listens = [
        line.split()[1]
        for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and _inode_is_ours(line.split()[9])
    ]
    dist.barrier()
    return sums, listens


def _inode_is_ours(inode: str) -> bool:
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(fd) == f"socket:[{inode}]":
                return True
    return False


def test_collectives_of_two_hosts_go_through_their_tunnels(
    hosts: Hosts, ranks: Callable[..., list[Any]]
) -> None:
    where = [(["127.0.0.1"], hosts.a.port), (["127.0.0.2"], hosts.b.port)]
    hosts.a.set_hosts(where)
    hosts.b.set_hosts(where)
    found = ranks(4, _rank, [str(hosts.a.socket), str(hosts.b.socket)], 3)
    for rank, (sums, listens) in enumerate(found):
        assert sums == [10.0] * 4 + [2.0 * (rank % 2) + 2.0]
        assert listens
        assert all(address.startswith("0100007F:") for address in listens), listens
