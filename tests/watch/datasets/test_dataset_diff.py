"""Two datasets side by side."""

from dataclasses import replace

from rich.console import Console

import made_summary
from penstock.watch.datasets.diff import Difference, compare, flat
from penstock.watch.datasets.diff_screen import comparison
from penstock.watch.datasets.summary import DatasetSummary


def test_equal_datasets_have_no_difference_and_share_everything():
    summary = made_summary.summarize()
    found = compare(summary, summary)
    assert found.differences == ()
    assert (found.shared_shards, found.shared_tokens) == (1, 5000)


def test_every_part_that_differs_is_named():
    before = made_summary.summarize()
    made = before.manifest
    other = replace(made.shards[0], blake3="f" * 64)
    after = made_summary.summarize(
        replace(
            made,
            tokens=6000,
            tokenizer="0" * 64,
            recipe={"clean": {"c4": {"min_sentences": 3}}, "tokens": {"vocab": 4096}},
            shards=(other, made.shards[0]),
        ),
        made_summary.record(
            stages=[
                replace(made_summary.record().stages[1], kept=840, reasons={"language.other": 160})
            ]
        ),
    )
    found = compare(before, after)
    summary = {(one.part, one.what): (one.before, one.after) for one in found.differences}
    assert summary["size", "tokens"] == (5000, 6000)
    assert summary["recipe", "clean.c4.min_sentences"] == (5, 3)
    assert ("recipe", "tokens.vocab") not in summary
    assert summary["stages", "clean: kept"] == (800, 840)
    assert summary["stages", "clean: c4.few_sentences"] == (40, None)
    assert ("stages", "clean: language.other") not in summary
    assert summary["tokenizer", "BLAKE3"] == ("d" * 12, "0" * 12)
    assert found.shared_shards == 1
    console = Console(width=100, record=True)
    console.print(comparison(before, after, found))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["clean.c4.min_sentences", "5", "3"] in lines
    assert ["clean:", "c4.few_sentences", "40", "–"] in lines


def test_what_one_side_lacks_is_told_whole():
    one, two = made_summary.summarize(), made_summary.summarize(made_summary.manifest(lineage={}))
    files = [{"name": "part-0.jsonl", "blake3": "e" * 64}]
    assert compare(one, two).differences == (Difference("lineage", "files", files, None),)
    other = [{"name": "part-1.jsonl", "blake3": "e" * 64}]
    two = made_summary.summarize(made_summary.manifest(lineage={"files": other}))
    (found,) = compare(one, two).differences
    assert found == Difference("lineage", "files[0].name", "part-0.jsonl", "part-1.jsonl")


def test_tables_are_told_by_the_place_of_their_values():
    assert flat({"a": {"b": [1, 2]}, "s": [{"x": 1}]}) == {"a.b": [1, 2], "s[0].x": 1}


def text_of(width: int, before: DatasetSummary, after: DatasetSummary) -> str:
    console = Console(width=width, record=True)
    console.print(comparison(before, after, compare(before, after)))
    return console.export_text()


def test_unlike_sets_are_told_without_brackets_at_any_width():
    bare = made_summary.summarize(
        made_summary.manifest(recipe={"kind": "other", "list": ["a", "b"]}, lineage={"n": 3})
    )
    for width in (60, 80, 120):
        text = text_of(width, made_summary.summarize(), bare)
        assert not set("[]{}'") & set(text)
        assert "a, b" in text
        assert "1 entry" in text
        assert max(map(len, text.splitlines())) <= width


def test_long_names_stay_whole_on_a_narrow_terminal():
    why = "gopher_repetition.duplicate_paragraph_characters"
    stages = [replace(made_summary.record().stages[1], kept=840, reasons={why: 160})]
    after = made_summary.summarize(built=made_summary.record(stages=stages))
    assert f"  clean: {why}:\n    – → 160\n" in text_of(60, made_summary.summarize(), after)


def test_pieces_are_not_compared_with_documents():
    packed = made_summary.summarize(made_summary.manifest(documents=2905, packed=16))
    summary = {one.what: one.after for one in compare(made_summary.summarize(), packed).differences}
    assert summary == {"packed for": 16, "pieces": 2905}
