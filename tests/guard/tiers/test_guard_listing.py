"""What a run has saved, in every tier, and what is wrong with it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from one_rank import Alone
from penstock.errors import PenstockError
from penstock.guard import checkpoints
from penstock.guard.checkpoints import list_checkpoints, select, verify
from penstock.guard.format.index import INDEX
from penstock.guard.format.manifest import MANIFEST
from penstock.guard.format.published import SCALARS, StoredCheckpoint
from penstock.guard.tiers.listing import ListedCheckpoint, read_index
from penstock.guard.tiers.slots import Seal
from penstock.guard.tiers.stores import RemoteStore, open_store
from penstock.plan.job.layout import Layout
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save as save_run
from penstock.style import format_bytes
from penstock.watch.report.checkpoint_tables import about, details, made_by, table

STATE = "state/__0_0.distcp"


def put(folder: Path, step: int) -> Path:
    torch.manual_seed(step)
    state = {"model/w": torch.randn(30, 20), "optimizer/w/exp_avg": torch.randn(30, 20)}
    scalars = {"step": step, "layout": Layout(shard=4).to_json(), "stream": {"consumed": 9}}
    return checkpoints.save(folder, step, state, {}, scalars, Alone()).path


@pytest.fixture
def folder(run_file: Callable[..., Path], tmp_path: Path, monkeypatch: Any) -> RunFolder:
    """A run with steps 10 and 20 on disk, 20 elsewhere and 23 in memory."""
    monkeypatch.setenv("PENSTOCK_MEMORY", str(tmp_path / "memory"))
    run = load(run_file(**{"guard.durable": f"file://{tmp_path}/far"}))
    made = RunFolder(run.folder)
    made.make()
    save_run(run, made.run_file)
    put(made.checkpoints, 10)
    newest = put(made.checkpoints, 20)
    place = open_store(str(run.guard.durable), made.name)
    for file in (STATE, "state/.metadata", INDEX, SCALARS):
        place.put(20, file, newest / file)
    place.publish(20, (newest / MANIFEST).read_bytes())
    slot = made.scratch / "fast-0" / "plan" / "slot-0"
    found = put(tmp_path / "other", 23)
    slot.parent.mkdir(parents=True)
    shutil.copytree(found, slot)
    held = StoredCheckpoint(found)
    files = {name: held.files()[name] for name in (STATE, INDEX)}
    Seal("run", "mark", 23, 0, 1, files, held.scalars).write(slot)
    return made


def steps(found: list[ListedCheckpoint]) -> list[tuple[int, str, str]]:
    return [(one.step, one.tier, one.state) for one in found]


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def test_all_tiers_are_listed_newest_first_and_nearest_first(folder: RunFolder) -> None:
    found, unreachable = list_checkpoints(folder)
    assert unreachable == []
    assert steps(found) == [
        (23, "memory", "whole"),
        (20, "disk", "whole"),
        (20, "remote", "whole"),
        (10, "disk", "whole"),
    ]
    assert all(one.bytes > 30 * 20 * 8 for one in found)
    assert all(one.layout["shard"] == 4 for one in found)
    assert [one.age_s is None for one in found] == [False, False, True, False]
    assert all(verify(one) == [] for one in found)
    assert [list(read_index(one).tensors) for one in found] == [
        ["model/w", "optimizer/w/exp_avg"]
    ] * 4


@pytest.mark.parametrize("tier", ["memory", "disk", "remote"])
def test_a_flipped_bit_is_seen_by_verify_alone(folder: RunFolder, tier: str) -> None:
    one = next(k for k in list_checkpoints(folder)[0] if k.tier == tier)
    where = Path(one.files.where.removeprefix("file://"))
    flip(where / STATE)
    assert one.state == "whole"
    again = next(k for k in list_checkpoints(folder)[0] if k.tier == tier)
    assert again.problems == ()
    told: list[int] = []
    assert verify(again, told.append) == [f"{STATE}: content does not match its hash"]
    assert sum(told) == again.bytes


def test_what_is_missing_short_or_unreadable_is_seen_at_once(folder: RunFolder) -> None:
    (folder.checkpoints / "step-00000010" / STATE).unlink()
    state = folder.checkpoints / "step-00000020" / STATE
    state.write_bytes(state.read_bytes()[:-1])
    damaged = [one for one in list_checkpoints(folder)[0] if one.tier == "disk"]
    assert [one.state for one in damaged] == ["damaged", "damaged"]
    size = len(state.read_bytes())
    assert damaged[0].problems == (f"{STATE}: {size} bytes, not {size + 1}",)
    assert verify(damaged[1]) == [f"{STATE}: missing"]
    (folder.checkpoints / "step-00000010" / MANIFEST).write_text("{")
    (folder.checkpoints / "step-00000020" / SCALARS).write_text("{")
    problems = [one.problems[0] for one in list_checkpoints(folder)[0] if one.tier == "disk"]
    assert problems[0].startswith("scalars.json: ")
    assert problems[1].startswith("manifest.json: JSONDecodeError")


def test_what_was_put_aside_is_listed_and_never_chosen(folder: RunFolder) -> None:
    (folder.checkpoints / "step-00000010").rename(folder.checkpoints / ".damaged-00000010")
    found, _ = list_checkpoints(folder)
    assert (10, "disk", "damaged, put aside") in steps(found)
    with pytest.raises(PenstockError, match="no checkpoint of step 10; found: 20, 23"):
        select(found, 10)


def test_choosing_by_step_and_tier(folder: RunFolder) -> None:
    found, _ = list_checkpoints(folder)
    assert select(found)[0].step == 23
    assert [one.tier for one in select(found, 20)] == ["disk", "remote"]
    assert [one.tier for one in select(found, 20, "remote")] == ["remote"]
    with pytest.raises(PenstockError, match="no checkpoint of step 10 in memory; found: 23"):
        select(found, 10, "memory")


def test_what_a_running_run_replaces_meanwhile_is_not_called_damaged(folder: RunFolder) -> None:
    memory, disk, *_ = list_checkpoints(folder)[0]
    slot = Path(memory.files.where)
    flip(slot / STATE)
    (slot / "seal-r00000.json").unlink()
    assert verify(memory) is None
    shutil.rmtree(disk.files.where)
    assert verify(disk) is None


def test_a_place_that_does_not_answer_is_said(folder: RunFolder, monkeypatch: Any) -> None:
    def gone(self: RemoteStore) -> list[int]:
        raise ConnectionError("no route")

    monkeypatch.setattr(RemoteStore, "steps", gone)
    found, unreachable = list_checkpoints(folder)
    assert unreachable == ["no route"]
    assert [one.tier for one in found] == ["memory", "disk", "disk"]


def test_the_screen_names_what_matters(folder: RunFolder) -> None:
    from rich.console import Console

    found, _ = list_checkpoints(folder)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(found, folder.path))
    console.print(details(found[0], found[0].files.scalars(), read_index(found[0])))
    said = console.export_text()
    for word in (
        "memory",
        "slot-0",
        " step-00000010",
        "remote",
        "4 ranks",
        "model/w",
        "30 × 20",
        "float32",
    ):
        assert word in said
    told = about(found[0], found[0].files.scalars(), read_index(found[0]))
    assert told["parameters"] == "600 in 1 tensor"
    assert told["batches left out"] == "none"


def test_sizes_and_layouts_in_words() -> None:
    assert [format_bytes(n) for n in (12, 2048, 5 << 20, 3 << 30)] == [
        "12 B",
        "2.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]
    assert made_by({}) == made_by({"of": "another version"}) == "–"
    assert made_by(Layout().to_json()) == "1 rank"
    assert made_by(Layout(shard=2, tensor=2).to_json()) == "4 ranks: shard 2, tensor 2"
