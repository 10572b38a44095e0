"""A build that is killed at any moment goes on, repeats nothing and ends with the same version."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from build_corpus import recipe, write_corpus

from penstock.data.build import build as build_module
from penstock.data.build.build import WORK, build
from penstock.data.build.progress import SilentWatcher
from penstock.data.read.dataset import Dataset
from penstock.data.workers.pool import Task
from penstock.errors import PenstockError

PART_BYTES = 2500
CHANGES = {"dedup": {"lines": True}, "tokens": {"vocab": 300}, "shards": {"size": "4 KiB"}}
MOMENTS = ["half written", "named"]

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from build_corpus import recipe
from penstock.data.build import build as build_module
from penstock.data.build.progress import SilentWatcher
class Told(SilentWatcher):
    def did(self, documents, bytes):
        print("did", flush=True)
if __name__ == "__main__":
    build_module.PART_BYTES = {part_bytes}
    given = recipe(Path({corpus!r}), **{changes!r})
    print(build_module.build(given, workers=2, watcher=Told()).id)
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    # A fork has none of the threads that a library may have started in this process.
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(build_module, "PART_BYTES", PART_BYTES)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", files=2, documents=12)


def datasets(tmp_path: Path) -> Path:
    return tmp_path / "home" / "datasets"


def undisturbed(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    with monkeypatch.context() as patch:
        patch.setenv("PENSTOCK_HOME", str(tmp_path / "undisturbed"))
        return build(recipe(corpus, **CHANGES), workers=1)


def killed_at(corpus: Path, log: Path, file: int, moment: str) -> int:
    """Builds in a fork that kills itself at its file number `file`; the exit status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    replace, run, seen = Path.replace, Task.run, 0

    def dying(self: Path, target: Path) -> Path:
        nonlocal seen
        seen += 1
        if seen == file and moment == "half written":
            os.truncate(self, self.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        replace(self, target)
        if seen == file:
            os.kill(os.getpid(), signal.SIGKILL)
        return target

    def logged(self: Task) -> int:
        documents = run(self)
        with log.open("a") as lines:
            lines.write(f"{self.path}\n")
        return documents

    Path.replace = dying  # type: ignore[method-assign]
    Task.run = logged  # type: ignore[method-assign]
    os.fsync = lambda handle: None
    code = 1
    try:
        build(recipe(corpus, **CHANGES), workers=1)
        code = 0
    finally:
        os._exit(code)


def check_whole(tmp_path: Path, expected: Dataset) -> None:
    """The same dataset, and nothing else."""
    home = datasets(tmp_path)
    built = build(recipe(tmp_path / "corpus", **CHANGES), workers=1)
    assert built.id == expected.id
    assert built.verify() == []
    assert sorted(path.name for path in built.folder.rglob("*") if path.is_file()) == sorted(
        path.name for path in expected.folder.rglob("*") if path.is_file()
    )
    hidden = {path.name for path in home.iterdir() if path.name.startswith(".")}
    assert {name.partition("-")[0] for name in hidden} <= {".lock", ".small"}
    visible = [path.name for path in home.iterdir() if not path.name.startswith(".")]
    assert visible == [expected.id]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_again_and_again(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Each attempt dies a few files further on; no task that had ended is done again."""
    expected = undisturbed(tmp_path, corpus, monkeypatch)
    log = tmp_path / "log"
    deaths = 0
    while (code := killed_at(corpus, log, 9, moment)) == -signal.SIGKILL:
        deaths += 1
        assert not list(datasets(tmp_path).glob("small@*")) or deaths > 5
    assert code == 0
    assert deaths > 5
    done = log.read_text().splitlines()
    assert len(done) == len(set(done))
    check_whole(tmp_path, expected)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_every_file(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    expected = undisturbed(tmp_path, corpus, monkeypatch)
    for file in range(1, 1000):
        monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / str(file) / "home"))
        if killed_at(corpus, tmp_path / "log", file, moment) == 0:
            break
        (tmp_path / str(file) / "corpus").symlink_to(corpus)
        check_whole(tmp_path / str(file), expected)
    assert 30 < file < 999


def start(tmp_path: Path, corpus: Path) -> subprocess.Popen[str]:
    """A build in a process group of its own, with two workers."""
    script = tmp_path / "script.py"
    tests = str(Path(__file__).parent)
    script.write_text(
        SCRIPT.format(tests=tests, part_bytes=PART_BYTES, corpus=str(corpus), changes=CHANGES)
    )
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(tmp_path: Path) -> dict[Path, tuple[int, int]]:
    """The files of tasks that have ended, with what tells that they were not written again."""
    found = {}
    for path in datasets(tmp_path).glob(f"{WORK}*/**/[0-9]*"):
        if path.is_file():
            stat = path.stat()
            found[path] = stat.st_ino, stat.st_mtime_ns
    return found


def kill_tree(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_the_whole_tree_is_killed(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(tmp_path, corpus, monkeypatch)
    process = start(tmp_path, corpus)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(12)] == ["did\n"] * 12
    kill_tree(process)
    before = ended(tmp_path)
    assert len(before) >= 12
    stages: list[str] = []

    class Watches(SilentWatcher):
        def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
            stages.append(name)
            now = ended(tmp_path)
            assert all(now[path] == stamp for path, stamp in before.items() if path in now)

    built = build(recipe(corpus, **CHANGES), workers=1, watcher=Watches())
    assert built.id == expected.id
    assert "read" not in stages  # it had ended
    check_whole(tmp_path, expected)


def test_workers_die_with_the_build(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(tmp_path, corpus, monkeypatch)
    process = start(tmp_path, corpus)
    assert process.stdout is not None
    assert process.stdout.readline() == "did\n"
    os.kill(process.pid, signal.SIGKILL)  # the main process alone
    process.stdout.read()  # ends when no worker is left that could write to it
    process.wait()
    check_whole(tmp_path, expected)


def test_ctrl_c_ends_it_at_once(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(tmp_path, corpus, monkeypatch)
    process = start(tmp_path, corpus)
    assert process.stdout is not None
    assert process.stdout.readline() == "did\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers too
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert said.count("Traceback") == 1  # of the build; its workers say nothing
    check_whole(tmp_path, expected)


def test_two_builds_at_once_are_one(tmp_path: Path, corpus: Path) -> None:
    processes = [start(tmp_path, corpus) for _ in range(2)]
    told = [process.communicate(timeout=120)[0].split() for process in processes]
    assert told[0][-1] == told[1][-1]
    assert sorted("did" in lines for lines in told) == [False, True]  # one built, one waited
    assert len(list(datasets(tmp_path).glob("small@*"))) == 1


@pytest.mark.slow
def test_fifty_random_kills(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At random times, workers and all; a life is long enough now and then to end."""
    expected = undisturbed(tmp_path, corpus, monkeypatch)
    rng = random.Random(0)
    finished = 0
    for _ in range(50):
        process = start(tmp_path, corpus)
        try:
            told = process.communicate(timeout=rng.uniform(1.0, 9.0))[0]
            assert told.split()[-1] == expected.id
            finished += 1
            check_whole(tmp_path, expected)
            for path in datasets(tmp_path).glob(".small-*"):
                path.unlink()
            (datasets(tmp_path) / expected.id).rename(tmp_path / f"done{finished}")
        except subprocess.TimeoutExpired:
            kill_tree(process)
    check_whole(tmp_path, expected)


def test_a_deleted_dataset_is_built_again(tmp_path: Path, corpus: Path) -> None:
    first = build(recipe(corpus, **CHANGES), workers=1)
    first.folder.rename(tmp_path / "gone")
    assert build(recipe(corpus, **CHANGES), workers=1).id == first.id


def test_a_work_folder_that_was_not_quite_removed(tmp_path: Path, corpus: Path) -> None:
    first = build(recipe(corpus, **CHANGES), workers=1)
    (pointer,) = datasets(tmp_path).glob(".small-*")
    left = datasets(tmp_path) / pointer.name.replace(".small-", f"{WORK}small@")
    (left / "shard").mkdir(parents=True)
    assert build(recipe(corpus, **CHANGES), workers=1).id == first.id
    assert not left.exists()


def test_a_home_that_cannot_be_written_to(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(PenstockError, match=r"cannot be built in .* set PENSTOCK_HOME"):
        build(recipe(corpus, **CHANGES), workers=1)


def test_a_full_disk_is_one_clear_error(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(PenstockError, match="No space left on device"):
            build(recipe(corpus, **CHANGES), workers=1)
    assert not list(datasets(tmp_path).glob("small@*"))
    assert build(recipe(corpus, **CHANGES), workers=1).verify() == []
