"""Places for durable checkpoints: a folder and a URL behave alike, and only whole ones exist."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import real_ranks
from one_rank import Alone
from penstock.data.store.objects import Store
from penstock.errors import RunFailed
from penstock.guard import checkpoints
from penstock.guard.format.manifest import MANIFEST, manifest_bytes
from penstock.guard.format.published import StoredCheckpoint, file_entry
from penstock.guard.tiers.identity import run_identity
from penstock.guard.tiers.search import CheckpointSearch
from penstock.guard.tiers.stores import (
    CheckpointStore,
    DiskStore,
    ProtectedSteps,
    RemoteStore,
    open_store,
)
from penstock.ledger.journal.events import JournalEvent


@pytest.fixture(params=["disk", "remote"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    where = tmp_path / "there"
    where.mkdir()
    if request.param == "disk":
        return open_store(str(where), "run")
    pytest.importorskip("obstore")
    return open_store(where.as_uri(), "run")


def put(place: CheckpointStore, step: int, content: bytes = b"content") -> None:
    place.begin(step)
    place.put(step, "state/part", content)
    place.publish(step, manifest_bytes(step, {"state/part": file_entry(content)}))


def test_it_exists_once_it_is_published(place: CheckpointStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 1000)
    place.begin(3)
    place.put(3, "state/part", source)
    assert place.steps() == []
    place.publish(3, manifest_bytes(3, {"state/part": file_entry(source.read_bytes())}))
    assert place.steps() == [3]
    found = StoredCheckpoint(place.fetch(3, tmp_path / "landing"))
    assert found.find_damage() == []
    assert (found.path / "state/part").read_bytes() == source.read_bytes()


def test_what_was_never_published_goes(place: CheckpointStore, tmp_path: Path) -> None:
    put(place, 1)
    place.begin(2)
    place.put(2, "state/part", b"half")
    put(place, 4)
    place.retain(3)
    assert place.steps() == [4, 1]
    left = [p for p in (tmp_path / "there").rglob("*") if "00000002" in str(p) and p.is_file()]
    assert left == []


def test_the_newest_are_kept(place: CheckpointStore) -> None:
    for step in (2, 10, 9, 100):
        put(place, step)
    place.retain(2)
    assert place.steps() == [100, 10]
    place.delete(100)
    assert place.steps() == [10]


def test_the_best_stay_whatever_their_age(place: CheckpointStore) -> None:
    for step in (2, 4, 6, 8, 10):
        put(place, step)
    # The save of step 5, the best of all, has failed: the next best that is there stays.
    place.retain(1, ProtectedSteps(2, (5, 4, 2, 6)))
    assert place.steps() == [10, 4, 2]
    place.retain(1)
    assert place.steps() == [10]


def test_a_damaged_one_is_put_aside_and_may_come_again(place: CheckpointStore) -> None:
    for _ in range(3):
        put(place, 5)
        place.put_aside(5)
        assert place.steps() == []
    put(place, 5)
    assert place.steps() == [5]


def test_a_small_file_is_created_once(place: CheckpointStore) -> None:
    assert place.create("lease/000001", b"mine")
    assert not place.create("lease/000001", b"yours")
    assert place.read("lease/000001") == b"mine"
    place.write("beat", b"1")
    place.write("beat", b"2")
    assert place.read("beat") == b"2"
    with pytest.raises(FileNotFoundError):
        place.read("absent")


def test_a_run_has_one_identity(place: CheckpointStore) -> None:
    made = run_identity(place, Alone())
    assert run_identity(place, Alone()) == made
    assert len(made) == 32


def test_a_foreign_manifest_cannot_write_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    remote = open_store(tmp_path.as_uri(), "run")
    remote.begin(1)
    remote.publish(1, manifest_bytes(1, {"../../outside": file_entry(b"")}))
    with pytest.raises(ValueError, match="outside the checkpoint"):
        remote.fetch(1, tmp_path / "landing")


State = dict[str, torch.Tensor]


def saved(folder: Path, step: int) -> None:
    state = {"a": torch.full((4,), float(step))}
    checkpoints.save(folder, step, state, {}, {"step": step}, Alone())


def sent(remote: CheckpointStore, folder: Path, step: int) -> None:
    """As a save does: files first, the manifest last."""
    source = folder / f"step-{step:08d}"
    remote.begin(step)
    for name in StoredCheckpoint(source).files():
        remote.put(step, name, source / name)
    remote.publish(step, (source / MANIFEST).read_bytes())


def looked(disk: DiskStore, remote: CheckpointStore) -> Any:
    return CheckpointSearch([], [disk, remote], disk.root, "r", Alone()).newest_good()


def test_the_newest_good_one_of_any_place_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    remote = open_store((tmp_path / "far").as_uri(), "run")
    (tmp_path / "far").mkdir()
    old, disk = tmp_path / "old", DiskStore(tmp_path / "near")
    for step in (1, 2, 3):
        saved(old, step)
        sent(remote, old, step)
    saved(disk.root, 2)
    found = looked(disk, remote)
    assert found.checkpoint.step == 3
    assert found.checkpoint.path.parent == disk.root  # brought here, and good from now on
    (tmp_path / "far/run/step-00000003/state/__0_0.distcp").write_bytes(b"bad")
    disk.delete(3)
    found = looked(disk, remote)
    assert found.checkpoint.step == 2
    assert found.rejected[0].startswith("step-00000003 (remote): state/__0_0.distcp: 3 bytes")
    assert remote.steps() == [2, 1]
    assert disk.steps() == [2]


class Away(RemoteStore):
    """Nobody answers."""

    def steps(self) -> list[int]:
        raise ConnectionError("s3://far was tried for 20 s")


def test_a_place_that_does_not_answer_is_no_reason_to_begin_again(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    disk, away = DiskStore(tmp_path / "near"), Away(Store(tmp_path.as_uri()))
    with pytest.raises(RunFailed, match="not every place could be asked"):
        looked(disk, away)
    saved(disk.root, 2)
    found = looked(disk, away)
    assert found.checkpoint.step == 2
    assert found.unreachable == ["s3://far was tried for 20 s"]


def two_ranks(where: str) -> dict[str, Any]:
    """On one of two ranks: sharded and shared tensors, fast and durable, then damage."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    from penstock.guard.save.saver import Saver
    from penstock.plan.job.layout import Layout
    from penstock.train.world.world import join

    class Told:
        def write(self, event: JournalEvent) -> None: ...
        def at(self, phase: str, step: int | None = None) -> None: ...
        def beat(self) -> None: ...
        def beside(self, phase: str, step: int) -> None: ...

    home = Path(where)
    world = join(Layout(1, 2, 1), "cpu", 60.0)
    mesh = world.fsdp_mesh

    def state(step: int) -> dict[str, torch.Tensor]:
        whole = torch.arange(21.0).view(7, 3) + 100 * step
        return {
            "model/odd": distribute_tensor(whole, mesh, [Shard(0)]),
            "model/wide": distribute_tensor(whole.t().contiguous(), mesh, [Shard(1)]),
            "model/both": distribute_tensor(whole.double(), mesh, [Replicate()]),
            "model/one": distribute_tensor(whole[:1].clone(), mesh, [Shard(0)]),  # one has nothing
            "model/plain": torch.tensor(step),
        }

    disk = DiskStore(home / "checkpoints")
    saver = Saver(home / "fast-0", [disk], world, Told(), Told(), 3, "r", group=world.save_group)
    saver.prepare(state(0))
    for step in (1, 2, 3):
        local = {"r": torch.full((2,), float(10 * step + world.rank))}
        saver.stage(step, state(step), local, {"step": step}, durable=step == 2)
        saver.wait()
        world.gather(None)
    answer: dict[str, Any] = {"disk": disk.steps(), "failed": saver.failed}

    def look() -> Any:
        return CheckpointSearch([home / "fast-0"], [disk], disk.root, "r", world).newest_good()

    def values(found: Any) -> dict[str, Any]:
        into = state(0)
        checkpoints.load(found, into, world)
        whole = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in into.items()}
        return {"step": found.step, "tier": found.tier} | {n: t.tolist() for n, t in whole.items()}

    answer["memory"] = values(look().checkpoint)
    answer["local"] = checkpoints.load_local(look().checkpoint, world.rank)["r"].tolist()
    world.gather(None)
    if world.rank == 1:  # one rank's seal is missing: that slot is nothing for any of them
        next((home / "fast-0").glob("*/slot-0/seal-r00001.json")).unlink()
    world.gather(None)
    answer["older"] = values(look().checkpoint)
    world.gather(None)
    if world.rank == 1:
        path = next((home / "fast-0").glob("*/slot-1/state/__1_0.distcp"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    world.gather(None)
    looked = look()
    answer["rejected"] = looked.rejected
    answer["durable"] = values(looked.checkpoint)
    saver.close()
    real_ranks.leave()
    return answer


CASES = [("memory", 3, "memory"), ("older", 2, "memory"), ("durable", 2, "disk")]


def test_two_ranks_save_find_and_reject_together(
    tmp_path: Path, ranks: Callable[..., list[Any]]
) -> None:
    for rank, answer in enumerate(ranks(2, two_ranks, str(tmp_path))):
        assert (answer["disk"], answer["failed"]) == ([2], "")
        for key, step, tier in (
            ("memory", 3, "memory"),
            ("older", 2, "memory"),
            ("durable", 2, "disk"),
        ):
            whole = (torch.arange(21.0).view(7, 3) + 100 * step).tolist()
            found = answer[key]
            assert (found["step"], found["tier"]) == (step, tier)
            assert found["model/odd"] == found["model/both"] == whole
            assert found["model/wide"] == torch.tensor(whole).t().tolist()
            assert found["model/one"] == whole[:1]
            assert found["model/plain"] == step
        assert answer["local"] == [30.0 + rank] * 2
        assert answer["rejected"] == [
            "step 2 in memory: state/__1_0.distcp: content does not match its hash"
        ]
    files = sorted(p.name for p in (tmp_path / "checkpoints/step-00000002/state").iterdir())
    assert files == [".metadata", "__0_0.distcp", "__1_0.distcp"]
