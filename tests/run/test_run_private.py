"""Folders in places where everyone can write: strangers may have been there first."""

import os
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.data.store.cache import Cache
from penstock.guard.detect.pulse import Pulse
from penstock.home import home
from penstock.private import private_folder, refuse_strangers
from penstock.run import folder
from penstock.run.folder import RunFolder

STRANGER = 65534
NAME = f"penstock-{os.getuid()}"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to another user")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like /dev/shm, in its place."""
    path = tmp_path / "shm"
    path.mkdir()
    path.chmod(0o1777)
    monkeypatch.setattr(folder, "SHARED_MEMORY", path)
    monkeypatch.delenv("PENSTOCK_MEMORY", raising=False)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "runs" / "one")
    made.path.mkdir(parents=True)
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def given_away(*paths: Path) -> None:
    for path in paths:
        assert path.is_relative_to(tempfile.gettempdir()), f"{path} is no file of this test"
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def test_only_this_user_can_enter_the_memory_of_a_run(shared: Path, run: RunFolder) -> None:
    made = run.make_scratch()
    assert made == run.scratch == shared / NAME / made.name
    assert mode(made) == mode(made.parent) == 0o700
    assert mode(made / "where") == 0o600
    assert (made / "where").read_text() == str(run.path)
    (shared / NAME).chmod(0o755)  # as an older version left it
    assert run.make_scratch() == made
    assert mode(made.parent) == 0o700


@needs_root
def test_the_memory_of_a_run_in_another_container_is_not_swept(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_MEMORY", str(tmp_path / "memory"))  # of the host, for both
    (tmp_path / "memory").mkdir()
    (tmp_path / "runs" / "deleted").mkdir()
    deleted = RunFolder(tmp_path / "runs" / "deleted").make_scratch()
    (tmp_path / "runs" / "deleted").rmdir()
    made = run.make_scratch()
    assert not deleted.exists()
    other = tmp_path / "runs" / "other"
    code = (
        "from pathlib import Path; from penstock.run.folder import RunFolder;"
        f"RunFolder(Path({str(other)!r})).make_scratch()"
    )
    disks = f'mount -t tmpfs none {tmp_path}/runs && mkdir {other} && exec "$0" -c "$1"'
    command = ["unshare", "--mount", "sh", "-c", disks, sys.executable, code]
    subprocess.run(command, check=True, timeout=120)
    assert RunFolder(other).scratch.exists()
    assert (made / "where").exists()


@needs_root
def test_a_link_in_a_strangers_folder_is_not_written_through(
    shared: Path, run: RunFolder, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    trap = run.scratch
    assert trap.parent.name == NAME  # what a stranger can work out
    trap.mkdir(parents=True)
    (trap / "where").symlink_to(secret)
    given_away(trap.parent, trap, trap / "where")
    made = run.make_scratch()
    assert secret.read_text() == "mine"
    assert made.parent.parent == shared
    assert made.parent != trap.parent
    assert {path.lstat().st_uid for path in (made, made.parent, made / "where")} == {0}
    assert mode(made) == mode(made.parent) == 0o700
    (made / "kept").touch()
    # A later process, and one after the stranger has gone, finds the same folder again.
    assert (RunFolder(run.path).make_scratch() / "kept").exists()
    os.unlink(trap / "where")
    trap.rmdir()
    trap.parent.rmdir()
    assert (RunFolder(run.path).make_scratch() / "kept").exists()
    (shared / NAME).mkdir(mode=0o700)  # ours now, and the run still finds what it has
    assert (RunFolder(run.path).make_scratch() / "kept").exists()


@pytest.mark.parametrize("kind", ["link", "file", "writable"])
def test_a_folder_in_the_way_does_not_stop_a_run(
    shared: Path, run: RunFolder, tmp_path: Path, kind: str
) -> None:
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        (shared / NAME).symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        (shared / NAME).touch()
    else:
        (shared / NAME).mkdir()
        (shared / NAME).chmod(0o777)
    made = run.make_scratch()
    assert made.parent.parent == shared
    assert made.parent.name.startswith(f"{NAME}-")
    assert not list(tmp_path.glob("elsewhere/*"))


@needs_root
def test_processes_that_start_together_agree_on_the_other_name(
    shared: Path, run: RunFolder
) -> None:
    (shared / NAME).mkdir()
    given_away(shared / NAME)
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: RunFolder(run.path).make_scratch(), range(32)))
    assert len(made) == 1


@needs_root
def test_a_fallback_of_a_stranger_is_not_taken_for_ours(shared: Path, run: RunFolder) -> None:
    for name in (NAME, f"{NAME}-0000000000000000"):
        (shared / name).mkdir()
        given_away(shared / name)
    made = run.make_scratch()
    assert made.parent.lstat().st_uid == 0
    assert not list((shared / f"{NAME}-0000000000000000").iterdir())


def test_memory_is_not_used_if_everyone_can_replace_folders_there(
    shared: Path, run: RunFolder
) -> None:
    shared.chmod(0o777)  # no sticky bit
    assert run.make_scratch() == run.path / ".memory"


@needs_root
def test_a_rank_whose_memory_was_cleared_does_not_write_to_a_stranger(
    shared: Path, run: RunFolder
) -> None:
    made = run.make_scratch()
    pulse = Pulse(made, 0, 0)
    made.parent.rename(shared / "cleared")
    made.mkdir(parents=True)
    given_away(made.parent, made)
    pulse._look(pulse._made_t + 10)  # told by nobody: the supervisor sees that it is silent
    assert not list(made.iterdir())
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        Pulse(made, 0, 0)


@needs_root
def test_a_home_or_cache_of_a_stranger_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everyone = tmp_path / "tmp"
    everyone.mkdir()
    everyone.chmod(0o1777)
    theirs = everyone / "penstock"
    monkeypatch.setenv("PENSTOCK_HOME", str(theirs / "home"))
    assert home() == theirs / "home"
    theirs.mkdir()
    assert home() == theirs / "home"  # ours so far
    given_away(theirs)
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        home()
    monkeypatch.setenv("PENSTOCK_CACHE", str(theirs / "cache"))
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        Cache.from_environment()
    (tmp_path / "by-link").symlink_to(theirs)
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        refuse_strangers(tmp_path / "by-link" / "home")


def test_a_private_folder_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError, match="in the way"):
        private_folder(tmp_path / "link")
    assert private_folder(tmp_path / "new" / "er") == tmp_path / "new" / "er"
    assert mode(tmp_path / "new") == mode(tmp_path / "new" / "er") == 0o700
