"""Exact copies against a dict: documents, lines, and keys of 128 bits."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.dedup.exact import (
    ExactDocuments,
    ExactLines,
    find_exact_copies,
    hash_texts,
    normalize,
    remove_lines,
)
from penstock.data.dedup.groups import SpilledParts, find_groups, spill_columns
from penstock.data.dedup.stages import Removed
from penstock.data.format.columns import write_columns
from penstock.errors import PenstockError

Place = tuple[int, ...]
TEXT = st.text(st.sampled_from("ab \n\té"), max_size=8)
CORPUS = st.lists(
    st.lists(st.tuples(TEXT, st.sampled_from([0.0, 1.0, 2.0])), max_size=5), max_size=4
)


@pytest.fixture(autouse=True, scope="module")
def _without_waiting_for_the_disk() -> Iterator[None]:
    """Many small files in many examples; what fsync is for needs a power cut to show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


class Reader:
    def __init__(self, parts: list[list[tuple[str, float]]]) -> None:
        self.parts = parts

    def __call__(self, part: int) -> tuple[list[str], list[float]]:
        return [text for text, _ in self.parts[part]], [score for _, score in self.parts[part]]


def by_hand(items: list[tuple[Place, str, float]]) -> dict[Place, Place]:
    copies: dict[str, list[tuple[float, Place]]] = {}
    for place, key, score in items:
        copies.setdefault(key, []).append((-score, place))
    kept = {key: min(found)[1] for key, found in copies.items()}
    return {place: kept[key] for place, key, _ in items if place != kept[key]}


def told(files: list[Path]) -> dict[Place, Place]:
    gone: dict[Place, Place] = {}
    for part, path in enumerate(files):
        one = Removed.read(path)
        mine = [one.documents, one.lines]
        theirs = [one.kept_part, one.kept_documents, one.kept_lines]
        places = list(zip(*(c.tolist() for c in mine if c is not None), strict=True))
        assert places == sorted(places)
        kept = zip(*(c.tolist() for c in theirs if c is not None), strict=True)
        gone |= {(part, *place): k for place, k in zip(places, kept, strict=True)}
    return gone


@settings(max_examples=40, deadline=None)
@given(CORPUS, st.sampled_from([1, 2, 1 << 20]))
def test_exact_documents_equal_a_search_by_hand(
    tmp_path_factory: object, parts: list[list[tuple[str, float]]], slice_items: int
) -> None:
    folder = tmp_path_factory.mktemp("exact")  # type: ignore[attr-defined]
    items = [
        ((p, d), " ".join(text.split()), score)
        for p, part in enumerate(parts)
        for d, (text, score) in enumerate(part)
    ]
    files = find_exact_copies(
        folder, "x", len(parts), Reader(parts), ExactDocuments(), slice_items=slice_items
    )
    assert told(files) == by_hand(items)


@settings(max_examples=40, deadline=None)
@given(CORPUS, st.sampled_from([1, 2, 1 << 20]), st.integers(1, 3))
def test_exact_lines_equal_a_search_by_hand(
    tmp_path_factory: object,
    parts: list[list[tuple[str, float]]],
    slice_items: int,
    characters: int,
) -> None:
    folder = tmp_path_factory.mktemp("lines")  # type: ignore[attr-defined]
    items = [
        ((p, d, n), " ".join(line.split()), score)
        for p, part in enumerate(parts)
        for d, (text, score) in enumerate(part)
        for n, line in enumerate(text.split("\n"))
        if len(" ".join(line.split())) >= characters
    ]
    config = ExactLines(characters=characters)
    files = find_exact_copies(
        folder, "x", len(parts), Reader(parts), config, slice_items=slice_items
    )
    assert told(files) == by_hand(items)


def test_two_workers_write_the_same_files(tmp_path: Path) -> None:
    config = ExactLines(characters=1)
    parts = [[("a\nb", 0.0), ("b\na", 1.0)], [("a\n\nb", 2.0)], [("c", 0.0), ("c ", 0.0)]]
    contents = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        find_exact_copies(folder, "x", 3, Reader(parts), config, workers=workers, slice_items=2)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        contents.append({path.relative_to(folder): path.read_bytes() for path in files})
    assert contents[0] == contents[1]
    assert told(sorted((tmp_path / "2" / "removed").iterdir()))


def test_white_space_and_composition_do_not_matter_and_case_does() -> None:
    assert normalize(" e\u0301t\u00a0\u2003 a\n\n") == "ét a"
    assert normalize("A") != normalize("a")


def test_the_key_is_xxh3_128() -> None:
    high, low = hash_texts(["penstock", "\ud800"])
    assert (int(high[0]) << 64) | int(low[0]) == xxhash.xxh3_128_intdigest(b"penstock")
    assert len(high) == len(low) == 2


def test_both_halves_of_the_key_count(tmp_path: Path) -> None:
    highs = np.array([[7, 7, 7, 9]], np.uint64)
    lows = np.array([[1, 2, 1, 1]], np.uint64)
    write_columns(tmp_path / "0", spill_columns(highs, np.zeros(4), lows))
    write_columns(tmp_path / "1", spill_columns(highs[:, :2], np.zeros(2), lows[:, :2]))
    members, firsts, _ = find_groups(SpilledParts.open([tmp_path / "0", tmp_path / "1"]), 0, 0, 1)
    assert members.tolist() == [0, 2, 4, 1, 5]
    assert firsts.tolist() == [0, 3]


def test_lines_are_taken_out_by_place() -> None:
    assert remove_lines("a\nb\n\nc", [1, 3]) == "a\n"
    assert remove_lines("a\r\nb", []) == "a\r\nb"


def test_a_score_for_every_text(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="part 0 has 2 texts and scores of shape"):
        find_exact_copies(tmp_path, "x", 1, lambda part: (["a", "b"], [1.0]), ExactDocuments())
