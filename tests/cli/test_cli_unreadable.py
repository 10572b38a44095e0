"""Places that the system refuses: one line with the path and what it said, never a traceback."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from made_run import made_run
from penstock.cli.main import main
from penstock.errors import PenstockError, RunFailed, system_error
from penstock.launch.start import _nothing_left
from penstock.ledger.journal.writer import Journal
from penstock.run.folder import RunFolder

# Root reads everything, whatever its mode says, unless it gives up the right to.
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] * (os.getuid() == 0)
LONG = "n" * 300
# All verbs in one process: most of the time of a command goes into its imports.
SCRIPT = """
import contextlib, io, json, sys
from penstock.cli import main, show

answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["penstock", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main._run()
            code = 0
        except SystemExit as leaving:
            code = leaving.code or 0
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""
RUN = """
name = "new"
[model]
layers = 1
hidden = 16
heads = 2
ffn = 32
[data]
dataset = "nop"
sequence = 16
[train]
steps = 12
batch_tokens = 64
"""


@pytest.fixture
def places(tmp_path: Path, home: Path, tiny: str) -> Iterator[Path]:
    """Make a good run, runs and datasets without the right to read, and paths that lead nowhere."""
    root = tmp_path / "runs"
    for name in ("good", "shut", "mute"):
        made_run(root, name)
    (tmp_path / "new.toml").write_text(RUN)
    (tmp_path / "shut.toml").write_text(RUN)
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    dataset = home / "datasets" / "nop@0123456789ab"
    dataset.mkdir()
    closed = [root / "shut", root / "mute" / "journal", dataset, tmp_path / "shut.toml"]
    for path in closed:
        path.chmod(0)
    yield tmp_path
    for path in closed:
        path.chmod(0o755)
    dataset.rmdir()


def answers(places: Path, *verbs: list[str]) -> list[list[Any]]:
    command = [*UNPRIVILEGED, sys.executable, "-c", SCRIPT, json.dumps(verbs)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=places)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_what_may_not_be_read_is_one_line_in_every_verb(places: Path, home: Path) -> None:
    nop = f"{home}/datasets/nop@0123456789ab/manifest.json: Permission denied"
    refused = {
        ("status", "shut"): "runs/shut/run.toml: Permission denied",
        ("status", "mute"): "runs/mute/journal: Permission denied",
        ("report", "shut"): "runs/shut/run.toml: Permission denied",
        ("report", "mute"): "runs/mute/journal: Permission denied",
        ("logs", "shut"): "runs/shut/run.toml: Permission denied",
        ("stop", "shut"): "runs/shut/run.toml: Permission denied",
        ("generate", "shut", "a"): "runs/shut/run.toml: Permission denied",
        ("export", "shut"): "runs/shut/run.toml: Permission denied",
        ("checkpoint", "list", "shut"): "runs/shut/run.toml: Permission denied",
        ("watch", "shut", "--json"): "runs/shut/run.toml: Permission denied",
        ("ls", "--dir", "runs/shut"): "runs/shut: Permission denied",
        ("ls", "--dir", "file"): "file: Not a directory",
        ("ls", "--dir", "loop"): "loop: Too many levels of symbolic links",
        ("ls", "--dir", LONG): "File name too long",
        ("status", LONG): "File name too long",
        ("report", "good", "--html", "runs/shut/a.html"): "Permission denied",
        ("report", "good", "--html", "/dev/full"): "No space left on device",
        ("report", "good", "--html", LONG): "File name too long",
        ("check", "shut.toml"): "shut.toml: cannot be read: Permission denied",
        ("plan", "shut.toml"): "shut.toml: cannot be read: Permission denied",
        ("train", "shut.toml"): "shut.toml: cannot be read: Permission denied",
        ("train", f"{LONG}.toml"): "File name too long",
        ("check", "new.toml"): nop,
        ("plan", "new.toml"): nop,
        ("train", "new.toml"): nop,
        ("train", "new.toml", "dir=runs/shut"): "Permission denied",
        ("data", "show", "nop"): nop,
        ("data", "verify", "nop"): nop,
        ("data", "sample", "nop"): nop,
        ("data", "diff", "tiny", "nop"): nop,
        ("data", "show", "./file/x"): "file/x/manifest.json: Not a directory",
        ("data", "build", "shut.toml"): "shut.toml: cannot be read: Permission denied",
        ("init", "--out", "runs/shut/a.toml"): "Permission denied",
        ("backtest", "shut.toml"): "shut.toml: Permission denied",
    }
    found = answers(places, *map(list, refused))
    for (verb, said), (code, _, err) in zip(refused.items(), found, strict=True):
        assert code == 2, (verb, err)
        assert said in err, (verb, err)
        assert err.startswith("error: "), (verb, err)
        assert len(err.splitlines()) <= 3, (verb, err)
    assert not (places / "runs" / "new").exists()  # a refused run is no run


def test_one_that_cannot_be_read_does_not_hide_the_others(places: Path, tiny: str) -> None:
    ls, ls_json, data, data_json = answers(
        places, ["ls"], ["ls", "--json"], ["data", "ls"], ["data", "ls", "--json"]
    )
    assert ls[0] == 0
    assert "good" in ls[1]
    for name in ("runs/shut/run.toml", "runs/mute/journal"):
        assert f"{name}: Permission denied" in ls[2]
        assert f"{name}: Permission denied" in ls_json[2]
    assert [run["run"] for run in json.loads(ls_json[1])] == ["good"]
    assert data[0] == 0
    assert tiny.partition("@")[0] in data[1]
    assert "unreadable" in data[1]
    assert "manifest.json: Permission denied" in data[2]
    rows = {row["dataset"]: row for row in json.loads(data_json[1])}
    assert "Permission denied" in rows["nop@0123456789ab"]["problem"]
    assert "tokens" in rows[tiny]


@pytest.mark.parametrize(
    "number",
    ["EACCES", "EPERM", "ENOSPC", "EIO", "ESTALE", "ENAMETOOLONG", "ENOTDIR", "ELOOP", "EROFS"],
)
def test_whatever_the_system_says_is_said(
    number: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = getattr(errno, number)

    def broken(path: object) -> list[str]:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr("penstock.run.folder.os.listdir", broken)
    monkeypatch.setattr("penstock.output.guard", lambda: None)
    monkeypatch.setattr(sys, "argv", ["penstock", "ls", "--dir", "some/runs"])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: some/runs: {os.strerror(code)}; ")
    assert len(err.splitlines()) == 1


@contextmanager
def small_disk(disk: Path, *options: str) -> Iterator[Path]:
    """A disk of one megabyte."""
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", ",".join(["size=1m", *options]), "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_of_one_megabyte_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        with (disk / "fill").open("wb", buffering=0) as fill:
            while fill.write(bytes(1 << 16)) == 1 << 16 and fill.tell() < 1 << 20:
                pass
        folder = RunFolder(disk / "run")
        with pytest.raises(OSError, match="No space left on device") as caught, folder.lock():
            pass
        assert system_error(caught.value).startswith(f"{folder.path}: No space left on device; ")


def test_check_refuses_a_run_folder_that_train_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    places = {
        "file": "Not a directory",
        "file/run": "Not a directory",
        "loop/run": "symbolic links",
    }
    for name, why in places.items():
        folder = RunFolder(tmp_path / name)
        with pytest.raises(PenstockError, match=why) as early:
            folder.refuse_unwritable()
        with pytest.raises(PenstockError) as late, folder.lock():
            pass
        assert str(early.value) == str(late.value)
    RunFolder(tmp_path / "new" / "run").refuse_unwritable()
    assert not (tmp_path / "new").exists()


def test_a_read_only_disk_is_told_by_check_too(tmp_path: Path) -> None:
    refused = pytest.raises(PenstockError, match="Read-only file system")
    with small_disk(tmp_path / "disk", "ro") as disk, refused:
        RunFolder(disk / "run").refuse_unwritable()


def refused(folder: RunFolder, error: BaseException, steps: int = 0) -> bool:
    """Whether the folder is left behind."""

    def launch() -> None:
        with folder.lock(), _nothing_left(folder):
            folder.make()
            folder.run_file.write_text(RUN)
            with Journal(folder.journal, 0) as journal:
                for step in range(steps):
                    journal.step(step + 1, 10.0 * step, 1.0, 0.0, 1.0, 0.0)
            raise error

    with pytest.raises(type(error)):
        launch()
    return folder.path.exists()


def test_bad_input_before_the_first_step_leaves_no_run(tmp_path: Path) -> None:
    assert not refused(RunFolder(tmp_path / "bad"), PenstockError("wrong"))
    assert not refused(RunFolder(tmp_path / "shut"), PermissionError(errno.EACCES, "no"))
    # What failed for another reason, or has trained, stays.
    assert refused(RunFolder(tmp_path / "failed"), RunFailed("broken"))
    assert refused(RunFolder(tmp_path / "trained"), PenstockError("wrong"), steps=1)
    there = tmp_path / "there"
    there.mkdir()
    (there / "notes.txt").write_text("mine")
    assert refused(RunFolder(there), PenstockError("wrong"))


@pytest.mark.parametrize("error", [KeyError("a fault of Penstock"), KeyboardInterrupt()])
def test_a_lock_alone_is_no_run(tmp_path: Path, error: BaseException) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(type(error)), folder.lock(), _nothing_left(folder):
        raise error
    assert not folder.path.exists()
    assert refused(RunFolder(tmp_path / "launched"), error)
