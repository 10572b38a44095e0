"""A checkpoint is whole or does not exist; one that has changed since is never believed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import real_ranks
from old_formats import as_format
from one_rank import Alone
from penstock.errors import RunFailed
from penstock.guard import checkpoints
from penstock.guard.detect.fingerprints import weights_hash
from penstock.guard.format.published import StoredCheckpoint, newest_path, published_checkpoints
from penstock.guard.tiers import stores
from penstock.guard.tiers.search import CheckpointSearch
from penstock.guard.tiers.stores import DiskStore


class Small:
    """A model with momentum that can go on, be saved and be loaded."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))
        self.weights = {name: p.detach() for name, p in self.model.named_parameters()}
        self.momentum = {name: torch.zeros_like(p) for name, p in self.weights.items()}

    def go_on(self, steps: int = 1) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = nn.functional.cross_entropy(self.model(torch.arange(12)), torch.arange(12))
            loss.backward()
            for name, param in self.model.named_parameters():
                self.momentum[name].mul_(0.9).add_(param.grad)
                self.weights[name].sub_(self.momentum[name], alpha=1e-2)
            self.model.zero_grad()
            losses.append(loss.item())
        return losses

    @property
    def state(self) -> dict[str, torch.Tensor]:
        named = {f"model/{name}": weight for name, weight in self.weights.items()}
        return named | {f"optimizer/{n}/momentum": m for n, m in self.momentum.items()}

    @property
    def hash(self) -> str:
        return weights_hash(self.weights, None)

    def save(
        self, folder: Path, step: int, local: dict[str, Any] | None = None
    ) -> StoredCheckpoint:
        return checkpoints.save(folder, step, self.state, local or {}, {"step": step}, Alone())

    def load(self, saved: StoredCheckpoint) -> None:
        checkpoints.load(saved, self.state, Alone())


@pytest.fixture
def small() -> Small:
    made = Small()
    made.go_on(2)
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StoredCheckpoint:
    """One good checkpoint with local state, to be copied and damaged."""
    made = Small()
    made.go_on(2)
    return made.save(tmp_path_factory.mktemp("whole"), 2, {"residual.0": torch.randn(50)})


def newest_good(folder: Path, world: Any) -> tuple[StoredCheckpoint | None, list[str]]:
    """As a rank looks for it, on disk alone."""
    found = CheckpointSearch([], [DiskStore(folder)], folder, "a run", world).newest_good()
    return found.checkpoint, found.rejected


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_a_checkpoint_has_the_parts_it_says(whole: StoredCheckpoint) -> None:
    assert names_in(whole.path) == [
        "index.json",
        "local-r00000.safetensors",
        "manifest.json",
        "scalars.json",
        "state",
    ]
    listed = set(whole.files())
    on_disk = {str(p.relative_to(whole.path)) for p in whole.path.rglob("*") if p.is_file()}
    assert listed == on_disk - {"manifest.json"}
    assert whole.size_bytes == sum((whole.path / name).stat().st_size for name in listed)
    assert (whole.step, whole.scalars) == (2, {"step": 2})
    assert whole.find_damage() == []


def test_what_is_loaded_goes_on_exactly_as_what_was_saved(tmp_path: Path, small: Small) -> None:
    saved = small.save(tmp_path, 2)
    hash_then, expected = small.hash, small.go_on(3)
    other = Small(seed=9)
    assert other.hash != hash_then
    other.load(saved)
    assert other.hash == hash_then
    assert other.go_on(3) == expected
    weights_only = Small(seed=8)
    named = {f"model/{name}": weight for name, weight in weights_only.weights.items()}
    checkpoints.load(saved, named, None)
    assert weights_only.hash == hash_then


def test_local_state_belongs_to_its_rank(tmp_path: Path, small: Small) -> None:
    saved = small.save(tmp_path, 2, {"residual.0": torch.arange(3.0)})
    assert checkpoints.load_local(saved, 0)["residual.0"].tolist() == [0, 1, 2]
    assert checkpoints.load_local(saved, 1) == {}
    assert checkpoints.load_local(small.save(tmp_path, 3), 0) == {}


FILES = [
    "index.json",
    "local-r00000.safetensors",
    "manifest.json",
    "scalars.json",
    "state/.metadata",
    "state/*.distcp",
]


@pytest.mark.parametrize("pattern", FILES)
@pytest.mark.parametrize("harm", ["first", "middle", "last", "truncated", "longer", "deleted"])
def test_any_change_of_any_file_is_noticed(
    tmp_path: Path, whole: StoredCheckpoint, pattern: str, harm: str
) -> None:
    copy = StoredCheckpoint(tmp_path / whole.path.name)
    shutil.copytree(whole.path, copy.path)
    (path,) = copy.path.glob(pattern)
    size = path.stat().st_size
    if harm == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    elif harm == "longer":
        path.write_bytes(path.read_bytes() + b"x")
    elif harm == "deleted":
        path.unlink()
    else:
        flip(path, {"first": 0, "middle": size // 2, "last": size - 1}[harm])
    (problem,) = copy.find_damage()
    assert problem.startswith(f"{path.relative_to(copy.path)}: ")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_manifest_is_a_finding_never_a_crash(
    whole: StoredCheckpoint, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A bit of the manifest flips: it is noticed, or the manifest still says the same."""
    copy = StoredCheckpoint(tmp_path_factory.mktemp("manifest"))
    manifest = (whole.path / "manifest.json").read_bytes()
    (copy.path / "state").mkdir()
    for part in whole.path.rglob("*"):
        if part.is_file() and part.name != "manifest.json":
            (copy.path / part.relative_to(whole.path)).hardlink_to(part)
    (copy.path / "manifest.json").write_bytes(manifest)
    flip(
        copy.path / "manifest.json",
        data.draw(st.integers(0, len(manifest) - 1), label="byte"),
        data.draw(st.integers(0, 7), label="bit"),
    )
    if not copy.find_damage():
        assert copy.files() == whole.files()


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"files": []}', '{"files": {"a": 1}}'])
def test_a_manifest_of_another_kind_is_a_finding(
    tmp_path: Path, whole: StoredCheckpoint, text: str
) -> None:
    copy = StoredCheckpoint(tmp_path / whole.path.name)
    shutil.copytree(whole.path, copy.path)
    (copy.path / "manifest.json").write_text(text)
    assert len(copy.find_damage()) == 1


def test_ranks_share_the_reading_and_miss_nothing(tmp_path: Path, whole: StoredCheckpoint) -> None:
    copy = StoredCheckpoint(tmp_path / whole.path.name)
    shutil.copytree(whole.path, copy.path)
    for name in copy.files():
        flip(copy.path / name, 0)
    for parts in (1, 2, 3, 7):
        found = [problem for part in range(parts) for problem in copy.find_damage(part, parts)]
        assert sorted(found) == copy.find_damage()
    assert len(copy.find_damage()) == len(copy.files())


def test_a_save_that_was_killed_does_not_exist_and_leaves_no_trace(
    tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.save(tmp_path, 1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            small.save(tmp_path, 3)
    assert names_in(tmp_path) == [".writing-00000003", "step-00000001"]
    assert [c.step for c in published_checkpoints(tmp_path)] == [1]
    found, rejected = newest_good(tmp_path, Alone())
    assert found is not None
    assert (found.step, rejected) == (1, [])
    # The next save is of another step: what the killed one wrote must not stay for ever.
    assert small.save(tmp_path, 4).find_damage() == []
    assert names_in(tmp_path) == ["step-00000001", "step-00000004"]


def test_without_a_manifest_it_does_not_exist_and_can_be_saved_anew(
    tmp_path: Path, small: Small
) -> None:
    (small.save(tmp_path, 1).path / "manifest.json").unlink()
    assert published_checkpoints(tmp_path) == []
    assert newest_path(tmp_path) is None
    assert newest_good(tmp_path, Alone()) == (None, [])
    assert small.save(tmp_path, 1).find_damage() == []
    assert [c.step for c in published_checkpoints(tmp_path)] == [1]


def test_an_empty_or_absent_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert newest_good(tmp_path, Alone()) == (None, [])
    assert newest_good(tmp_path / "absent", Alone()) == (None, [])


def test_a_copy_under_another_name_is_not_a_checkpoint(tmp_path: Path, small: Small) -> None:
    saved = small.save(tmp_path, 2)
    shutil.copytree(saved.path, tmp_path / "step-00000002-copy")
    assert [c.path for c in published_checkpoints(tmp_path)] == [saved.path]


def test_the_newest_good_one_is_found_and_damaged_ones_are_put_aside(
    tmp_path: Path, small: Small
) -> None:
    paths = {}
    for step in (1, 2, 3):
        paths[step] = small.save(tmp_path, step).path
    flip(paths[3] / "scalars.json", 5)
    (paths[2] / "state" / ".metadata").unlink()
    found, rejected = newest_good(tmp_path, Alone())
    assert found == StoredCheckpoint(paths[1])
    assert rejected == [
        "step-00000003: scalars.json: content does not match its hash",
        "step-00000002: state/.metadata: missing",
    ]
    assert names_in(tmp_path) == [".damaged-00000002", ".damaged-00000003", "step-00000001"]
    assert newest_good(tmp_path, Alone()) == (found, [])


def test_the_same_step_can_be_damaged_twice(tmp_path: Path, small: Small) -> None:
    small.save(tmp_path, 1)
    for _ in range(3):
        flip(small.save(tmp_path, 2).path / "scalars.json", 0)
        found, rejected = newest_good(tmp_path, Alone())
        assert found is not None
        assert (found.step, len(rejected)) == (1, 1)


def test_all_damaged_is_said_and_not_trained_over(tmp_path: Path, small: Small) -> None:
    for step in (1, 2):
        flip(small.save(tmp_path, step).path / "scalars.json", 0)
    with pytest.raises(RunFailed) as caught:
        newest_good(tmp_path, Alone())
    message = str(caught.value)
    assert "no checkpoint in" in message
    assert "step-00000001: scalars.json" in message
    assert "step-00000002: scalars.json" in message
    # Nothing is renamed, so a disk that could not be read for a moment has lost nothing.
    assert names_in(tmp_path) == ["step-00000001", "step-00000002"]
    flip(tmp_path / "step-00000002" / "scalars.json", 0)
    assert newest_good(tmp_path, Alone()) == (StoredCheckpoint(tmp_path / "step-00000002"), [])


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_are_kept(tmp_path: Path, small: Small, keep: int) -> None:
    for step in (2, 10, 9, 100):  # by number, not by name or age
        small.save(tmp_path, step)
    (tmp_path / ".deleting-00000001").mkdir()  # a deletion that was killed
    DiskStore(tmp_path).retain(keep)
    assert [c.step for c in published_checkpoints(tmp_path)] == [100, 10, 9, 2][:keep]
    assert all(c.find_damage() == [] for c in published_checkpoints(tmp_path))
    assert len(names_in(tmp_path)) == min(keep, 4)


def test_a_killed_deletion_does_not_stop_a_later_one(tmp_path: Path, small: Small) -> None:
    small.save(tmp_path, 2)
    shutil.copytree(small.save(tmp_path, 1).path, tmp_path / ".deleting-00000001")
    DiskStore(tmp_path).retain(1)
    assert names_in(tmp_path) == ["step-00000002"]


def test_saving_a_step_twice_is_harmless(tmp_path: Path, small: Small) -> None:
    first = small.save(tmp_path, 2)
    before = {p: p.read_bytes() for p in first.path.rglob("*") if p.is_file()}
    small.go_on()
    assert small.save(tmp_path, 2) == first
    assert {p: p.read_bytes() for p in first.path.rglob("*") if p.is_file()} == before
    assert names_in(tmp_path) == ["step-00000002"]


def test_the_manifest_is_written_last(
    tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is on the disk before the name appears under which it will be believed."""
    told: list[str] = []
    sync, write_synced = stores.sync, stores.write_synced

    def tell(path: Path) -> None:
        told.append(path.name)
        sync(path)

    def tell_and_write(path: Path, content: bytes) -> None:
        told.append(path.name)
        write_synced(path, content)

    monkeypatch.setattr(checkpoints, "sync", tell)
    monkeypatch.setattr(stores, "sync", tell)
    monkeypatch.setattr(stores, "write_synced", tell_and_write)
    saved = small.save(tmp_path, 2)
    files = {path.name for path in saved.path.rglob("*")}
    manifest = told.index("manifest.json")
    assert files - {"manifest.json"} <= set(told[:manifest])
    assert told[-1] == tmp_path.name


def one_bit_apart(value: float) -> float:
    bits = torch.tensor([value]).view(torch.int32) ^ 1
    return float(bits.view(torch.float32))


def test_the_hash_of_weights_sees_one_bit_of_one_weight(small: Small) -> None:
    before = small.hash
    assert small.hash == before
    with torch.no_grad():
        weight = small.model[1].weight
        old = float(weight[3, 5])
        weight[3, 5] = one_bit_apart(old)
        assert small.hash != before
        weight[3, 5] = old
    assert small.hash == before


def test_the_hash_of_weights_sees_names_types_and_shapes() -> None:
    def of(**tensors: torch.Tensor) -> str:
        return weights_hash(tensors, None)

    zeros = torch.zeros(6)
    hashes = [
        of(a=zeros),
        of(b=zeros),
        of(a=zeros.view(2, 3)),
        of(a=zeros.view(3, 2)),
        of(a=zeros.int()),
        of(a=zeros[:3], b=zeros[3:]),
        of(a=torch.tensor(0)),  # a counter, such as batch norm keeps, has no dimension
        of(a=zeros.bfloat16()),
    ]
    assert len(set(hashes)) == len(hashes)
    assert of(a=zeros.view(2, 3).t()) == of(a=zeros.view(3, 2))  # not how they lie in memory


def two_ranks(where: str) -> dict[str, Any]:
    """On one of two ranks: a good checkpoint, a newer one damaged in a file only one rank reads."""

    from penstock.plan.job.layout import Layout
    from penstock.train.world.world import join

    folder = Path(where)
    world = join(Layout(2, 1, 1), "cpu", 60.0)
    made = Small()
    made.go_on()
    for step in (1, 2):
        local = {"residual.0": torch.full((3,), float(world.rank + 10 * step))}
        checkpoints.save(folder, step, made.state, local, {"step": step}, world)
    answer: dict[str, Any] = {"listed": sorted(published_checkpoints(folder)[0].files())}
    world.gather(None)
    if world.rank == 0:
        flip(folder / "step-00000002" / "local-r00001.safetensors", 100)
    world.gather(None)
    found, answer["rejected"] = newest_good(folder, world)
    assert found is not None
    answer["step"] = found.step
    answer["local"] = checkpoints.load_local(found, world.rank)["residual.0"].tolist()
    world.gather(None)
    if world.rank == 0:
        flip(folder / "step-00000001" / "scalars.json", 0)
    world.gather(None)
    try:
        newest_good(folder, world)
    except RunFailed as error:
        answer["error"] = str(error)
    real_ranks.leave()
    return answer


def test_two_ranks_save_judge_and_refuse_together(
    tmp_path: Path, ranks: Callable[..., list[Any]]
) -> None:
    answers = ranks(2, two_ranks, str(tmp_path))
    for rank, answer in enumerate(answers):
        assert "local-r00001.safetensors" in answer["listed"]
        assert answer["step"] == 1
        assert answer["rejected"] == [
            "step-00000002: local-r00001.safetensors: content does not match its hash"
        ]
        assert answer["local"] == [10.0 + rank] * 3
        assert "no checkpoint in" in answer["error"]
    assert names_in(tmp_path) == [".damaged-00000002", "step-00000001"]


def test_scalars_are_plain_json(whole: StoredCheckpoint) -> None:
    assert json.loads((whole.path / "scalars.json").read_text()) == {"step": 2}


def test_what_a_checkpoint_lacks_is_an_error_like_any_other(tmp_path: Path, small: Small) -> None:
    """torch's own is no `Exception`: a rank would end without a word."""
    saved = small.save(tmp_path, 2)
    with pytest.raises(OSError, match="model/other"):
        checkpoints.load(saved, {"model/other": torch.zeros(3)}, Alone())


def test_another_format_is_refused(tmp_path: Path, small: Small) -> None:
    saved = small.save(tmp_path, 2)
    as_format(saved.path, 1)
    with pytest.raises(RunFailed, match="in format 1, and this version of Penstock reads format 3"):
        small.load(saved)
