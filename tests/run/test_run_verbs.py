"""`penstock init`, `check` and `schema`: thin, and they say the next step."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.check import check
from penstock.cli.init import init
from penstock.cli.schema import schema
from penstock.errors import NotYet, PenstockError
from penstock.plan.job.layout import IllegalLayout
from penstock.run import reference
from penstock.run.init import template
from penstock.run.load import load
from penstock.run.unsupported import refuse_unsupported

app = typer.Typer()
for verb in (init, check, schema):
    app.command()(verb)


def call(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_init_writes_a_run_that_works_and_says_what_comes_next(tmp_path):
    out = tmp_path / "my.toml"
    result = call("init", "--out", out)
    assert f"penstock train {out}" in result.stdout
    run = load(out)
    refuse_unsupported(run)
    assert (run.name, run.model.preset, run.data.dataset) == ("first-run", "llama-3m", "stdlib")
    assert run.train.tokens == 1_000_000
    assert len(out.read_text().splitlines()) < 15


def test_init_for_programs(tmp_path):
    out = tmp_path / "my.toml"
    answer = json.loads(call("init", "pretrain", "--out", out, "--json").stdout)
    assert answer == {"file": str(out), "kind": "pretrain", "next": f"penstock train {out}"}


def test_init_keeps_a_file_that_is_there_unless_forced(tmp_path):
    out = tmp_path / "my.toml"
    out.write_text("mine")
    with pytest.raises(PenstockError, match="--force"):
        call("init", "--out", out)
    assert out.read_text() == "mine"
    call("init", "--out", out, "--force")
    assert load(out).name == "first-run"


def test_init_refuses_what_it_cannot_do(tmp_path):
    out = tmp_path / "my.toml"
    with pytest.raises(PenstockError, match="--model is for `penstock init finetune`"):
        call("init", "--model", "m", "--out", out)
    with pytest.raises(PenstockError, match="Did you mean 'pretrain'"):
        call("init", "pretrian", "--out", out)
    with pytest.raises(PenstockError, match="cannot be written: No such file"):
        call("init", "--out", tmp_path / "absent" / "my.toml")
    assert not out.exists()


def test_filled_in_values_leave_comments_in_their_column():
    text = template("finetune", "m", "d.jsonl").splitlines()
    given = [line for line in text if line.startswith(("from", "dataset", "rank"))]
    assert [line.index("#") for line in given] == [31, 31, 31]
    longer = template("finetune", "models/a-very-long-name-of-a-model", None)
    assert 'from = "models/a-very-long-name-of-a-model" # its folder' in longer


def test_init_finetune_says_what_to_fill_in(tmp_path):
    out = tmp_path / "my.toml"
    result = call("init", "finetune", "--out", out)
    assert "Fill in model.from and data.dataset" in result.stdout
    result = call("init", "finetune", "--model", "m", "--out", out, "--force", "--json")
    assert json.loads(result.stdout)["fill_in"] == ["data.dataset"]
    call("init", "finetune", "--model", "m", "--data", 'a "b".jsonl', "--out", out, "--force")
    table = tomllib.loads(out.read_text())
    assert table["model"]["from"] == "m"
    assert table["data"]["dataset"] == 'a "b".jsonl'
    assert len(out.read_text().splitlines()) < 30
    page = Path(__file__).parents[2] / "docs" / "finetune.md"
    assert template("finetune") in page.read_text()


@pytest.fixture
def file(tmp_path):
    call("init", "--out", tmp_path / "run.toml")
    return tmp_path / "run.toml"


def test_check_says_what_the_run_will_do(file):
    lines = call("check", file, "train.tokens=2M").stdout.splitlines()
    text = "\n".join(lines)
    assert len(lines) <= 12  # with the note that the dataset is still to be built
    assert any(line.startswith("memory") and "GiB on the fullest" in line for line in lines)
    assert "llama-3m, 3.28M parameters" in text
    assert "stdlib" in text
    assert "2M tokens = 489 steps × batch of 4Ki tokens" in text
    assert "peak 0.003, cosine, warmup 5%" in text
    assert "precision  bf16" in text or "precision  fp32" in text  # as the machine has it
    assert "chosen at start" in text
    assert lines[-1] == f"The file is right. Next: penstock train {file} train.tokens=2M"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["train.epochs=2"], "2 epochs, batch of"),
        (["layout.shard=2", "layout.replicate=1"], "replicate 1, shard 2"),
        (["layout.shard=1"], "shard 1"),
        (["layout.tensor=1"], "chosen at start"),
        (["guard.checkpoint=10 min"], "every 10 min, the newest 3"),
        (["evaluate.every=never"], "never"),
        (["evaluate.holdout=0"], "never"),
        (["train.schedule=wsd"], "wsd, warmup 5%, decay 20%"),
        (["model.module=net.py:build", "train.learning_rate=1"], "net.py:build"),
    ],
)
def test_check_tells_runs_apart(file, overrides, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = "nn.Sequential(nn.Embedding(4096, 4), nn.Linear(4, 4096))"
    (tmp_path / "net.py").write_text(f"from torch import nn\n\n\ndef build():\n    return {net}\n")
    assert words in call("check", file, *overrides).stdout


def test_check_of_an_own_shape_does_not_invent_the_vocabulary(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text("[model]\nlayers = 2\nhidden = 64\nheads = 4\nffn = 128\n")
    assert "parameters before the dataset's vocabulary" in call("check", file).stdout
    assert json.loads(call("check", file, "--json").stdout)["parameters"] is None


def test_check_for_programs(file):
    answer = json.loads(call("check", file, "--json").stdout)
    assert answer["ok"] is True
    assert answer["not_yet"] == []
    assert answer["parameters"] == 3_278_080
    assert answer["steps"] == 489
    assert answer["run"]["train"]["tokens"] == 1_000_000
    assert len(answer["fingerprint"]) == 64


def test_check_shows_the_run_and_then_refuses_what_is_not_built(file):
    result = CliRunner().invoke(app, ["check", str(file), "dir=s3://bucket/runs"])
    assert isinstance(result.exception, NotYet)
    assert "llama-3m" in result.stdout
    assert "The file is right" not in result.stdout
    result = CliRunner().invoke(app, ["check", str(file), "dir=s3://bucket/runs", "--json"])
    answer = json.loads(result.stdout)
    assert answer["ok"] is False
    (line,) = answer["not_yet"]
    assert line == 'dir = "s3://bucket/runs": a run at a URL is not built yet; write a folder'


def test_check_shows_the_run_and_then_refuses_a_layout_that_cannot_be(file):
    asked = ["check", str(file), "layout.tensor=3", "cluster.accelerators=3"]
    result = CliRunner().invoke(app, asked)
    assert isinstance(result.exception, IllegalLayout)
    assert "tensor 3" in result.stdout
    assert "The file is right" not in result.stdout
    answer = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert answer["ok"] is False
    (line,) = answer["illegal"]
    assert line.startswith("layout.tensor = 3: does not divide the model's heads of ")


def test_check_of_an_own_module_knows_how_it_can_be_spread(file):
    own = ["model.module=net.py:build", "train.learning_rate=1", "layout.pipeline=2"]
    result = CliRunner().invoke(app, ["check", str(file), *own])
    assert isinstance(result.exception, IllegalLayout)


def test_schema_prints_both_forms():
    assert json.loads(call("schema").stdout) == json.loads(json.dumps(reference.json_schema()))
    assert call("schema", "--markdown").stdout == reference.markdown()


def test_a_file_is_checked_without_torch(file):
    code = (
        "import sys; from penstock.cli.check import check; check(sys.argv[1]); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=True, capture_output=True)
