"""`ls` and `logs` on runs that were made by hand, without a process."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from made_run import made_run
from penstock.cli.main import app
from penstock.errors import PenstockError
from penstock.run.folder import find_run

LONG = "a-very-long-name-of-a-run-" * 5 + "end"


def say(*words: str) -> str:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("columns", ["40", "80", None])
def test_ls_never_breaks_a_line(
    columns: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    made_run(tmp_path, LONG[:100], steps=2)
    made_run(tmp_path, "short", steps=2)
    lines = say("ls", "--dir", str(tmp_path)).splitlines()
    assert [line.split()[0] for line in lines] == ["run", "short", LONG[:100]]
    assert all(len(line.split()) == 6 for line in lines)


def test_logs_of_a_rank_that_is_not_there_name_those_that_are(tmp_path: Path) -> None:
    folder = made_run(tmp_path, steps=2)
    attempt = folder.logs / "attempt-0"
    attempt.mkdir()
    for rank in (0, 1, 10):
        (attempt / f"rank-{rank}.out").write_text(f"from {rank}\n")
    done = CliRunner().invoke(app, ["logs", "made", "--rank", "5", "--dir", str(tmp_path)])
    assert isinstance(done.exception, PenstockError)
    assert done.exception.exit_code == 2
    assert str(done.exception) == (
        "--rank 5: run 'made' has no log of it in attempt 0; there are ranks 0, 1, 10"
    )
    assert "from 1\n" in say("logs", "made", "--rank", "1", "--dir", str(tmp_path))
    every = say("logs", "made", "--dir", str(tmp_path))
    said = [line for line in every.splitlines() if line.startswith("from")]
    assert said == ["from 0", "from 1", "from 10"]
    listed = json.loads(say("logs", "made", "--json", "--dir", str(tmp_path)))
    assert [one["text"] for one in listed] == said
    assert Path(listed[0]["file"]) == attempt / "rank-0.out"


def test_logs_without_a_word_say_so(tmp_path: Path) -> None:
    folder = made_run(tmp_path, steps=2)
    (folder.logs / "attempt-0").mkdir()
    (folder.logs / "attempt-0" / "rank-0.err").write_text("\n")
    done = CliRunner().invoke(app, ["logs", "made", "--dir", str(tmp_path)])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "nothing was printed\n")


def test_stop_asks_a_run_that_is_running(tmp_path: Path) -> None:
    folder = made_run(tmp_path, steps=2)
    with folder.lock():
        told = json.loads(say("stop", "made", "--json", "--dir", str(tmp_path)))
    assert told["run"] == "made"
    assert "save and stop" in told["said"]
    assert folder.control_requests()["stop"]


def test_a_run_is_called_by_its_folder_from_inside_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "run.toml").write_text("")
    monkeypatch.chdir(tmp_path / "inside")
    assert find_run(".").name == "inside"
    monkeypatch.chdir(tmp_path)
    assert find_run("inside").path == Path("inside")
