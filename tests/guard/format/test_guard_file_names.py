"""A checkpoint from a stranger: no name in it leads out of its folder, and no link is followed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from one_rank import Alone
from penstock import untrusted
from penstock.errors import PenstockError
from penstock.guard import checkpoints
from penstock.guard.checkpoints import list_checkpoints, verify
from penstock.guard.convert.source import open_checkpoint
from penstock.guard.convert.writers import RunCheckpoint, write_safetensors
from penstock.guard.format.file_names import check_file_name
from penstock.guard.format.manifest import MANIFEST, CheckpointManifest, manifest_bytes
from penstock.guard.format.published import SCALARS, StoredCheckpoint, file_entry
from penstock.guard.tiers.peers import Peers
from penstock.guard.tiers.slots import Seal
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save as save_run

STATE = "state/__0_0.distcp"
SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----" + b"x" * 400
OUTSIDE = ["../../secret", "/etc/passwd", "state/../../../secret", "..", "", ".", "state//x",
           "a\0b", "state/\udcff", "a\\b", "./x", "x/" * 9 + "x", "é" * 4, "n" * 300]  # fmt: skip


@pytest.fixture
def run(run_file: Callable[..., Path], tmp_path: Path, monkeypatch: Any) -> RunFolder:
    """A run folder with step 4, and a secret two folders above it."""
    monkeypatch.setenv("PENSTOCK_MEMORY", str(tmp_path / "memory"))
    made = load(run_file("strange"))
    folder = RunFolder(made.folder)
    folder.make()
    save_run(made, folder.run_file)
    state = {"model/w": torch.arange(40.0)}
    scalars = {"step": 4, "layout": {"shard": 1}}
    checkpoints.save(folder.checkpoints, 4, state, {}, scalars, Alone())
    (folder.path / "secret").write_bytes(SECRET)
    return folder


def sealed(path: Path) -> None:
    """Write the manifest anew, so that every hash is right: a stranger can do that too."""
    files = CheckpointManifest.from_bytes((path / MANIFEST).read_bytes()).files
    made = {name: file_entry((path / name).read_bytes()) for name in files}
    (path / MANIFEST).write_bytes(manifest_bytes(4, made))


def points_at(path: Path, name: str) -> None:
    """Make the index name another file for the tensor."""
    index = json.loads((path / "index.json").read_text())
    index["files"] = {name: len(SECRET)}
    for entry in index["tensors"].values():
        for chunk in entry["chunks"]:
            chunk |= {"file": name, "at": 0}
    (path / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_that_leads_out_is_damage_to_all_who_look(
    run: RunFolder, tmp_path: Path, name: str
) -> None:
    path = run.checkpoints / "step-00000004"
    points_at(path, name)
    sealed(path)
    found = StoredCheckpoint(path)
    assert "outside the checkpoint" in str(found.find_damage())
    (kept,) = list_checkpoints(run)[0]
    assert "outside the checkpoint" in str(verify(kept))
    for source in (str(run.path), str(path)):
        with (
            pytest.raises(PenstockError, match="outside the checkpoint"),
            open_checkpoint(source, None, "runs", False),
        ):
            pass
    with pytest.raises(ValueError, match="outside the checkpoint"):
        write_safetensors(
            RunCheckpoint(found), tmp_path / "out.safetensors", False, lambda count: None
        )
    with pytest.raises(OSError, match="outside the checkpoint"):
        checkpoints.load(found, {"model/w": torch.zeros(40)}, None)
    assert not (tmp_path / "out.safetensors").exists()


def test_an_index_of_files_without_hashes_is_damage(run: RunFolder) -> None:
    path = run.checkpoints / "step-00000004"
    points_at(path, "state/other")
    (path / "state/other").write_bytes(SECRET)
    sealed(path)
    assert "which no hash covers" in str(StoredCheckpoint(path).find_damage())
    (kept,) = list_checkpoints(run)[0]
    assert "which no hash covers" in str(verify(kept))


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_manifest_that_leads_out_is_damage(run: RunFolder, name: str) -> None:
    path = run.checkpoints / "step-00000004"
    files = StoredCheckpoint(path).files() | {name: file_entry(SECRET)}
    (path / MANIFEST).write_bytes(manifest_bytes(4, files))
    assert "outside the checkpoint" in str(StoredCheckpoint(path).find_damage())
    with pytest.raises(ValueError, match="outside the checkpoint"):
        check_file_name(name, "a record")


@pytest.mark.parametrize("name", [STATE, "index.json", SCALARS, MANIFEST, "state"])
def test_a_link_in_a_checkpoint_is_not_followed(run: RunFolder, name: str, tmp_path: Path) -> None:
    """Not even to the right bytes: they could be others in a moment."""
    path = run.checkpoints / "step-00000004"
    real = tmp_path / "elsewhere"
    (path / name).rename(real)
    (path / name).symlink_to(real)
    assert "not followed" in str(StoredCheckpoint(path).find_damage())
    (kept,) = list_checkpoints(run)[0]
    assert "not followed" in str(verify(kept))
    with (
        pytest.raises(PenstockError, match="not followed"),
        open_checkpoint(str(run.path), None, "runs", False),
    ):
        pass


def test_the_folder_of_a_checkpoint_may_be_a_link(run: RunFolder, tmp_path: Path) -> None:
    """People keep checkpoints on another disk."""
    path = run.checkpoints / "step-00000004"
    shutil.move(path, tmp_path / "disk")
    path.symlink_to(tmp_path / "disk")
    assert StoredCheckpoint(path).find_damage() == []


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(run: RunFolder) -> None:
    path = run.checkpoints / "step-00000004"
    for name in (MANIFEST, SCALARS):
        (path / name).unlink()
        os.mkfifo(path / name)
    assert StoredCheckpoint(path).find_damage()
    with pytest.raises(ValueError, match="not a plain file"):
        _ = StoredCheckpoint(path).scalars


@pytest.mark.parametrize("name", ["index.json", MANIFEST])
def test_a_record_that_is_too_large_or_too_deep_is_told(
    run: RunFolder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run.checkpoints / "step-00000004"
    whole = (path / name).read_bytes()
    (path / name).write_bytes(b"[" * 200_000)
    if name != MANIFEST:
        sealed(path)
    assert "nested too deeply" in str(StoredCheckpoint(path).find_damage())
    (path / name).write_bytes(whole)
    if name != MANIFEST:
        sealed(path)
    assert StoredCheckpoint(path).find_damage() == []
    monkeypatch.setattr(untrusted.read_record, "__defaults__", (len(whole) - 1,))
    assert "it is larger than" in str(StoredCheckpoint(path).find_damage())
    with pytest.raises(ValueError, match="larger than 256 MiB"):
        untrusted.parse_record(b" " * (untrusted.RECORD_BYTES + 1))


def test_a_tensor_that_goes_beyond_its_file_is_told(run: RunFolder) -> None:
    path = run.checkpoints / "step-00000004"
    index = json.loads((path / "index.json").read_text())
    index["tensors"]["model/w"]["chunks"][0]["at"] = index["files"][STATE] - 8
    (path / "index.json").write_text(json.dumps(index))
    sealed(path)
    found = RunCheckpoint(StoredCheckpoint(path))
    with pytest.raises(OSError, match="is not all in it"):
        found.read("model/w")


class Strange(Peers):
    """A host that answers what it is told to."""

    answer: bytes = b""

    def _ask(self, *_: Any, **__: Any) -> bytes:
        return self.answer


@pytest.mark.parametrize("name", [*OUTSIDE, "ok"])
@pytest.mark.parametrize("where", ["slot", "file"])
def test_a_host_cannot_write_outside_of_the_memory_of_another(name: str, where: str) -> None:
    files = {"index.json": file_entry(b""), name if where == "file" else "x": file_entry(b"")}
    seal = vars(Seal("run", "mark", 1, 0, 1, files, {}))
    slot = name if where == "slot" else "fast-0/0123456789abcdef/slot-0"
    peers = Strange(["a:1", "b:2"], 0, "secret")
    object.__setattr__(peers, "answer", json.dumps([(slot, seal)]).encode())
    found = peers._sealed("b:2")
    assert len(found) == (name == "ok" and where == "file")
