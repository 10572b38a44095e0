"""Odd columns, odd conversations, odd sizes: never the end of a build, never a silent loss."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build_corpus import recipe, text

from penstock.data.build import build as build_module
from penstock.data.build.build import build
from penstock.data.build.listing import SourceFile
from penstock.data.build.parts import nested_deeper_than, read_part, read_result
from penstock.data.build.progress import SilentWatcher
from penstock.data.build.read import read_files
from penstock.data.build.record import read_build_record
from penstock.data.build.shards import write_shard_of_range
from penstock.data.build.tokens import _Encoded, _in_order
from penstock.data.format.columns import write_columns
from penstock.data.read.dataset import Dataset
from penstock.data.read.stream import Stream
from penstock.data.sources.files import RawFile
from penstock.data.sources.options import ReadOptions
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.data.workers.pool import Task
from penstock.errors import PenstockError

END = 0


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(dataset: Dataset) -> dict[str, dict[str, Any]]:
    rows = [row for at in range(len(dataset.manifest.shards)) for row in dataset.rows(at)]
    return {str(row["id"]): row for row in rows}


def read_all(path: Path, tmp_path: Path, part_bytes: int) -> dict[str, Any]:
    listed = SourceFile(RawFile(path.name, str(path), "jsonl", ""), path.stat().st_size, "")
    group = (listed,)
    task = Task(
        tmp_path / "read",
        read_files,
        (group, ReadOptions(), "", str(tmp_path / "raw" / "0"), part_bytes),
    )
    task.run()
    found: dict[str, Any] = read_result(task.path)
    return found


def test_a_column_may_have_any_name(tmp_path: Path) -> None:
    odd = [
        {"text": text(1), "conversation": "mine"},
        {"text": text(2), "\0conversation": 5, "": 0, "id": "x", "columns": {"messages": 3}},
    ]
    dataset = build(recipe(write(tmp_path / "odd.jsonl", odd)), workers=1)
    rows = rows_of(dataset)
    assert rows["odd.jsonl:1"]["columns"] == {"conversation": "mine"}
    assert rows["odd.jsonl:2"]["columns"] == {
        name: value for name, value in odd[1].items() if name != "text"
    }


def test_a_conversation_keeps_a_column_of_that_name(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text(3)}]
    path = write(tmp_path / "chat.jsonl", [{"messages": turns, "conversation": "mine"}])
    source = [{"path": str(path), "messages": "messages"}]
    dataset = build(recipe(path, source=source), workers=1)
    assert rows_of(dataset)["chat.jsonl:1"]["columns"] == {"conversation": "mine"}


@pytest.mark.parametrize("depth", [95, 300, 1000])
def test_a_column_that_nests_without_end_is_counted(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "deep.jsonl"
    deep = "[" * depth + "]" * depth
    path.write_text(f'{{"text": {json.dumps(text(1))}}}\n{{"text": "Deep words.", "c": {deep}}}\n')
    counts = build(recipe(path), workers=1).manifest.counts["read"]
    refused = {"columns nested too deep": 1} if depth > 100 else {}
    assert counts == {"kept": 2 - len(refused), **refused}
    assert sum(counts.values()) == 2


def test_depth_is_that_of_the_deepest() -> None:
    assert not nested_deeper_than({"a": 1}, 1)
    assert not nested_deeper_than({"a": [1], "b": []}, 2)
    assert nested_deeper_than({"a": [], "b": [[[1]]]}, 2)


def test_half_a_character_in_messages_is_counted(tmp_path: Path) -> None:
    good = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text(3)}]
    half = '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "\\ud800"}]'
    path = write(tmp_path / "chat.jsonl", [{"messages": good}, {"messages": half}])
    source = [{"path": str(path), "messages": "messages"}]
    dataset = build(recipe(path, source=source), workers=1)
    assert dataset.manifest.counts["read"] == {"kept": 1, "no messages": 1}


def test_documents_that_cleaning_empties_are_counted(tmp_path: Path) -> None:
    rows = [
        {"q": "\u200b", "a": "An answer to nothing."},
        {"q": "What?", "a": "\u200b"},
        {"q": "What?", "a": text(4)},
    ]
    path = write(tmp_path / "asked.jsonl", rows)
    source = [{"path": str(path), "prompt": "q", "response": "a"}]
    dataset = build(recipe(path, source=source), workers=1)
    assert dataset.manifest.counts["tokenize"] == {"kept": 1, "chat.empty message": 2}


def test_conversations_that_call_otherwise_are_no_copies(tmp_path: Path) -> None:
    def asked(city: str) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": "weather", "arguments": {"city": city}}}
        return {
            "messages": [
                {"role": "user", "content": "What is the weather like?"},
                {"role": "assistant", "tool_calls": [call]},
            ]
        }

    path = write(tmp_path / "calls.jsonl", [asked("Rome"), asked("Oslo"), asked("Rome")])
    source = [{"path": str(path), "messages": "messages"}]
    dataset = build(recipe(path, source=source, dedup={"near": False}), workers=1)
    assert dataset.manifest.counts["deduplicate"] == {"kept": 2, "copy": 1}


def test_columns_and_tiny_documents_fill_a_part_too(tmp_path: Path) -> None:
    wide = write(tmp_path / "wide.jsonl", [{"text": "a b", "html": "x" * 4000} for _ in range(20)])
    parts = read_all(wide, tmp_path / "wide", 16_000)["parts"]
    assert [documents for documents, _ in parts] == [3] * 6 + [2]
    tiny = write(tmp_path / "tiny.jsonl", [{"text": "a"} for _ in range(500)])
    parts = read_all(tiny, tmp_path / "tiny", 16_000)["parts"]
    assert max(documents for documents, _ in parts) < 16_000 / 256
    assert sum(documents for documents, _ in parts) == 500
    last = read_part(tmp_path / "tiny" / "raw" / f"0-{len(parts) - 1:04d}")
    assert last.ids[-1] == "tiny.jsonl:500"


@pytest.mark.parametrize("part_bytes", [2000, 1 << 20])
def test_the_borders_of_parts_do_not_change_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    rows = [{"text": text(n), "html": "x" * (n * 97 % 1500)} for n in range(30)]
    given = recipe(write(tmp_path / "some.jsonl", rows))
    expected = build(given, workers=1)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(build_module, "PART_BYTES", part_bytes)
    assert build(given, workers=1).id == expected.id


def test_the_last_bin_is_a_sample_even_if_the_last_ranges_are_empty(tmp_path: Path) -> None:
    """Keys of two documents are in the first of many ranges alone."""
    length, sequence, shards = 20, 8, 256
    tokens = [np.arange(1, length, dtype=np.uint16) for _ in range(2)]
    encoded = _Encoded(
        [0, 1], [np.append(one, np.uint16(END)) for one in tokens], None, tokens[0].dtype
    )
    part = _in_order(["a", "b"], np.ones(2, np.int64), encoded, [b"{}", b"{}"])
    assert part["keys"].max() < (1 << 64) // shards * (shards - 1)
    write_columns(tmp_path / "part", part)
    made = []
    for number in range(shards):
        task = Task(
            tmp_path / "out" / str(number),
            write_shard_of_range,
            (number, shards, (tmp_path / "part",), tmp_path / "shards", sequence, END),
        )
        if found := json.loads(task.compute(*task.args)["json"].tobytes()):
            made.append(found["tokens"])
    assert made == [24, 25]


def test_a_packed_dataset_of_long_documents_has_every_bin(tmp_path: Path) -> None:
    path = write(tmp_path / "long.jsonl", [{"text": text(n, 400)} for n in range(3)])
    tokens = {"vocab": 400, "pack": 64}
    dataset = build(recipe(path, tokens=tokens, shards={"size": "1 KiB"}), workers=1)
    assert len(dataset.manifest.shards) < 10  # of some fifty ranges
    assert dataset.tokens % 64 == 1
    assert Stream(dataset, 64, seed=0, holdout=0).samples == dataset.tokens // 64
    tokenizer = Tokenizer(dataset.tokenizer_json())
    mask = dataset.loss_mask(np.array([0]), dataset.tokens)
    assert mask is not None
    learned = dataset.read(0, dataset.tokens)[mask[0]]
    assert np.count_nonzero(learned == tokenizer.end) == 3


def test_another_version_of_a_tokenizers_dataset_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", [{"text": text(n)} for n in range(20)])
    base = build(recipe(path, name="base"), workers=1)
    given = recipe(path, tokens={"tokenizer": "base"})
    first = build(given, workers=1)
    base.folder.rename(tmp_path / "gone")
    build(recipe(path, name="base", tokens={"vocab": 300}), workers=1)
    assert build(given, workers=1).id != first.id


@pytest.mark.parametrize("tokenizer", ["train", "given"])
def test_a_wrong_template_is_refused_before_anything_is_read(
    tmp_path: Path, tokenizer: str
) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text(3)}]
    path = write(tmp_path / "chat.jsonl", [{"messages": turns}])
    template = tmp_path / "template.jinja"
    template.write_text("{% if %}")
    tokens: dict[str, Any] = {"chat_template": str(template)}
    if tokenizer == "given":
        base = write(tmp_path / "base.jsonl", [{"text": text(1)}])
        tokens["tokenizer"] = str(build(recipe(base, name="base"), workers=1).folder)
    source = [{"path": str(path), "messages": "messages"}]
    stages: list[str] = []

    class Told(SilentWatcher):
        def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
            stages.append(name)

    with pytest.raises(PenstockError, match="chat template is not valid Jinja"):
        build(recipe(path, source=source, tokens=tokens), workers=1, watcher=Told())
    assert "read" not in stages


def test_scores_and_languages_count_kept_documents(tmp_path: Path) -> None:
    rows = [{"text": text(n), "good": n / 10} for n in range(10)]
    path = write(tmp_path / "some.jsonl", rows)
    changes = {"label": {"use": "good", "least": 0.5}, "clean": {"language": {"least": 0}}}
    record = read_build_record(build(recipe(path, **changes), workers=1).folder)
    assert record is not None
    assert sum(record.scores) == sum(record.languages.values()) == 5
    assert record.scores[:10] == [0] * 10


def test_evaluation_texts_that_are_too_short_to_search_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", [{"text": text(n)} for n in range(5)])
    asked = write(tmp_path / "eval.jsonl", [{"question": "Why?"}, {"question": text(90)}])
    notes: list[str] = []

    class Told(SilentWatcher):
        def note(self, text: str) -> None:
            notes.append(text)

    changes = {"decontaminate": {"against": [str(asked)]}}
    build(recipe(path, **changes), workers=1, watcher=Told())
    assert notes == ["evaluation eval.jsonl: 1 texts of fewer than 8 words are not searched for"]
