import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock.data.build import stdlib
from penstock.data.build.open import build_lock, datasets_home, open_dataset
from penstock.data.format.locate import built_versions
from penstock.data.format.writer import unfinished_prefix
from penstock.errors import PenstockError


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "penstock"))
    return tmp_path / "penstock" / "datasets"


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    """A standard library of one file."""
    root = tmp_path / "lib"
    root.mkdir()
    (root / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(stdlib, "library", lambda: root)
    return root


@pytest.fixture
def builds(monkeypatch) -> list[Path]:
    """Grows with each build of stdlib."""
    done: list[Path] = []
    real = stdlib.build
    monkeypatch.setattr(
        stdlib, "build", lambda home, progress: done.append(real(home, progress)) or done[-1]
    )
    return done


def test_the_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("PENSTOCK_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert datasets_home() == Path("/home/me/.cache/penstock/datasets")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert datasets_home() == Path("/cache/penstock/datasets")
    monkeypatch.setenv("PENSTOCK_HOME", "~/penstock")
    assert datasets_home() == Path("/home/me/penstock/datasets")


def test_stdlib_is_built_once_and_found_again(home, library, builds):
    first = open_dataset("stdlib")
    assert first.id == builds[0].name
    assert open_dataset("stdlib").id == first.id
    assert open_dataset(first.id).id == first.id
    assert len(builds) == 1


def test_a_changed_library_is_another_dataset(home, library, builds):
    first = open_dataset("stdlib").id
    (library / "a.py").write_text("x = 2\n")
    os.utime(library / "a.py", (1, 1))
    second = open_dataset("stdlib").id
    (library / "b.py").write_text("y = 3\n")
    third = open_dataset("stdlib").id
    assert len({first, second, third}) == 3
    os.utime(library / "b.py", (2, 2))  # looks changed, is not: checked again, same dataset
    assert open_dataset("stdlib").id == third
    assert len(builds) == 4


def test_a_deleted_dataset_is_built_again(home, library, builds):
    first = open_dataset("stdlib")
    for path in sorted(first.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    first.folder.rmdir()
    assert open_dataset("stdlib").id == first.id
    assert len(builds) == 2


def test_opening_again_imports_neither_the_tokenizer_nor_torch(home, library):
    open_dataset("stdlib")
    script = (
        "import sys, pathlib; from penstock.data.build import stdlib\n"
        "from penstock.data.build.open import open_dataset\n"
        f"stdlib.library = lambda: pathlib.Path({str(library)!r})\n"
        "open_dataset('stdlib'); print({'tokenizers', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_two_at_once_build_once(home, library, monkeypatch):
    started, waiting = threading.Event(), threading.Event()
    builds, opened = [], []
    real = stdlib.build

    def slow_build(home, progress):
        builds.append(1)
        started.set()
        assert waiting.wait(30)
        return real(home, progress)

    monkeypatch.setattr(stdlib, "build", slow_build)

    def second(what, done, total):
        if what == "wait for another build":
            waiting.set()

    threads = [threading.Thread(target=lambda: opened.append(open_dataset("stdlib").id))]
    threads[0].start()
    assert started.wait(30)
    threads.append(
        threading.Thread(target=lambda: opened.append(open_dataset("stdlib", second).id))
    )
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert len(builds) == 1
    assert len(opened) == 2
    assert len(set(opened)) == 1


def test_a_killed_build_frees_the_lock_and_leaves_no_dataset(home, library):
    script = (
        "import os, signal, sys, pathlib; from penstock.data.build import stdlib\n"
        "from penstock.data.build.open import open_dataset\n"
        "from penstock.data.format import writer\n"
        f"stdlib.library = lambda: pathlib.Path({str(library)!r})\n"
        "writer.DatasetWriter.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "open_dataset('stdlib')"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    left = list(home.glob(f"{unfinished_prefix('stdlib')}*"))
    assert len(left) == 1
    assert built_versions(home, "stdlib") == []
    found = open_dataset("stdlib")
    assert found.verify() == []
    assert not left[0].exists()


def test_sweeping_spares_the_builds_of_other_names(home):
    for name in ("a", "a-b"):
        (home / f"{unfinished_prefix(name)}1").mkdir(parents=True)
    with build_lock(home, "a"):
        assert [path.name for path in home.glob(".writing*")] == [f"{unfinished_prefix('a-b')}1"]


def test_a_home_that_cannot_be_written_is_reported(tmp_path, monkeypatch, library):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "file"))
    with pytest.raises(PenstockError, match=r"'stdlib' cannot be built in .* set PENSTOCK_HOME"):
        open_dataset("stdlib")


def test_leftovers_of_a_kill_are_removed_and_those_of_other_names_stay(home):
    home.mkdir(parents=True, exist_ok=True)
    mine, other = home / "..a-0123abcd.77", home / "..a-b-0123abcd.77"
    mine.touch()
    other.touch()
    with build_lock(home, "a"):
        assert not mine.exists()
        assert other.exists()


def test_names_and_versions(home, dataset):
    one = dataset([np.arange(10)], home, "mine").id
    assert open_dataset("mine").id == one
    assert open_dataset(one).id == one
    two = dataset([np.arange(11)], home, "mine").id
    with pytest.raises(PenstockError, match="'mine' has several versions") as error:
        open_dataset("mine")
    assert one in str(error.value)
    assert two in str(error.value)
    assert "built 20" in str(error.value)
    assert open_dataset(two[: len("mine@") + 6]).id == two  # its first digits are enough
    with pytest.raises(PenstockError, match=r"'mine\.jsonl' is no file in .*, and no dataset in"):
        open_dataset("mine.jsonl")
    with pytest.raises(PenstockError, match=r"'mine@123' is not in .* There: mine@"):
        open_dataset("mine@123")
    with pytest.raises(
        PenstockError, match=r"There: none\. A version of stdlib belongs to one Python"
    ):
        open_dataset("stdlib@123")
    with pytest.raises(PenstockError, match=r"Known: mine, stdlib\. Did you mean 'stdlib'\?"):
        open_dataset("stdlb")
    with pytest.raises(PenstockError, match="there is no such file"):
        open_dataset("../mine")
    for spec in ("", "@123"):
        with pytest.raises(PenstockError, match="it is not a name"):
            open_dataset(spec)


def test_a_renamed_folder_is_not_served_under_its_new_name(home, dataset):
    folder = dataset([np.arange(10)], home, "mine").folder
    folder.rename(home / "mine@0123456789ab")
    with pytest.raises(PenstockError, match=f"holds {folder.name}: the folder was renamed"):
        open_dataset("mine@0123456789ab")
