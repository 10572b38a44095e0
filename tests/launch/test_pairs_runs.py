"""Whole runs on pairs: killed and resumed to the same weights, the reference computed only once."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import pair_peer
from lora_peer import run_file
from penstock.launch.supervisor.preload import PreloadClient
from penstock.ledger.journal.read import read_events
from penstock.run.folder import RunFolder
from penstock.train.reference import read_table
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.html import page
from penstock.watch.web.chart_sections import curve
from whole_runs import At, go, pids

STEPS, PAIRS, SEQUENCE = 40, 4, 48
FIELDS: dict[str, Any] = {
    "model.adapter.rank": None,
    "model.adapter.alpha": None,
    "data.across_documents": True,
    "data.sequence": SEQUENCE,
    "train.objective": "dpo",
    "train.batch_tokens": PAIRS * 2 * SEQUENCE,
    "evaluate.every": "20 steps",
    "evaluate.holdout": "10%",
    "guard.checkpoint": "10 steps",
}
ADAPTER = {"model.adapter.rank": 4, "model.adapter.alpha": 8.0}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pairs")
    base = pair_peer.make_model("llama-3.1", folder / "base")
    return base, pair_peer.write_rows(folder / "pairs.jsonl", pair_peer.pair_rows(80))


def written(folder: Path, made: tuple[Path, Path], **fields: Any) -> Path:
    values = {name: value for name, value in (FIELDS | fields).items() if value is not None}
    path = run_file(folder / "run.toml", *made, STEPS, **values)
    if "model.adapter.rank" not in values:
        text = path.read_text().partition("[model.adapter]")
        path.write_text(text[0] + "[data]" + text[2].partition("[data]")[2])
    return path


@pytest.fixture(scope="module")
def calm(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[Path, Path], warm: PreloadClient
) -> dict[str, Any]:
    path = written(tmp_path_factory.mktemp("calm"), made)
    return go(path) | {"path": path}


def origins(folder: RunFolder) -> list[str]:
    events = [e for f in sorted(folder.journal.glob("*.events")) for e in read_events(f)]
    return [str(e.payload["origin"]) for e in events if e.kind == "reference"]


def kill(folder: RunFolder) -> None:
    for pid in pids(folder):
        os.kill(pid, signal.SIGKILL)


def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(
    calm: dict[str, Any], made: tuple[Path, Path], tmp_path: Path
) -> None:
    path = written(tmp_path, made)
    at = At(15, kill)
    report = go(path, listener=at)
    assert at.done
    assert report["resumed_from"] is not None
    assert report["weights_hash"] == calm["weights_hash"]
    assert report["val_rewards"] == calm["val_rewards"]
    folder = RunFolder(tmp_path / "runs" / "run")
    # An earlier run on the same pairs and weights has computed it; the restart reads its own copy.
    assert origins(folder) == ["cache", "run"]


def test_the_reference_is_computed_once_and_kept(calm: dict[str, Any]) -> None:
    folder = RunFolder(Path(calm["folder"]))
    assert origins(folder) == ["computed"]
    table = read_table(folder.reference, 80)
    assert table is not None
    assert (table < 0).all()
    content = folder.reference.read_bytes()
    folder.reference.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert read_table(folder.reference, 80) is None  # damage is noticed
    folder.reference.write_bytes(content)


def test_at_the_end_the_model_answers_a_prompt(calm: dict[str, Any]) -> None:
    prompt = RunView(RunFolder(Path(calm["folder"]))).prompt
    assert prompt is not None
    assert prompt.startswith("<|user|>")
    assert prompt.endswith("?<|end|><|assistant|>")  # neither an answer nor what fills the row


def test_the_report_has_rewards_beside_the_loss(calm: dict[str, Any]) -> None:
    assert calm["status"] == "done"
    assert [one["step"] for one in calm["val_rewards"]] == [0, 20, 40]
    first, *_, last = calm["val_rewards"]
    assert (first["margin"], first["accuracy"]) == (0.0, 0.0)  # it is its own reference
    assert last["margin"] > 0.1
    assert last["accuracy"] > 0.8
    assert calm["val_loss"] < 0.69 < calm["val_losses"][0][1] + 0.01
    assert calm["rewards"]["margin"] == pytest.approx(
        calm["rewards"]["chosen"] - calm["rewards"]["rejected"]
    )
    assert calm["epoch_tokens"] == 72 * 2 * SEQUENCE
    view = RunView(RunFolder(Path(calm["folder"])))
    shown = curve(RunFacts(view))["rewards"]
    assert shown["step"] == list(range(1, STEPS + 1))
    assert shown["margin"][-1] == pytest.approx(shown["chosen"][-1] - shown["rejected"][-1], 1e-3)
    assert "Rewards" in page(view.folder)


@pytest.mark.slow
def test_an_adapter_needs_no_reference_before_it_begins(
    made: tuple[Path, Path], tmp_path: Path, warm: PreloadClient
) -> None:
    path = written(tmp_path, made, **ADAPTER, **{"cluster.accelerators": 2, "layout.shard": 2})
    calm_report = go(path, "name=calm", "cluster.accelerators=1", "layout.shard=1")
    at = At(15, kill)
    report = go(path, listener=at)
    assert at.done
    folder = RunFolder(tmp_path / "runs" / "run")
    assert not folder.reference.exists()
    assert origins(folder) == []
    assert report["ranks"] == 2
    assert report["val_loss"] == pytest.approx(calm_report["val_loss"], rel=1e-4)
    assert report["rewards"]["margin"] == pytest.approx(calm_report["rewards"]["margin"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["simpo", "orpo"])
def test_a_killed_run_without_a_reference_ends_with_the_weights_of_one_that_was_not(
    objective: str, made: tuple[Path, Path], tmp_path: Path, warm: PreloadClient
) -> None:
    path = written(tmp_path, made, **{"train.objective": objective})
    calm_report = go(path, "name=calm")
    at = At(15, kill)
    report = go(path, listener=at)
    assert at.done
    assert report["resumed_from"] is not None
    assert report["weights_hash"] == calm_report["weights_hash"]
    assert report["val_rewards"] == calm_report["val_rewards"]
    folder = RunFolder(tmp_path / "runs" / "run")
    assert not folder.reference.exists()
    assert origins(folder) == []
