"""`penstock rent` from the command line: the table, the advice, the JSON."""

import json
from pathlib import Path

from typer.testing import CliRunner

from penstock.cli.main import app

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


def test_the_catalog_is_ranked_without_a_file(tmp_path: Path) -> None:
    text = say(tmp_path, "--top", "3")
    assert "catalog prices are dated medians" in text
    assert len([line for line in text.splitlines() if " × " in line and "$" in line]) == 4
