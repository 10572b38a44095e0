"""A dataset on the terminal."""

import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import made_summary
from penstock.data.build.record import StageRecord
from penstock.data.format.writer import DatasetWriter
from penstock.data.read.dataset import Dataset
from penstock.data.tokenize.tokenizer import train_code_tokenizer
from penstock.watch.datasets import screen
from penstock.watch.datasets.screen import bar, share, spark
from penstock.watch.datasets.summary import summarize
from penstock.watch.style.text import printable


def drawn(shown, width: int = 80) -> str:
    console = Console(width=width, record=True)
    console.print(shown)
    return console.export_text()


def test_a_document_cannot_steer_the_terminal():
    text = drawn(screen.sample(made_summary.sample()))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script>alert('x')</script>" in text
    assert printable("a\tb\nc\x07\x9b\ud800") == "a\tb\nc\ufffd\ufffd\ufffd"


def test_markup_in_names_is_text():
    built = made_summary.record(
        stages=[StageRecord("read", 1.0, 1, 0, 0, 3, 2, {"[bold]odd[/]": 1})], languages={"[x]": 1}
    )
    text = drawn(screen.screen(made_summary.summarize(built=built)))
    assert "[bold]odd[/]" in text
    assert "[x] 100 %" in text


def test_stages_that_drop_nothing_take_no_room():
    stages = [*made_summary.record().stages, StageRecord("shard", 1.0, 1, 0, 0, 700, 700, {})]
    text = drawn(screen.screen(made_summary.summarize(built=made_summary.record(stages=stages))))
    assert "deduplicate" in text
    assert "shard  " not in text


def test_many_reasons_are_summed_up():
    reasons = {f"reason {i}": 10 - i for i in range(10)}
    stage = StageRecord("clean", 1.0, 1, 0, 0, 155, 100, reasons)
    text = drawn(screen.Funnel(made_summary.summarize(built=made_summary.record(stages=[stage]))))
    assert "reason 7" in text
    assert "reason 8" not in text
    assert "2 more reasons" in text
    assert text.split("more reasons")[1].split()[0] == "3"


def test_a_dataset_that_has_no_record_is_told_by_its_manifest(tmp_path):
    tokenizer = train_code_tokenizer(["ab"], 300)
    with DatasetWriter(tmp_path, "bare", tokenizer.vocab, tokenizer.to_json()) as writer:
        writer.add(np.array([1, 2, tokenizer.end], dtype=np.uint32))
        counts = {"filter": {"kept": 7, "b": 1, "a": 2, "none": 0}}
        folder = writer.finish({"kind": "test"}, {}, counts)
    summary = summarize(Dataset.open(folder))
    (stage,) = summary.stages
    assert (stage.documents, stage.kept, stage.reasons) == (10, 7, {"a": 2, "b": 1})
    assert list(stage.reasons) == ["a", "b"]
    assert "− a" in drawn(screen.screen(summary))


def test_a_narrow_terminal_keeps_the_words_whole():
    why = "gopher_repetition.duplicate_line_characters"
    stage = StageRecord("clean", 1.0, 1, 0, 0, 155, 100, {why: 55})
    summary = made_summary.summarize(built=made_summary.record(stages=[stage]))
    wide, narrow = drawn(screen.Funnel(summary), 100), drawn(screen.Funnel(summary), 66)
    assert "█" in wide
    assert "█" not in narrow
    for text in (wide, narrow):
        assert re.search(rf"− {why}\s.*55\s.*35 %", text)


def test_pieces_are_told_as_pieces_and_copies_as_copies():
    packed = made_summary.summarize(made_summary.manifest(documents=2905, packed=16))
    assert (packed.documents, packed.pieces, packed.with_copies) == (700, 2905, 0)
    text = " ".join(drawn(screen.screen(packed)).split())
    assert "5K tokens in 700 documents," in text
    # 440 + 240 + 8 of the record's documents are in the bins from 16 tokens on.
    assert "2,905 pieces of at most 16 tokens; 688 documents have 16 tokens or more" in text
    assert "copies" not in text
    copied = made_summary.summarize(made_summary.manifest(documents=900))
    text = drawn(screen.screen(copied))
    assert "700 documents (900 with copies)" in text
    assert re.search(r"with copies +900 *\n", text)
    assert "piece" not in text
    assert (copied.to_json()["documents"], copied.to_json()["with_copies"]) == (700, 900)


def test_a_length_between_powers_of_two_counts_only_what_is_surely_longer():
    summary = made_summary.summarize(made_summary.manifest(documents=2905, packed=20))
    assert summary.long == (32, 248)
    assert made_summary.summarize().long is None


def test_what_was_kept_aside_is_named_after_a_build_and_later():
    summary = replace(made_summary.summarize(), aside="/sets/web/aside.jsonl")
    for shown in (screen.screen(summary), screen.built(summary)):
        assert "/sets/web/aside.jsonl" in drawn(shown)
    assert "aside.jsonl" not in drawn(screen.screen(made_summary.summarize()))


@pytest.mark.parametrize(
    ("part", "whole", "summary"),
    [
        (0, 0, "0 %"), (0, 9, "0 %"), (9, 9, "100 %"), (200, 201, "99.5 %"),
        (99_999, 100_000, "> 99.9 %"), (1, 3, "33 %"), (1, 30, "3.3 %"), (1, 3000, "0.033 %"),
    ],
)  # fmt: skip
def test_shares_never_round_to_all_or_nothing(part, whole, summary):
    assert share(part, whole) == summary


def test_bars_and_lines_of_blocks():
    assert bar(1, 1, width=4) == "████"
    assert bar(1, 10**9, width=4) == "▏"
    assert bar(0, 5) == ""
    assert spark([0, 1, 8, 8]) == " ▁██"


def test_a_dataset_of_pairs_says_that_they_are_padded() -> None:
    plain = made_summary.summarize()
    manifest = replace(plain.manifest, packed=128, pairs=True)
    said = screen.packing(replace(plain, manifest=manifest))
    assert said.startswith("pairs: two sequences of 128 tokens each, padded")
    assert "longer answer is cut" in said
    assert not screen.packing(replace(plain, manifest=replace(manifest, pairs=False))).startswith(
        "pairs"
    )
