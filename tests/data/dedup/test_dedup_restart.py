"""A deduplication that is killed at any file goes on, repeats nothing and ends with the same."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.data.dedup.exact import ExactDocuments, ExactLines, find_exact_copies
from penstock.data.dedup.near import find_near_copies
from penstock.data.dedup.signatures import MinHash
from penstock.data.workers.pool import IDENTITY, work_folder
from penstock.errors import PenstockError

TEXTS = [["one two three", "four five"], ["three, two one", "FOUR five"], ["six", "one two three"]]
KILLED = 9


@pytest.fixture(autouse=True, scope="module")
def _without_waiting_for_the_disk() -> Iterator[None]:
    """Many small files in many examples; what fsync is for needs a power cut to show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


def read(part: int) -> tuple[list[str], list[float]]:
    return TEXTS[part], [float(len(text) % 3) for text in TEXTS[part]]


def run_near(folder: Path) -> list[Path]:
    return find_near_copies(folder, "x", 3, read, MinHash(words=1, bands=2, rows=2), slice_items=3)


def run_documents(folder: Path) -> list[Path]:
    return find_exact_copies(folder, "x", 3, read, ExactDocuments(), slice_items=3)


def run_lines(folder: Path) -> list[Path]:
    return find_exact_copies(folder, "x", 3, read, ExactLines(characters=3), slice_items=3)


def killed_at(run: Callable[[Path], object], folder: Path, file: int, moment: str) -> int:
    """Runs in a fork that dies without a word at its file number `file`; the exit status."""
    child = os.fork()
    if child == 0:
        replace, seen = Path.replace, 0

        def dying(self: Path, target: Path) -> Path:
            nonlocal seen
            if not self.name.startswith(".writing-"):
                return replace(self, target)
            if seen == file and moment == "half written":
                os.truncate(self, self.stat().st_size // 2)
            if seen == file and moment != "named":
                os._exit(KILLED)
            result = replace(self, target)
            if seen == file:
                os._exit(KILLED)
            seen += 1
            return result

        Path.replace = dying  # type: ignore[method-assign]
        try:
            run(folder)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def finished(folder: Path) -> dict[Path, tuple[int, int, bytes]]:
    """Path → (inode, change time, content) of every file that has its name."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return {
        path.relative_to(folder): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in files
    }


@pytest.mark.parametrize("moment", ["half written", "named"])
@pytest.mark.parametrize("run", [run_near, run_documents, run_lines])
def test_killed_at_every_file(
    tmp_path: Path, run: Callable[[Path], list[Path]], moment: str
) -> None:
    whole = tmp_path / "whole"
    run(whole)
    expected = {path: content for path, (_, _, content) in finished(whole).items()}
    files = len(expected) - 1  # all but the identity
    assert files >= 3 + 2 + 3
    for file in range(files):
        folder = tmp_path / str(file)
        assert killed_at(run, folder, file, moment) == KILLED
        left = finished(folder)
        assert len(left) == 1 + file + (moment == "named")
        run(folder)
        after = finished(folder)
        assert {path: content for path, (_, _, content) in after.items()} == expected
        assert {path: after[path] for path in left} == left
        assert not list(folder.rglob(".writing-*"))
    assert killed_at(run, tmp_path / "never", files, moment) == 0


def test_killed_again_and_again(tmp_path: Path) -> None:
    run_near(tmp_path / "whole")
    expected = {path: content for path, (_, _, content) in finished(tmp_path / "whole").items()}
    times = 0
    while killed_at(run_near, tmp_path / "w", 0, "named") == KILLED:
        times += 1
    assert times == len(expected) - 1
    again = finished(tmp_path / "w")
    assert {path: content for path, (_, _, content) in again.items()} == expected


def test_a_folder_is_for_one_work(tmp_path: Path) -> None:
    run_near(tmp_path)
    identity = json.loads((tmp_path / IDENTITY).read_text())
    with pytest.raises(PenstockError, match="holds other work"):
        find_near_copies(tmp_path, "x", 3, read, MinHash(words=1, bands=2, rows=2, seed=2))
    with pytest.raises(PenstockError, match="holds other work"):
        find_near_copies(tmp_path, "y", 3, read, MinHash(words=1, bands=2, rows=2))
    with work_folder(tmp_path, identity), pytest.raises(PenstockError, match="in use"):
        run_near(tmp_path)
