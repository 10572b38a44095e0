"""The verbs on a real, finished run; and how mistakes are told."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import commands
import penstock
from penstock.cli.main import VERBS, app
from penstock.launch.supervisor.preload import PreloadClient

KEYS = {
    "run",
    "steps",
    "tokens",
    "loss",
    "val_loss",
    "tokens_per_s",
    "ledger",
    "wall_s",
    "ranks",
    "resumed_from",
    "weights_hash",
}


def say(*words: str) -> str:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny: str, warm: PreloadClient) -> Path:
    """Make a run of 12 steps by the command line; return its folder of runs."""
    folder = tmp_path_factory.mktemp("cli")
    file = folder / "small.toml"
    file.write_text(
        f'name = "small"\ndir = "{folder}/runs"\n[model]\nlayers = 1\nhidden = 16\nheads = 2\n'
        f'ffn = 32\n[data]\ndataset = "{tiny}"\nsequence = 16\n[train]\nsteps = 12\n'
        'batch_tokens = 64\nprecision = "fp32"\n[cluster]\naccelerators = 1\n'
    )
    done = commands.run("train", str(file), "--json")
    report = json.loads(done.stdout)  # one object, and nothing else, on stdout
    assert report.keys() >= KEYS
    assert report["steps"] == 12
    assert done.stderr.splitlines()[0].split()[1:] in (["CPU", "cores"], ["CPU", "core"])
    return folder / "runs"


def test_reading_verbs(trained: Path) -> None:
    where = ("--dir", str(trained))
    assert "small" in say("ls", *where)
    assert "done" in say("ls", *where)
    assert json.loads(say("ls", "--json", *where))[0]["run"] == "small"
    assert "step 12/12" in say("status", "small", *where)
    screen = say("report", "small", *where)
    assert "compute" in screen
    assert "wall-clock" in screen
    assert "the model writes" in screen
    assert json.loads(say("report", "small", "--json", *where)).keys() >= KEYS
    assert say("report", str(trained / "small")) == screen  # by folder as by name


def test_generate_writes_the_same_for_the_same_seed(trained: Path) -> None:
    words = ("generate", "small", "def f", "--tokens", "8", "--dir", str(trained))
    first, again, other = say(*words), say(*words), say(*words, "--seed", "1")
    assert first.startswith("def f")
    assert len(first) > len("def f\n")
    assert first == again
    assert first != other
    assert json.loads(say(*words, "--json"))["prompt"] == "def f"


def test_the_python_face_does_what_the_verbs_do(trained: Path) -> None:
    run = penstock.load(str(trained.parent / "small.toml"))
    assert run.name == "small"
    verb = json.loads(say("report", "small", "--json", "--dir", str(trained)))
    assert penstock.report(run).to_json() == verb
    assert penstock.train(run).to_json() == verb  # finished: nothing to do
    from penstock.train import loop

    assert callable(loop.build)
    assert penstock.train(run).to_json() == verb


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["report", "smal"], "Did you mean 'small'?"),
        (["status", "nothing-like-it"], "Known runs: small"),
        (["stop", "small"], "not running"),
        (["logs", "small", "--attempt", "7"], "no attempt 7"),
    ],
)
def test_mistakes_about_runs_get_one_message(
    words: list[str], expected: str, trained: Path
) -> None:
    error = commands.run(*words, "--dir", str(trained), code=2).stderr
    assert error.startswith("error: ")
    assert expected in error


def test_a_damaged_checkpoint_is_not_read(trained: Path) -> None:
    shard = next((trained / "small" / "checkpoints").glob("step-*/state/*.distcp"))
    good = shard.read_bytes()
    shard.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    try:
        error = commands.run("generate", "small", "x", "--dir", str(trained), code=1).stderr
    finally:
        shard.write_bytes(good)
    assert "does not match its hash" in error


def test_help_lists_every_verb() -> None:
    text = say("--help")
    for verb in VERBS:
        assert f"│ {verb} " in text


@pytest.mark.usefixtures("cold")
def test_a_wrong_file_ends_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise AssertionError('loaded')")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    file = tmp_path / "run.toml"
    file.write_text('[model]\npreset = "llama-3x"\n[train]\ntokens = "many"\n')
    error = commands.run("train", file, code=2, PYTHONPATH=path).stderr
    assert f"{file}:2" in error
    assert f"{file}:4" in error
