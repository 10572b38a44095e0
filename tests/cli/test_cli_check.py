"""`check` and `plan` of data that is not built: said clearly, and planned all the same."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from made_sets import made_set
from penstock.cli.main import app
from penstock.errors import PenstockError
from penstock.meter.inventory import take_inventory
from penstock.plan.hardware import cluster
from penstock.run.load import load

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
    (tmp_path / "raw" / "b.txt").write_bytes(b"caf\xe9")
    lost = "50% OF THE ROWS WILL BE LOST: 1 of the first 2 rows will be kept aside (1 not UTF-8)"
    assert f"{why}. {lost}. The first is b.txt, line 1" in say("check", file, "data.dataset=raw")


def test_a_packed_dataset_is_checked_with_its_own_sequence(file: str, tmp_path: Path) -> None:
    made = made_set(tmp_path, np.arange(9601) % 300, [0], name="packed", packed=96)
    given = f"data.dataset={made.folder}"
    checked = say("check", file, given)
    assert "sequences of 96 tokens" in checked
    assert "note" not in checked
    told = json.loads(say("check", file, given, "--json"))
    assert (told["sequence"], told["not_built"]) == (96, [])


def test_a_layout_is_checked_before_the_vocabulary_is_known(file: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    own = "[model]\nlayers = 2\nhidden = 32\nheads = 4\nkv_heads = 1\nffn = 64\n"
    (tmp_path / "c.toml").write_text(f'name = "c"\n{own}[cluster]\naccelerators = 2\n')
    assert "before the dataset is built" in say("check", file, "data.dataset=a.txt")
    done = CliRunner().invoke(app, ["check", file, "data.dataset=a.txt", "layout.tensor=2"])
    assert isinstance(done.exception, PenstockError)
    assert "does not divide the model's kv_heads of 1" in str(done.exception)


def test_what_no_export_could_write_is_told_before_training(file: str, tmp_path: Path) -> None:
    own = "layers = 2\nhidden = 32\nheads = 4\nvocab = 300\nexperts = 4\nexperts_active = 2\n"
    experts = f'name = "c"\n[model]\n{own}expert_ffn = 32\nqk_norm = true\n'
    (tmp_path / "c.toml").write_text(experts)
    assert "no place for the balance of experts" in say("check", file)
    assert "penstock export" not in say("check", file, "train.balance_rate=0")
    shared = say("check", file, "model.shared_experts=1")
    assert "cannot have shared_experts = 1" in shared
    assert 'router = "sigmoid"' in shared
    sigmoid = say("check", file, "model.shared_experts=1", "model.router=sigmoid")
    assert "penstock export" not in sigmoid
    notes = json.loads(say("check", file, "--json"))["notes"]
    assert any("penstock export" in note for note in notes)


def test_a_precision_that_this_device_lacks_is_refused(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = take_inventory()
    there = replace(seen, devices=replace(seen.devices, kind="cpu", name=""))
    monkeypatch.setattr("penstock.meter.inventory.take_inventory", lambda: there)
    monkeypatch.setattr(cluster, "take_inventory", lambda: there)
    done = CliRunner().invoke(app, ["check", file, "train.precision=fp8"])
    assert isinstance(done.exception, PenstockError)
    assert "a CPU has no 8-bit matrix products" in str(done.exception)


def test_tasks_and_outlets_are_shown_and_a_silent_server_is_a_note(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_set(tmp_path, np.arange(96001) % 300, [0], name="made")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/secret-path"
        given = (f"data.dataset={made.folder}", f"log.webhook={url}", "log.tensorboard=true")
        checked = say("check", file, *given)
    assert "sends to   webhook, tensorboard\n" in checked
    assert "does not answer" not in checked
    noted = say("check", file, *given)  # the server is gone
    assert "log.webhook: http://127.0.0.1/… does not answer" in noted
    assert "secret-path" not in noted


def test_a_limit_of_no_documents_is_refused_in_words_of_documents(file: str) -> None:
    with pytest.raises(PenstockError, match="too few documents; write 1 or more"):
        load(file, ["evaluate.tasks_limit=0", "evaluate.tasks=['t']"])
