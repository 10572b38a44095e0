"""`-` for an output file is standard output, or is refused: no file of that name appears."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from made_run import made_run
from made_sets import tiny_dataset
from penstock.cli.main import app
from penstock.errors import PenstockError
from penstock.run.init import template


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder with a run, and a home with a dataset."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    made_run(tmp_path / "runs", steps=2)
    tiny_dataset(tmp_path / "home")


def call(*words: str) -> Result:
    done = CliRunner().invoke(app, words)
    assert not Path("-").exists()
    return done


@pytest.mark.parametrize("words", [("report", "made"), ("data", "show", "tiny")])
def test_a_page_is_printed_alone(words: tuple[str, ...]) -> None:
    done = call(*words, "--html", "-")
    assert done.exit_code == 0
    assert done.stdout.lstrip().lower().startswith("<!doctype html>")
    assert done.stdout.rstrip().endswith("</html>")
    assert done.stderr == ""
    assert call(*words, "--html", "page.html").exit_code == 0
    assert len(Path("page.html").read_text()) == pytest.approx(len(done.stdout), rel=0.01)
    both = call(*words, "--html", "-", "--json").exception
    assert isinstance(both, PenstockError)
    assert "--html - and --json: both write to standard output" in str(both)


def test_a_run_file_is_printed_alone() -> None:
    done = call("init", "--out", "-")
    assert done.stdout == template("pretrain")
    assert tomllib.loads(done.stdout)["name"] == "first-run"
    assert isinstance(call("init", "--out", "-", "--json").exception, PenstockError)


def test_a_picture_is_printed_alone() -> None:
    call("init", "--out", "run.toml")
    words = ("plan", "run.toml", "cluster.use=H100", "--scale", "8,16", "--svg", "-")
    done = call(*words)
    assert done.stdout.startswith("<svg"), done.output
    assert done.stdout.rstrip().endswith("</svg>")
    assert isinstance(call(*words, "--json").exception, PenstockError)


@pytest.mark.parametrize(
    "words",
    [
        ("export", "made", "--out", "-"),
        ("checkpoint", "convert", "made", "-", "--ranks", "2"),
        ("probe", "--out", "-"),
    ],
)
def test_what_standard_output_cannot_hold_is_refused(words: tuple[str, ...]) -> None:
    error = call(*words).exception
    assert isinstance(error, PenstockError)
    assert "-: standard output cannot hold it; name a" in str(error)


def test_letters_that_the_terminal_lacks_are_written_as_markup() -> None:
    done = CliRunner(charset="ascii").invoke(app, ["report", "made", "--html", "-"])
    assert done.exit_code == 0
    assert "?" not in done.stdout.replace("<?", "").partition("<body")[2].partition("</h1>")[0]
    assert "&#" in done.stdout
