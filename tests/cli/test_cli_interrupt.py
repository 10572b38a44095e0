"""A build that is told to stop says that it can go on."""

import os
import signal
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.data import build as engine


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
