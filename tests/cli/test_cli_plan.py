"""`penstock plan` from the command line: the screen, the JSON, budgets, mistakes, speed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import commands
from penstock.cli.main import app
from penstock.errors import RunFailed

RUN = """name = "planned"
[model]
preset = "llama-1b"
[data]
sequence = 2048
[train]
tokens = "20B"
[cluster]
use = "H100"
nodes = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def say(*words: str) -> str:
    done = CliRunner().invoke(app, ["plan", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


pytestmark = pytest.mark.usefixtures("warm")


def test_ten_lines_and_the_rest_with_detail(file: Path) -> None:
    lines = say(str(file)).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["fits", "layout", "speed"]
    assert lines[9].startswith("next")
    assert "10 % more of it gives" in say(str(file), "--detail")


def test_json_and_explanations(file: Path) -> None:
    table = json.loads(say(str(file), "--json"))
    assert table["accelerators"] == 16
    assert table["usd"] > 0
    text = say(str(file), "--explain", "usd")
    assert text.startswith("usd = ")
    assert "accelerator-hours" in text
    derived = json.loads(say(str(file), "--explain", "usd", "--json"))["explain"]
    assert derived[0].startswith("usd = ")


def test_overrides_are_what_if(file: Path) -> None:
    one, two = (json.loads(say(str(file), f"cluster.nodes={n}", "--json")) for n in (1, 2))
    assert one["tokens_per_s"] < two["tokens_per_s"]
    assert one["days"] > two["days"]


def test_a_cluster_file_gives_price_and_site(file: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours.toml"
    ours.write_text(
        'nodes = 2\n[accelerator]\nname = "H100"\n[price]\nusd_per_hour = 2.5\n'
        '[site]\nname = "us-east-1"\n'
    )
    table = json.loads(say(str(file), f"cluster.use={ours}", "--json"))
    hours = table["wall_s"] / 3600 * table["accelerators"]
    assert table["usd"] == pytest.approx(2.5 * hours)
    assert table["co2e_kg"] > 0
    assert table["energy_kwh"] > table["energy_it_kwh"]


def test_over_the_budget_is_exit_code_one_with_by_how_much(file: Path) -> None:
    done = commands.run("plan", str(file), "budget.hours=0.5", "budget.usd=1", "--json", code=1)
    assert len(json.loads(done.stdout)["over_budget"]) == 2
    assert "budget.hours = 0.5: the plan takes" in done.stderr
    assert "over" in done.stderr
    commands.run("plan", str(file), "budget.hours=1000", code=0)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--explain", "memory.weight"], "Did you mean 'memory.weights'?"),
        (["cluster.use=H1000"], "H1000"),
        (["layout.tensor=3"], "does not divide"),
        (["cluster.nodes=0"], "cluster.nodes"),
    ],
)
def test_mistakes_get_one_message(file: Path, words: list[str], expected: str) -> None:
    error = commands.run("plan", str(file), *words, code=2).stderr
    assert error.startswith("error: ")
    assert expected in error


def test_this_machine_can_be_planned_without_a_probe(file: Path) -> None:
    here = ["cluster.use=here", "cluster.nodes=1", "model.preset=llama-3m"]
    done = commands.run("plan", file, *here, "data.sequence=256", "train.tokens=1M", "--json")
    table = json.loads(done.stdout)
    assert table["usd"] is None
    assert table["step_s"] > 0


def test_it_answers_without_torch(file: Path) -> None:
    """Importing it is what takes seconds. The time itself is no test: machines are shared."""
    code = (
        "import sys\nfrom penstock.cli.main import app\n"
        f"app(['plan', {str(file)!r}, '--json'], standalone_mode=False)\n"
        "print([n for n in ('torch', 'numpy') if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert "torch" not in done.stderr


def test_where_nothing_fits_programs_are_told_too(file: Path) -> None:
    asked = [str(file), "cluster.use=RTX 4090", "cluster.nodes=1", "model.preset=llama-8b"]
    done = CliRunner().invoke(app, ["plan", *asked, "--json"])
    assert isinstance(done.exception, RunFailed)
    table = json.loads(done.stdout)
    assert table["fits"] is False
    assert table["why"] == str(done.exception)
    assert table["tried"][0]["fits"] is False
    assert re.search(r"LoRA \(\[model.adapter\] kind = \"lora\"\) takes [\d.]+ GiB", table["why"])
    assert re.search(r"QLoRA .* takes [\d.]+ GiB \(fits\)", table["why"])
    assert re.search(r'train.states = "bf16" with .* takes [\d.]+ GiB \(too much\)', table["why"])


def test_a_model_that_is_not_here_is_planned_by_its_shape_in_the_catalog() -> None:
    example = str(Path(__file__).parents[2] / "examples" / "lora-8b.toml")
    asked = [example, "cluster.use=RTX 4090", "train.tokens=10M", "model.from=away/Llama-3.1-8B"]
    table = json.loads(say(*asked, "--json"))
    assert table["fits"] is True
    assert table["accelerators"] == 1
    assert any("the weights were not looked at" in note for note in table["warnings"])
    done = CliRunner().invoke(app, ["plan", *asked[:-1], "model.from=/away/of-my-own"])
    assert "no such folder" in str(done.exception)
