"""A place that several machines share: objects that are created once, listed and deleted."""

import os
from pathlib import Path

import pytest

from penstock.data.store.meeting_place import MeetingPlace, ObjectStore, SharedFolder
from penstock.data.store.objects import ObjectTooLarge


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> MeetingPlace:
    return (
        SharedFolder(tmp_path) if request.param == "folder" else ObjectStore(f"file://{tmp_path}")
    )


def test_what_is_deleted_is_gone_and_may_be_created_again(place: MeetingPlace) -> None:
    assert place.create("a/1", b"one")
    assert place.create("a/2", b"three")
    assert not place.create("a/1", b"other")
    place.delete("a/1")
    place.delete("a/1")  # by two machines
    assert place.list("a") == {"a/2": 5}
    assert place.create("a/1", b"again")
    assert place.get("a/1") == b"again"
    place.delete("a/1")
    place.delete("a/2")
    assert place.list("a") == {}
    assert place.create("a/3", b"")


def test_an_emptied_folder_goes_too(tmp_path: Path) -> None:
    place = SharedFolder(tmp_path)
    place.create("published/000001/a", b"")
    place.create("published/000001/b", b"")
    place.delete("published/000001/a")
    assert (tmp_path / "published/000001").is_dir()
    place.delete("published/000001/b")
    assert not (tmp_path / "published/000001").exists()


def test_an_object_that_is_larger_than_expected_is_not_read(
    place: MeetingPlace, tmp_path: Path
) -> None:
    place.put("a/1", b"12345")
    assert place.get("a/1", 5) == b"12345"
    os.truncate(tmp_path / "a/1", 1 << 40)  # more than there is memory
    with pytest.raises(ObjectTooLarge) as refused:
        place.get("a/1", 5)
    assert refused.value.size == 1 << 40
