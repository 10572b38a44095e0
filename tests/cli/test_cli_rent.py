"""`penstock rent` from the command line: the table, the advice, the JSON."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app
from penstock.errors import PenstockError

RUN = """name = "rented"
[model]
preset = "llama-1b"
[data]
sequence = 4096
[train]
tokens = "25B"
batch_tokens = "1Mi"
precision = "bf16"
"""
OFFERS = """provider,accelerator,usd_per_hour,term,interruptions_per_day,available
north,H100 SXM5,2.99,on-demand,,
north,H100 SXM5,1.62,spot,3,0.7
west,A100 SXM4 80GB,1.59,on-demand,,
"""


def say(folder: Path, *words: str) -> str:
    (folder / "run.toml").write_text(RUN)
    (folder / "offers.csv").write_text(OFFERS)
    asked = ["rent", str(folder / "run.toml"), "--lives", "5", "--nodes", "1", *words]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_screen_and_the_json_say_the_same(tmp_path: Path) -> None:
    words = ("--offers", str(tmp_path / "offers.csv"), "--deadline", "30 h")
    text = say(tmp_path, *words)
    found = json.loads(say(tmp_path, *words, "--json"))
    assert [one["provider"] for one in found["offers"]] == ["north", "north", "west"]
    assert found["offers"][0]["term"] == "spot"
    assert found["offers"][0]["with_on_demand"] == "north"
    assert found["offers"][2]["late"] == 1.0
    assert "take      8 × H100 SXM5, spot, north" in text
    assert "Switch to it for good" in text
    assert say(tmp_path, *words) == text


def test_times_have_the_unit_that_suits_them(tmp_path: Path) -> None:
    words = ("--offers", str(tmp_path / "offers.csv"))
    text = say(tmp_path, *words, "train.tokens=100M", "--deadline", "2 h")
    (header,) = (line for line in text.splitlines() if "USD/M tokens" in line)
    assert "time" in header
    rows = [line for line in text.splitlines() if " × " in line and line.lstrip()[0] == "$"]
    assert len(rows) == 3
    assert all(re.search(r"\d (min|h) \([\d.]+( \w+)?–[\d.]+ (min|h)\)", row) for row in rows)
    assert " days" not in text
    found = json.loads(say(tmp_path, *words, "train.tokens=100M", "--json"))
    assert found["offers"][0]["days"]["p50"] < 0.1, "programs get days as before"


def test_the_catalog_is_ranked_without_a_file(tmp_path: Path) -> None:
    text = say(tmp_path, "--top", "3")
    assert "catalog prices are dated medians" in text
    assert len([line for line in text.splitlines() if " × " in line and "$" in line]) == 4


def test_python_ranks_the_same(tmp_path: Path) -> None:
    found = json.loads(say(tmp_path, "--offers", str(tmp_path / "offers.csv"), "--json"))
    file, offers = tmp_path / "run.toml", tmp_path / "offers.csv"
    same = penstock.rent(file, offers=offers, lives=5, nodes=1)
    assert same.to_json() == found
    assert isinstance(same, penstock.Ranking)
    late = penstock.rent(file, offers=offers, lives=5, nodes=1, deadline="1 h")
    assert [one.late for one in late.ranked] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"deadline": "soon"}, "deadline=…: 'soon': not a duration"),
        ({"deadline": "0 s"}, "deadline='0 s': write more than 0"),
        ({"nodes": 2, "accelerators": 8}, "accelerators=… and nodes=…: both fix the size"),
        ({"nodes": 0}, "nodes=0: write 1 or more"),
        ({"lives": 0}, "lives=0: write 1 to 1,000"),
        ({"failures": {"repair": -1}}, "override: failures.repair = -1"),
    ],
)
def test_python_refuses_with_its_own_names(tmp_path: Path, asked: dict, told: str) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    with pytest.raises(PenstockError) as error:
        penstock.rent(tmp_path / "run.toml", **asked)
    assert str(error.value).startswith(told)
