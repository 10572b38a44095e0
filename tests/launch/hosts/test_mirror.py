"""The files of another host's ranks are the same here, whatever moment they are copied at."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.launch.hosts.mirror import FileChunk, GrowingFiles, write_chunk


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(["events", "steps"]), st.binary(max_size=40))))
def test_a_copy_of_growing_files_is_equal(tmp_path_factory, parts) -> None:  # type: ignore[no-untyped-def]
    source, copy = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("copy")
    (source / "journal").mkdir()
    tail = GrowingFiles(source, attempt=3)
    for kind, more in parts:
        with (source / "journal" / f"a0003-r00001.{kind}").open("ab") as file:
            file.write(more)
        for piece in tail.unsent():
            write_chunk(copy, FileChunk.from_json(piece.to_json()))
    for path in (source / "journal").iterdir():
        if path.stat().st_size:
            assert (copy / "journal" / path.name).read_bytes() == path.read_bytes()


def test_only_files_of_the_attempt_are_told(tmp_path: Path) -> None:
    for name in (
        "journal/a0003-r00001.events",
        "journal/a0002-r00001.events",
        "journal/supervisor.events",
        "logs/attempt-3/rank-1.err",
        "logs/attempt-30/rank-1.err",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    told = {piece.name for piece in GrowingFiles(tmp_path, 3).unsent()}
    assert told == {"journal/a0003-r00001.events", "logs/attempt-3/rank-1.err"}


def test_a_piece_that_comes_twice_changes_nothing(tmp_path: Path) -> None:
    for piece in (FileChunk("journal/a0000-r00000.steps", 0, b"one"),) * 2:
        write_chunk(tmp_path, piece)
    write_chunk(tmp_path, FileChunk("journal/a0000-r00000.steps", 3, b"two"))
    assert (tmp_path / "journal/a0000-r00000.steps").read_bytes() == b"onetwo"


@pytest.mark.parametrize(
    "name",
    ["journal/supervisor.events", "run.toml", "../x", "/etc/passwd", "logs/attempt-1/../../x"],
)
def test_no_other_file_can_be_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a file of a journal"):
        write_chunk(tmp_path, FileChunk(name, 0, b"x"))
