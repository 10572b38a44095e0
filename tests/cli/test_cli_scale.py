"""What the scaling options of `penstock plan` print."""

import json
from pathlib import Path

import pytest

import made_plans as made
from penstock.cli.scale import best_nodes, scale
from penstock.errors import PenstockError
from penstock.plan.hardware.cluster import ResolvedMachine
from penstock.run.schema.run import Run

FOUND = ResolvedMachine(made.machine(8), ("not probed",))


def run() -> Run:
    return made.run(train={"tokens": "20B", "batch_tokens": 64 * 8192})


def test_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scale(run(), FOUND, "8,64", tmp_path / "scale.svg", json=False)
    text = capsys.readouterr().out
    assert "limit" in text.splitlines()[0]
    assert "note: not probed" in text
    assert (tmp_path / "scale.svg").read_text().startswith("<svg")


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    scale(run(), FOUND, "8,64", None, json=True)
    table = json.loads(capsys.readouterr().out)
    assert [point["accelerators"] for point in table["points"]] == [8, 64]
    assert table["warnings"][0] == "not probed"
    about = [line.partition(" ")[0] for line in table["warnings"][1:]]
    assert about == ["data:", "train.precision"]  # not built; what "auto" is there


def test_a_deadline_and_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    best_nodes(run(), FOUND, "2 days", None, json=False)
    assert capsys.readouterr().out.startswith("fewest nodes within 2 days in nine of ten cases: ")
    best_nodes(run(), FOUND, None, 4000.0, json=True)
    table = json.loads(capsys.readouterr().out)
    assert table["point"]["usd"] <= 4000
    assert table["warnings"] == ["not probed"]


def test_mistakes_are_told_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="there is no folder"):
        scale(run(), FOUND, "8..64", tmp_path / "no" / "x.svg", json=False)
    with pytest.raises(PenstockError, match="goes down"):
        scale(run(), FOUND, "64..8", None, json=False)
    with pytest.raises(PenstockError, match="--deadline: 'soon'"):
        best_nodes(run(), FOUND, "soon", None, json=False)
    with pytest.raises(PenstockError, match="one of --deadline and --budget"):
        best_nodes(run(), FOUND, None, None, json=False)
