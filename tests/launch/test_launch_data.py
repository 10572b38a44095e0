"""Runs on mixtures, on damaged data, on packed documents: from the file to the report."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from made_sets import made_set
from penstock.data.build.copy import copy_dataset
from penstock.data.format.manifest import BLOCK_BYTES
from penstock.data.read.dataset import Dataset
from penstock.data.read.stream import Stream
from penstock.errors import PenstockError, RunFailed
from penstock.launch.start import start
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.screen import screen, summary
from penstock.watch.terminal import display

MakeFile = Callable[..., Path]
HALF = BLOCK_BYTES // 2  # tokens in a block


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
    # Two ranks met most of them, each in an evaluation and in steps: named once, and counted.
    met = {str(event.payload["shard"]) for event in told}
    assert len(told) > len(met)
    assert {one["shard"] for one in report["data_skipped"]} == met
    assert len(report["data_skipped"]) == len(met)
    view = RunView(RunFolder(path.parent / "runs" / "skipping"))
    assert f"  {len(met)} damaged blocks skipped  " in display.progress_line(RunFacts(view))
    console = Console(width=400, record=True, file=StringIO())
    console.print(screen(view.folder))
    text = console.export_text()
    assert (
        f"skipped  {torn.id}: samples that need block 0 of {sorted(met)[0]} count nothing" in text
    )
    for shard in torn.manifest.shards:
        file = torn.folder / "shards" / f"{shard.blake3}.bin"
        file.write_bytes(b"?" + file.read_bytes()[1:])
    with pytest.raises(RunFailed, match="the data of a whole batch is damaged"):
        go(run_file("nothing", **fields, **{"data.on_bad_shard": "skip"}))


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


def damage(dataset: Dataset, shard: int) -> None:
    file = dataset.folder / "shards" / f"{dataset.manifest.shards[shard].blake3}.bin"
    file.write_bytes(b"?" + file.read_bytes()[1:])


def test_only_what_is_still_to_be_read_has_to_be_whole(
    run_file: MakeFile, home: Path, tiny: str
) -> None:
    """A run goes on past a block that it has read; a look at the model fails no finished run."""
    tokenizer = Dataset.open(home / "datasets" / tiny).tokenizer_json()
    tokens = np.random.default_rng(0).integers(0, 250, 3201)
    made = made_set(
        home / "datasets", tokens, [0], shard_tokens=16, name="crumbs", tokenizer=tokenizer
    )
    stream = Stream(made, 16, 0, 0.005)
    assert stream.held_out == 1
    path = run_file(
        "crumbs", **{"data.dataset": "crumbs", "evaluate.every": "never", "cluster.accelerators": 1}
    )
    go(path, "train.steps=4")
    first, later = stream.parts[0].order.index(np.arange(32)), stream.parts[0].order.index
    needed = {n for sample in later(np.arange(32, 80)).tolist() for n in (sample, sample + 1)}
    read = next(n for n in first.tolist() if n not in needed)
    damage(made, read)  # of the first batches alone
    damage(made, stream.samples)  # of the one held-out sample
    report = go(path)
    assert (report["status"], report["steps"], report["resumed_from"]) == ("done", 10, 4)
    files = journal_files(path.parent / "runs" / "crumbs" / "journal", "events")
    (failed,) = [e for f in files for e in read_events(f.path) if e.kind == "sample_failed"][-1:]
    assert "does not match its checksum" in str(failed.payload["error"])


def test_an_evaluation_without_a_good_sample_is_no_perfect_one(
    run_file: MakeFile, home: Path, sets: dict[str, Dataset]
) -> None:
    good = sets["second"]
    made = made_set(
        home / "datasets",
        good.read(0, 3001),
        [0],
        shard_tokens=2900,
        name="tail",
        tokenizer=good.tokenizer_json(),
    )
    damage(made, 1)
    fields = {"data.dataset": "tail", "data.on_bad_shard": "skip", "cluster.accelerators": 2}
    report = go(run_file("tail", **fields, **{"evaluate.holdout": 0.02, "train.steps": 5}))
    assert report["status"] == "done"
    assert report["val_losses"] == [[0, None], [5, None]]
    assert len(report["data_skipped"]) == 1


def test_a_fork_reads_the_version_that_was_read(run_file: MakeFile, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a.txt").write_text("".join(f"Sentence {n} of a text. " for n in range(2000)))
    fields = {"data.dataset": str(raw), "data.sequence": None, "train.batch_tokens": None}
    fields |= {"model.context": 16, "cluster.accelerators": 1, "train.steps": 2}
    path = run_file("origin", **fields)
    first = go(path)
    (raw / "b.txt").write_text("Other words.")
    fork = go(path, "train.steps=4", "train.learning_rate=1e-4", fork="forked")
    assert (fork["status"], fork["resumed_from"]) == ("done", 2)
    assert fork["dataset"] == first["dataset"]
    files = journal_files(tmp_path / "runs" / "forked" / "journal", "events")
    assert not [e for f in files for e in read_events(f.path) if e.kind == "stream_changed"]


def test_another_order_or_dataset_needs_a_fork(run_file: MakeFile, sets: Any) -> None:
    path = run_file("kept", **{"cluster.accelerators": 1, "train.steps": 1})
    go(path)
    for change, words in [
        ("data.order=window", r'data\.order: not set → "window"'),
        ("data.dataset=second", r'data\.dataset: ".*" → "second"'),
    ]:
        with pytest.raises(PenstockError, match=rf"(?s)another run file.*{words}.*--fork NAME"):
            go(path, "train.steps=2", change)


def test_two_ranks_keep_to_one_bound_and_train_as_from_disk(
    run_file: MakeFile, home: Path, tiny: str, tmp_path: Path
) -> None:
    """Twelve blocks through a cache of three; then all of it is bad, and one lost at its source."""
    tokenizer = Dataset.open(home / "datasets" / tiny).tokenizer_json()
    tokens = np.random.default_rng(0).integers(0, 250, 12 * HALF)
    mask = tokens % 3 > 0
    made = made_set(
        tmp_path / "sets", tokens, [0], mask, shard_tokens=HALF, name="wide", tokenizer=tokenizer
    )
    url = copy_dataset(made, (tmp_path / "bucket").as_uri())
    fields = {"cluster.accelerators": 2, "evaluate.tokens": 64, "data.on_bad_shard": "skip"}
    near = go(run_file("near", **fields, **{"data.dataset": str(made.folder)}))
    cache = {"data.cache": str(tmp_path / "cache"), "data.cache_bytes": "3 MiB"}
    far = go(run_file("far", **fields, **cache, **{"data.dataset": url}))
    assert far["weights_hash"] == near["weights_hash"]
    entries = [path for path in (tmp_path / "cache" / "blocks").rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in entries) <= 3 << 20
    assert far["data_skipped"] == []
    for entry in entries:
        entry.write_bytes(b"")
    lost = f"shards/{made.manifest.shards[3].blake3}.bin"
    (tmp_path / "bucket" / made.id / lost).unlink()
    skipping = go(run_file("lost", **fields, **cache, **{"data.dataset": url}))
    assert skipping["status"] == "done"
    assert [one["shard"] for one in skipping["data_skipped"]] == [f"{url}/{lost}"]


def test_ids_that_are_not_in_the_vocabulary_are_told(
    run_file: MakeFile, sets: Any, home: Path
) -> None:
    tokens = np.full(3001, 7777)
    tokenizer = sets["second"].tokenizer_json()
    made_set(home / "datasets", tokens, [0], name="wild", tokenizer=tokenizer)
    path = run_file("wild", **{"data.dataset": "wild", "guard.restarts": 0})
    with pytest.raises(RunFailed, match="token 7777 at position 0 is not in its vocabulary of 300"):
        go(path)
