"""A command that is told to stop says that it can go on."""

import os
import signal
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.data.build import build as engine


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_build_says_that_it_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(f'[[source]]\npath = "{tmp_path}"\n')
    # Whatever the verb does not hear must not end the tests.
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    monkeypatch.setattr(engine, "build", lambda *args, **kwargs: os.kill(os.getpid(), number))
    monkeypatch.setattr("sys.argv", ["penstock", "data", "build", str(recipe)])
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told == "error: small: interrupted. What was done is kept; the same command goes on.\n"


def test_a_run_that_is_interrupted_before_its_launch_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[model]\nlayers = 1\nhidden = 16\nheads = 2\nffn = 32\n[train]\nsteps = 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "penstock.launch.start.prepare", lambda *args: os.kill(os.getpid(), signal.SIGINT)
    )
    monkeypatch.setattr("sys.argv", ["penstock", "train", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told == "error: interrupted. What was done is kept; the same command goes on.\n"
    assert not list(tmp_path.glob("runs/*"))
