"""A file that is published under a name is on disk under that name, as its folder is."""

import os
from pathlib import Path

import pytest

from penstock.files import write_atomic
from penstock.guard.tiers.stores import DiskStore


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reaches the disk, and which names appear, in order."""
    told: list[str] = []
    fsync, replace, link, rename = os.fsync, os.replace, os.link, os.rename

    def synced(handle: int) -> None:
        told.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")
        fsync(handle)

    def named(call: object) -> object:
        def tell(old: object, new: object, **options: object) -> None:
            told.append(f"name {Path(str(new)).name}")
            call(old, new, **options)  # type: ignore[operator]

        return tell

    monkeypatch.setattr(os, "fsync", synced)
    for name, call in (("replace", replace), ("link", link), ("rename", rename)):
        monkeypatch.setattr(os, name, named(call))
    return told


def test_a_record_is_synced_before_and_after_it_gets_its_name(
    tmp_path: Path, done: list[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    write_atomic(folder / "plan.json", "{}")
    assert done == [f"sync .plan.json.{os.getpid()}", "name plan.json", "sync run"]


@pytest.mark.parametrize("call", ["create", "write"])
def test_a_record_of_a_place_is_synced_before_and_after(
    tmp_path: Path, done: list[str], call: str
) -> None:
    getattr(DiskStore(tmp_path / "place"), call)("identity", b"x")
    assert done == [f"sync .identity.{os.getpid()}", "name identity", "sync place"]


def test_a_checkpoint_is_synced_before_and_after_it_gets_its_name(
    tmp_path: Path, done: list[str]
) -> None:
    disk = DiskStore(tmp_path / "place")
    disk.begin(1)
    disk.put(1, "state/part", b"x")
    disk.publish(1, b"{}")
    published = done.index("name step-00000001")
    assert {"sync part", "sync state", "sync manifest.json"} <= set(done[:published])
    assert done[published - 1] == "sync .writing-00000001"
    assert done[published + 1 :] == ["sync place"]
    disk.put_aside(1)
    assert done[-2:] == ["name .damaged-00000001", "sync place"]
