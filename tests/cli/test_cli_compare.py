"""`penstock compare` from the command line and from Python: the same words and numbers."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app
from penstock.errors import PenstockError

RUN = """name = "compared"
[model]
preset = "llama-1b"
[data]
sequence = 4096
[train]
tokens = "25B"
batch_tokens = "1Mi"
precision = "bf16"
"""
MINE = """[accelerator]
name = "H100 SXM5"
[site]
name = "US-TX"
[price]
term = "owned"
"""


def say(folder: Path, *words: str, code: int = 0):
    (folder / "run.toml").write_text(RUN)
    (folder / "mine.toml").write_text(MINE)
    fixed = ("--lives", "4", "--start", "2026-12-01")
    asked = ["compare", str(folder / "run.toml"), *fixed, *words]
    done = CliRunner().invoke(app, asked, catch_exceptions=code != 0)
    assert done.exit_code == code, done.output
    return done


def test_the_screen_the_json_and_python_say_the_same(tmp_path: Path) -> None:
    words = ("--clusters", f"{tmp_path}/mine.toml,8xL40S,RTX 4090", "--deadline", "2026-12-20")
    text = say(tmp_path, *words).stdout
    found = json.loads(say(tmp_path, *words, "--json").stdout)
    assert {one["cluster"] for one in found["clusters"]} == {"mine", "8 × L40S"}
    assert found["left_out"][0]["cluster"] == "1 × RTX 4090"
    assert found["deadline_days"] == 19
    assert f"take        {found['choice']}: " in text
    assert "2026-12-0" in text
    assert found["break_even"][0]["cluster"] == "mine"
    same = penstock.compare(
        tmp_path / "run.toml",
        [str(tmp_path / "mine.toml"), "8xL40S", "RTX 4090"],
        deadline="2026-12-20",
        start="2026-12-01",
        lives=4,
    )
    assert isinstance(same, penstock.ClusterComparison)
    assert same.to_json() == found


def test_every_number_of_the_price_has_a_source(tmp_path: Path) -> None:
    text = say(tmp_path, "--clusters", f"{tmp_path}/mine.toml", "--detail").stdout
    for part in ("depreciation", "capital", "maintenance", "people", "colocation", "electricity"):
        line = next(row for row in text.splitlines() if row.strip().startswith(part))
        assert "catalog" in line


def test_the_picture_is_written_or_printed_alone(tmp_path: Path) -> None:
    names = ("--clusters", f"{tmp_path}/mine.toml,8xL40S")
    say(tmp_path, *names, "--svg", str(tmp_path / "c.svg"))
    alone = say(tmp_path, *names, "--svg", "-").stdout
    assert alone == (tmp_path / "c.svg").read_text()


def test_no_cluster_that_holds_the_run_is_a_failure_with_the_reasons(tmp_path: Path) -> None:
    done = say(tmp_path, "--clusters", "RTX 4090", "--json", code=1)
    assert "in no layout" in str(done.exception)
    assert json.loads(done.stdout)["choice"] is None


def test_a_failure_rate_may_be_changed(tmp_path: Path) -> None:
    names = ("--clusters", "8xH100")
    few = json.loads(say(tmp_path, *names, "--json").stdout)
    many = json.loads(say(tmp_path, *names, "failures.node_mtbf=2 h", "--json").stdout)
    assert many["clusters"][0]["interruptions"]["p50"] > few["clusters"][0]["interruptions"]["p50"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"clusters": "nonsuch"}, 'clusters="nonsuch": '),
        ({"clusters": ["H100", "h100"]}, "is named twice"),
        ({"clusters": "H100", "deadline": "soon"}, "deadline=…: 'soon'"),
        ({"clusters": "H100", "lives": 0}, "lives=0"),
    ],
)
def test_python_refuses_with_its_own_names(tmp_path: Path, asked: dict, told: str) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    with pytest.raises(PenstockError) as error:
        penstock.compare(tmp_path / "run.toml", **asked)
    assert told in str(error.value)
