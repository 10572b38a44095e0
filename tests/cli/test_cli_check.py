"""`check` and `plan` of data that is not built: said clearly, and planned all the same."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from made_sets import made_set
from penstock.cli.main import app

FILE = 'name = "c"\n[model]\npreset = "llama-3m"\n[train]\ntokens = "1M"\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(FILE)
    return str(tmp_path / "c.toml")


def say(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    return done.output


def test_what_is_not_built_is_a_note(file: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text("some text")
    why = "raw is not built here yet; `penstock train` builds it"
    checked = say("check", file, "data.dataset=raw")
    assert f"note       {why}\n" in checked
    assert "The file is right" in checked
    assert json.loads(say("check", file, "data.dataset=raw", "--json"))["not_built"] == [why]
    assert f"note        data: {why}; planned with" in say("plan", file, "data.dataset=raw")
    lost = say("check", file, "data.dataset=nowhere")
    assert "nowhere is not built here: no run can start from it before it is in" in lost


def test_a_packed_dataset_is_checked_with_its_own_sequence(file: str, tmp_path: Path) -> None:
    made = made_set(tmp_path, np.arange(9601) % 300, [0], name="packed", packed=96)
    given = f"data.dataset={made.folder}"
    checked = say("check", file, given)
    assert "sequences of 96 tokens" in checked
    assert "note" not in checked
    told = json.loads(say("check", file, given, "--json"))
    assert (told["sequence"], told["not_built"]) == (96, [])
