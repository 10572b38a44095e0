"""What one host holds in memory is whole on another, or it is not believed."""

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from penstock.guard.format.index import INDEX
from penstock.guard.tiers.peers import Peers, RequestProof, list_seals
from penstock.guard.tiers.slots import Seal
from penstock.guard.tiers.slots import sealed_slots as whole
from penstock.launch.hosts.memory_server import MemoryServer

PLAN = "0123456789abcdef"
SECRET = "known"
WHERE = b'{"files": {}, "tensors": {}}'


def entry(content: bytes) -> dict[str, object]:
    return {"bytes": len(content), "blake3": blake3(content).hexdigest()}


def seal(
    memory: Path, rank: int, step: int, slot: int = 0, ranks: int = 2, mark: str = "m"
) -> Path:
    """A rank's files of a step, and its seal."""
    folder = memory / "fast-0" / PLAN / f"slot-{slot}"
    (folder / "state").mkdir(parents=True, exist_ok=True)
    name, content = f"state/__{rank}_0.distcp", f"rank {rank} step {step}".encode() * 1000
    (folder / name).write_bytes(content)
    (folder / INDEX).write_bytes(WHERE)
    files = {name: entry(content), INDEX: entry(WHERE)}
    Seal("run", mark, step, rank, ranks, files, {"step": step}).write(folder)
    return folder


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[tuple[Path, Peers]]]:
    memories = [tmp_path / name for name in "abc"]
    for memory in memories:
        memory.mkdir()
    shelves = [MemoryServer(memory, SECRET) for memory in memories]
    where = [f"127.0.0.1:{shelf.port}" for shelf in shelves]
    yield [(memory, Peers(where, n, SECRET)) for n, memory in enumerate(memories)]
    for shelf in shelves:
        shelf.close()


def test_a_sent_slot_is_whole_on_the_next_host(hosts: list[tuple[Path, Peers]]) -> None:
    (a, at_a), (b, _), _ = hosts
    slot = seal(a, rank=0, step=7)
    seal(b, rank=1, step=7)
    assert not whole(b / "fast-0")
    at_a.send(a, slot, ["state/__0_0.distcp"])
    [found] = whole(b / "fast-0")
    assert found.step == 7
    assert not found.find_damage()


def test_a_host_that_holds_nothing_fetches_the_newest_state_that_is_whole(
    hosts: list[tuple[Path, Peers]],
) -> None:
    (a, _), (b, _), (c, at_c) = hosts
    for rank, memory in ((0, a), (1, b)):
        seal(memory, rank, step=7, slot=0)
    seal(a, rank=0, step=9, slot=1)  # b was lost before it sealed this one
    seal(b, rank=1, step=9, slot=1, mark="another attempt")
    assert at_c.fetch(c) == 7
    [found] = whole(c / "fast-0")
    assert found.step == 7
    assert not found.find_damage()


def test_nothing_is_fetched_where_no_state_is_whole(hosts: list[tuple[Path, Peers]]) -> None:
    (a, _), _, (c, at_c) = hosts
    seal(a, rank=0, step=7)
    assert at_c.fetch(c) is None
    assert not list(list_seals(c))


def test_a_host_that_does_not_answer_holds_nothing(tmp_path: Path) -> None:
    peers = Peers(["127.0.0.1:1", "127.0.0.1:2"], 0, SECRET)
    assert peers.fetch(tmp_path) is None


def test_who_does_not_know_the_secret_gets_and_changes_nothing(
    hosts: list[tuple[Path, Peers]],
) -> None:
    (a, at_a), (b, _), _ = hosts
    slot = seal(a, rank=0, step=7)
    stranger = Peers(at_a.shelves, 0, "guessed")
    with pytest.raises(OSError, match="403"):
        stranger.send(a, slot, ["state/__0_0.distcp"])
    assert not list(b.rglob("*.distcp"))
    assert stranger.fetch(b) is None


@pytest.mark.parametrize(
    "path",
    ["../outside", "fast-0/../../x", f"fast-0/{PLAN}/slot-0/../../../x", "where", "pulse-r00000"],
)
def test_only_files_of_slots_can_be_asked_for(path: str, hosts: list[tuple[Path, Peers]]) -> None:
    _, at_a = hosts[0]
    for method in ("GET", "PUT", "DELETE"):
        with pytest.raises(OSError, match="400"):
            at_a._ask(at_a.shelves[1], method, path, b"", {"Content-Length": "0"})


def test_a_sender_that_dies_in_the_middle_leaves_no_seal(hosts: list[tuple[Path, Peers]]) -> None:
    """The old seal goes first: files of two steps are never one state."""
    (a, at_a), (b, _), _ = hosts
    slot = seal(a, rank=0, step=7)
    seal(b, rank=1, step=7)
    at_a.send(a, slot, ["state/__0_0.distcp"])
    slot = seal(a, rank=0, step=9)
    (slot / INDEX).unlink()  # the second file to be sent fails
    with pytest.raises(FileNotFoundError):
        at_a.send(a, slot, ["state/__0_0.distcp"])
    assert not whole(b / "fast-0")


def test_a_host_without_room_refuses(
    hosts: list[tuple[Path, Peers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (a, at_a), (b, _), _ = hosts
    monkeypatch.setattr("penstock.launch.hosts.memory_server.free_bytes", lambda folder: 10)
    slot = seal(a, rank=0, step=7)
    (slot / "state/__0_0.distcp").write_bytes(bytes(8 << 20))  # more than a line holds at once
    with pytest.raises(OSError, match="507"):
        at_a.send(a, slot, ["state/__0_0.distcp"])
    assert not list(list_seals(b))


def test_seals_are_what_a_shelf_tells_first(hosts: list[tuple[Path, Peers]]) -> None:
    (a, at_a), *_ = hosts
    seal(a, rank=0, step=3)
    [[slot, told]] = json.loads(at_a._ask(at_a.shelves[0], "GET", "seals"))
    assert slot == f"fast-0/{PLAN}/slot-0"
    assert told["step"] == 3


def _ask(port: str, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    line = http.client.HTTPConnection(*port.split(":"), timeout=10)  # type: ignore[arg-type]
    line.request(method, path, body, headers)
    return line.getresponse().status


def test_a_proof_is_good_once_and_for_one_request(hosts: list[tuple[Path, Peers]]) -> None:
    _, at_a = hosts[0]
    shelf, nothing = at_a.shelves[0], blake3(b"").hexdigest()
    path = f"/fast-0/{PLAN}/slot-0/seal-r0.json"

    def proof(method: str = "GET", secret: str = SECRET, digest: str = nothing) -> dict[str, str]:
        return RequestProof.made(secret, method, "/seals", digest).headers()

    heard = proof()
    assert _ask(shelf, "GET", "/seals", heard) == 200
    assert _ask(shelf, "GET", "/seals", heard) == 403  # heard by a stranger and sent again
    assert _ask(shelf, "GET", path, proof()) == 403
    assert _ask(shelf, "GET", "/seals", proof("PUT")) == 403
    assert _ask(shelf, "GET", "/seals", proof(secret="guessed")) == 403
    assert _ask(shelf, "GET", "/seals", {}) == 403
    late = proof() | {"Penstock-Time": f"{time.time() + 10:.3f}"}
    assert _ask(shelf, "GET", "/seals", late) == 403


def test_a_proof_of_another_day_is_refused(
    hosts: list[tuple[Path, Peers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, at_a = hosts[0]
    old = RequestProof.made(SECRET, "GET", "/seals", blake3(b"").hexdigest()).headers()
    real = time.time()
    monkeypatch.setattr("penstock.guard.tiers.peers.time.time", lambda: real + 86_400)
    assert _ask(at_a.shelves[0], "GET", "/seals", old) == 403


def test_a_body_other_than_the_signed_one_is_not_kept(hosts: list[tuple[Path, Peers]]) -> None:
    _, at_a = hosts[0]
    b, _ = hosts[1]
    name = f"fast-0/{PLAN}/slot-0/state/__0_0.distcp"
    signed = RequestProof.made(SECRET, "PUT", f"/{name}", blake3(b"good").hexdigest()).headers()
    assert _ask(at_a.shelves[1], "PUT", f"/{name}", signed, b"evil") == 403
    assert not list(b.rglob("*distcp*"))


def test_a_shelf_is_reachable_on_loopback_alone(tmp_path: Path) -> None:
    shelf = MemoryServer(tmp_path, SECRET)
    assert shelf._server.server_address[0] == "127.0.0.1"
    shelf.close()
