"""`penstock watch` as a process: its first line is the address, Ctrl-C ends it."""

import json
import signal
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

import commands
from made_run import made_run
from penstock.cli.main import app
from penstock.errors import PenstockError, RunFailed
from penstock.run.folder import RunFolder

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.parametrize("where", ["127.0.0.1", "0.0.0.0"])
def test_the_first_line_is_the_address_and_ctrl_c_ends_it(tmp_path: Path, where: str) -> None:
    made_run(tmp_path)
    options = ["made", "--dir", str(tmp_path), "--port", "0", "--no-open", "--host", where]
    process = commands.popen("watch", *options)
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://")
        assert "run=made" in address
        assert ("token=" in address) == (where == "0.0.0.0")
        here = "http://127.0.0.1:" + address.removeprefix("http://").split(":")[1]
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(here) as page:
            assert b"Penstock" in page.read()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_for_programs_there_is_no_server(tmp_path: Path) -> None:
    made_run(tmp_path)
    done = commands.run("watch", "made", "--dir", tmp_path, "--json")
    assert json.loads(done.stdout)["made"]["headline"]["step"] == 40


@pytest.mark.parametrize("kind", ["curve", "steps"])
def test_a_damaged_journal_is_told_to_programs(tmp_path: Path, kind: str) -> None:
    """In every section that needs it, not in the first that asks; and by `ls` beside the others."""
    folder = made_run(tmp_path)
    made_run(tmp_path, "good")
    (folder.journal / f"a0000-r00000.{kind}").write_bytes(b"\0\xff garbage" * 50)
    said = f"a0000-r00000.{kind} is not a {kind} file of a journal"
    for runs in (["made"], []):
        done = CliRunner().invoke(app, ["watch", *runs, "--dir", str(tmp_path), "--json"])
        assert isinstance(done.exception, RunFailed)
        assert str(done.exception).startswith("run 'made' cannot be read: ")
        assert said in str(done.exception)
        assert "'good'" not in str(done.exception)
        found = json.loads(done.stdout)
        assert said in found["made"]["headline"]["problem"]
        assert said in found["made"]["curve" if kind == "curve" else "where"]["problem"]
        if not runs:
            assert found["good"]["headline"]["step"] == 40
    for verb in ("status", "report"):
        done = CliRunner().invoke(app, [verb, "made", "--dir", str(tmp_path), "--json"])
        assert isinstance(done.exception, PenstockError)
        assert said in str(done.exception)
    listed = CliRunner().invoke(app, ["ls", "--dir", str(tmp_path), "--json"])
    assert listed.exit_code == 0
    assert [run["run"] for run in json.loads(listed.stdout)] == ["good"]
    assert said in listed.stderr


def test_a_whole_journal_is_no_failure(tmp_path: Path) -> None:
    made_run(tmp_path)
    RunFolder(tmp_path / "made").journal.joinpath("a0000-r00001.curve").write_bytes(b"PEN")  # torn
    done = CliRunner().invoke(app, ["watch", "made", "--dir", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output


def test_an_unknown_run_is_a_mistake(tmp_path: Path) -> None:
    done = commands.run("watch", "nowhere", "--dir", tmp_path, code=2)
    assert "no run 'nowhere'" in done.stderr
