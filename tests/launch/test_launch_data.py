"""Runs on mixtures, on damaged data, on packed documents: from the file to the report."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_sets import made_set
from penstock.data.shards import Dataset
from penstock.errors import PenstockError
from penstock.launch.start import start
from penstock.ledger.readers import read_events
from penstock.ledger.records import journal_files
from penstock.run.load import load
from penstock.watch.report import summary

MakeFile = Callable[..., Path]


def go(path: Path, *overrides: str, **options: Any) -> dict[str, Any]:
    return summary(start(load(path, list(overrides)), **options))


@pytest.fixture(scope="module")
def sets(home: Path, tiny: str) -> dict[str, Dataset]:
    where = home / "datasets"
    tokenizer = Dataset.open(where / tiny).tokenizer_json()
    draw = np.random.default_rng(0)
    tokens, starts = draw.integers(0, 250, 3001), list(range(0, 3001, 13))
    return {
        "second": made_set(where, tokens, starts, name="second", tokenizer=tokenizer),
        "packed": made_set(
            where, tokens, starts, tokens % 2 > 0, 24, name="packed", tokenizer=tokenizer
        ),
        "torn": made_set(where, tokens, starts, shard_tokens=200, name="torn", tokenizer=tokenizer),
        "foreign": made_set(where, tokens, starts, name="foreign"),
    }


def mix(tiny: str, other: str) -> dict[str, Any]:
    return {
        "data.dataset": None,
        "data.mix": [{"dataset": tiny, "weight": 0.7}, {"dataset": other, "weight": 0.3}],
    }


def test_a_mixture_trains_and_goes_on_exactly(run_file: MakeFile, tiny: str, sets: Any) -> None:
    fields = mix(tiny, "second") | {"cluster.accelerators": 2, "evaluate.holdout": 0.1}
    fields |= {"train.final": 1.0, "train.warmup": 0}  # a rate that does not know the run's length
    whole = go(run_file("whole", **fields))
    assert whole["status"] == "done"
    assert whole["val_loss"] > 0
    path = run_file("parts", **fields)
    go(path, "train.steps=4")
    resumed = go(path)
    assert resumed["resumed_from"] == 4
    assert resumed["weights_hash"] == whole["weights_hash"]
    plan = json.loads((path.parent / "runs" / "parts" / "plan.json").read_text())
    assert plan["dataset"] == [tiny, sets["second"].id]


def test_what_cannot_be_mixed_is_refused_before_the_run_exists(
    run_file: MakeFile, tiny: str, sets: Any, tmp_path: Path
) -> None:
    path = run_file("foreign", **mix(tiny, "foreign"))
    with pytest.raises(PenstockError, match="have different tokenizers"):
        go(path)
    assert not (tmp_path / "runs" / "foreign").exists()
    with pytest.raises(PenstockError, match="epochs of their own"):
        go(run_file("epochs", **mix(tiny, "second") | {"train.steps": None, "train.epochs": 2}))
    assert not (tmp_path / "runs" / "epochs").exists()


def test_damaged_data_stops_the_run_or_is_skipped_and_told(
    run_file: MakeFile, sets: dict[str, Dataset]
) -> None:
    torn = sets["torn"]
    for shard in torn.manifest.shards[1::3]:
        file = torn.folder / "shards" / f"{shard.blake3}.bin"
        file.write_bytes(b"?" + file.read_bytes()[1:])
    fields = {"data.dataset": "torn", "cluster.accelerators": 2}
    with pytest.raises(PenstockError, match="does not match its checksum"):
        go(run_file("stopping", **fields))
    path = run_file("skipping", **fields, **{"data.on_bad_shard": "skip"})
    report = go(path)
    assert report["status"] == "done"
    assert report["steps"] == 10
    files = journal_files(path.parent / "runs" / "skipping" / "journal", "events")
    told = [e for f in files for e in read_events(f.path) if e.kind == "data_skipped"]
    assert told
    assert {event.payload["dataset"] for event in told} == {torn.id}
    bad = {f"{shard.blake3}.bin" for shard in torn.manifest.shards[1::3]}
    assert {Path(str(event.payload["shard"])).name for event in told} <= bad


def test_a_packed_dataset_decides_the_sequence(run_file: MakeFile, sets: Any) -> None:
    fields = {"data.dataset": "packed", "data.sequence": None, "train.batch_tokens": None}
    path = run_file("packed", **fields, **{"data.across_documents": False})
    report = go(path)
    assert report["status"] == "done"
    plan = json.loads((path.parent / "runs" / "packed" / "plan.json").read_text())
    assert plan["sequence"] == 24
    assert plan["batch_tokens"] % 24 == 0
    assert go(path)["status"] == "done"  # the file that leaves it open is the same run
    with pytest.raises(PenstockError, match="packed for sequences of 24 tokens; write 24"):
        go(run_file("other", **fields | {"data.sequence": 16}))
    with pytest.raises(PenstockError, match="write 4080 or 4104"):
        go(run_file("odd", **fields | {"train.batch_tokens": 4096}))


def test_own_modules_do_not_keep_documents_apart(run_file: MakeFile, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def build(): ...\n")
    model = {f"model.{name}": None for name in ("layers", "hidden", "heads", "kv_heads", "ffn")}
    model |= {"model.tied": None, "model.module": f"{tmp_path}/own.py:build"}
    fields = model | {"data.across_documents": False, "train.learning_rate": 1e-3}
    with pytest.raises(PenstockError, match="only the models of Penstock keep documents apart"):
        go(run_file("own", **fields))
