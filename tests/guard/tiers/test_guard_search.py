"""Checkpoints that are gone or cannot be read are not "no checkpoint": nobody trains over them."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.errors import RunFailed
from penstock.guard import checkpoints
from penstock.guard.checkpoints import search_of_run
from penstock.guard.format.published import StoredCheckpoint, published_folders
from penstock.guard.tiers.journal_facts import recorded_step
from penstock.guard.tiers.search import SingleProcess
from penstock.ledger.journal.writer import Journal
from penstock.run.folder import RunFolder
from penstock.run.load import load

# Root reads everything, whatever its mode says, unless it gives up the right to.
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] * (os.getuid() == 0)
UNREADABLE = [errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOTDIR, errno.ELOOP]


class World(SingleProcess):
    """One rank that can save."""

    host_group: Any = None


@pytest.fixture
def made(run_file: Callable[..., Path]) -> RunFolder:
    """A run that has saved step 4, and says so in its journal."""
    folder = RunFolder(load(run_file("made")).folder)
    folder.make()
    saved(folder, 4)
    return folder


def saved(folder: RunFolder, step: int, attempt: int = 0) -> None:
    state = {"a": torch.full((4,), float(step))}
    checkpoints.save(folder.checkpoints, step, state, {}, {"step": step}, World())
    told(folder, attempt, "saved", step=step, tier="disk")


def told(folder: RunFolder, attempt: int, kind: str, **payload: Any) -> None:
    with Journal(folder.journal, attempt, again=True) as journal:
        journal.event(kind, **payload)


def found(folder: RunFolder, deep: bool = True) -> StoredCheckpoint | None:
    run = load(folder.path.parents[1] / f"{folder.name}.toml")
    looked = search_of_run(folder, run, SingleProcess(), ranks=False)
    return (looked.newest_good() if deep else looked.expected()).checkpoint


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, int], None]]:
    """failing(folder, errno): the system cannot list a folder any more."""
    real = {"listdir": os.listdir, "scandir": os.scandir}

    def fail(folder: Path, number: int) -> None:
        def broken(name: str, path: Any = ".") -> Any:
            if Path(path) == folder:
                raise OSError(number, os.strerror(number), str(path))
            return real[name](path)

        for name in real:
            monkeypatch.setattr(os, name, partial(broken, name))

    yield fail
    monkeypatch.undo()


@pytest.mark.parametrize("deep", [True, False])
def test_what_is_there_is_found_by_ranks_and_supervisor(made: RunFolder, deep: bool) -> None:
    there = found(made, deep)
    assert there is not None
    assert (there.step, there.tier) == (4, "disk")


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("lost", ["removed", "emptied", "dangling"])
def test_a_run_whose_checkpoints_are_gone_refuses(made: RunFolder, lost: str, deep: bool) -> None:
    aside = made.path / "aside"
    made.checkpoints.rename(aside)
    if lost == "emptied":  # a disk that is not mounted
        made.checkpoints.mkdir()
    elif lost == "dangling":
        made.checkpoints.symlink_to("/nowhere/at/all")
    for _ in range(2):  # the second command is refused as the first one was
        with pytest.raises(RunFailed) as caught:
            found(made, deep)
        message = str(caught.value)
        assert "step 4 was saved" in message
        assert f"disk ({made.checkpoints}): no checkpoint" in message
        assert "memory: no copy of this run" in message
        assert "--fresh" in message
    shutil.rmtree(made.checkpoints) if lost == "emptied" else None
    made.checkpoints.unlink(missing_ok=True) if lost == "dangling" else None
    aside.rename(made.checkpoints)
    restored = found(made, deep)
    assert restored is not None
    assert restored.step == 4


@pytest.mark.parametrize("number", UNREADABLE, ids=errno.errorcode.get)
@pytest.mark.parametrize("deep", [True, False])
def test_a_folder_that_cannot_be_read_is_named_and_not_trained_over(
    made: RunFolder, failing: Callable[[Path, int], None], number: int, deep: bool
) -> None:
    (made.journal / "a0000-r00000.events").unlink()  # by the folder alone
    failing(made.checkpoints, number)
    with pytest.raises(RunFailed) as caught:
        found(made, deep)
    assert f"{made.checkpoints}: {os.strerror(number)}" in str(caught.value)


def test_the_right_to_read_is_taken_away_for_real(made: RunFolder) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from penstock.guard.format.published import published_folders\n"
        "try: print(published_folders(Path(sys.argv[1])))\n"
        "except PermissionError: print('refused')"
    )
    made.checkpoints.chmod(0)
    try:
        command = [*UNPRIVILEGED, sys.executable, "-c", code, str(made.checkpoints)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        made.checkpoints.chmod(0o755)
    assert said == "refused\n"
    assert len(published_folders(made.checkpoints)) == 1


def test_a_disk_that_fails_while_ranks_load_loses_nothing(
    made: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path, threads: int = 1) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(StoredCheckpoint.__module__ + ".hash_file", broken)
        with pytest.raises(RunFailed, match="Input/output error"):
            found(made)
    again = found(made)
    assert again is not None
    assert again.step == 4


def test_a_memory_that_cannot_be_read_is_not_empty(
    made: RunFolder, failing: Callable[[Path, int], None]
) -> None:
    shutil.rmtree(made.checkpoints)
    (made.journal / "a0000-r00000.events").unlink()
    assert found(made) is None  # nothing was ever saved: it begins
    failing(made.scratch, errno.EACCES)
    with pytest.raises(RunFailed, match=f"memory: {made.scratch}: Permission denied"):
        found(made)


def test_a_journal_that_cannot_be_read_is_not_empty(
    made: RunFolder, failing: Callable[[Path, int], None]
) -> None:
    shutil.rmtree(made.checkpoints)
    failing(made.journal, errno.EIO)
    with pytest.raises(RunFailed, match=f"journal: {made.journal}: Input/output error"):
        found(made)


def test_a_run_that_never_saved_begins(run_file: Callable[..., Path]) -> None:
    folder = RunFolder(load(run_file("new")).folder)
    folder.make()
    told(folder, 0, "ready", step=0)
    told(folder, 0, "save_failed", step=3, tier="disk", error="full")
    told(folder, 1, "resumed", step=3, tier="memory")  # a copy that a reboot took away
    assert recorded_step(folder) is None
    assert found(folder) is None
    assert found(folder, deep=False) is None


def test_what_a_rollback_deleted_is_not_missed(made: RunFolder) -> None:
    saved(made, 8, attempt=1)
    assert recorded_step(made) == 8
    told(made, 1, "taken_back", after_step=6, left=[4])
    assert recorded_step(made) == 4
    told(made, 1, "taken_back", after_step=5)  # the place could not be listed
    assert recorded_step(made) == 4
    told(made, 2, "taken_back", after_step=3, left=[])
    assert recorded_step(made) is None
    shutil.rmtree(made.checkpoints)
    assert found(made) is None
    saved(made, 2, attempt=3)
    assert recorded_step(made) == 2


def test_a_fork_begins_with_a_checkpoint(run_file: Callable[..., Path]) -> None:
    folder = RunFolder(load(run_file("fork")).folder)
    folder.make()
    folder.plan_file.write_text('{"forked_from": {"run": "other", "step": 7}}')
    with pytest.raises(RunFailed, match="step 7 was saved"):
        found(folder)


def test_several_hosts_have_no_fresh(made: RunFolder) -> None:
    run = load(made.path.parents[1] / "made.toml")
    shutil.rmtree(made.checkpoints)
    durable = run.guard.model_copy(update={"durable": str(made.path / "far")})
    cluster = run.cluster.model_copy(update={"nodes": 2})
    run = run.model_copy(update={"guard": durable, "cluster": cluster})
    with pytest.raises(RunFailed, match="another name for the run") as caught:
        search_of_run(made, run, SingleProcess()).newest_good()
    assert str(made.path / "far" / "made") in str(caught.value)
