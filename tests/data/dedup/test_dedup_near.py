"""Near-duplicates against brute force: the same clusters, the same copy kept, however it is run."""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.dedup import near as module
from penstock.data.dedup import runs
from penstock.data.dedup.groups import SpilledParts
from penstock.data.dedup.near import find_near_copies, join_copies, spill_bands
from penstock.data.dedup.signatures import MinHash, band_keys, compute_signatures
from penstock.data.dedup.stages import Removed
from penstock.data.format.columns import write_columns
from penstock.data.store.object_path import ObjectPath

CONFIG = MinHash(words=1, bands=4, rows=2)


@pytest.fixture(autouse=True, scope="module")
def _without_waiting_for_the_disk() -> Iterator[None]:
    """Many small files in many examples; what fsync is for needs a power cut to show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


class Corpus:
    """Texts and scores in parts; picklable."""

    def __init__(self, parts: list[list[tuple[str, float]]]) -> None:
        self.parts = parts

    def __call__(self, part: int) -> tuple[list[str], list[float]]:
        return [text for text, _ in self.parts[part]], [score for _, score in self.parts[part]]

    def flat(self) -> list[tuple[int, int, str, float]]:
        return [
            (part, place, text, score)
            for part, texts in enumerate(self.parts)
            for place, (text, score) in enumerate(texts)
        ]


def clusters(count: int, edges: list[tuple[int, int]]) -> list[int]:
    label = list(range(count))
    for a, b in edges * count:
        label[a] = label[b] = min(label[a], label[b])
    return label


def by_hand(corpus: Corpus, config: MinHash) -> dict[tuple[int, int], tuple[int, int]]:
    """Removed place → kept place, one document after the other."""
    flat = corpus.flat()
    rows = [compute_signatures([text], config) for _, _, text, _ in flat]
    edges = []
    for band in range(config.bands):
        leaders: dict[int, list[int]] = {}
        for number, (_, _, text, _) in enumerate(flat):
            if not any(c.isalnum() for c in text):
                continue
            mine = leaders.setdefault(int(band_keys(rows[number], config)[band, 0]), [])
            agreed = [n for n in mine if agreement(rows[n], rows[number]) >= config.agree]
            if agreed:
                edges.append((agreed[0], number))
            else:
                mine.append(number)
    label = clusters(len(flat), edges)
    gone = {}
    for root in set(label):
        members = [n for n in range(len(flat)) if label[n] == root]
        kept = max(members, key=lambda n: (flat[n][3], -n))
        gone |= {flat[n][:2]: flat[kept][:2] for n in members if n != kept}
    return gone


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """Of the low bytes, less what is equal by chance."""
    equal = float((a % 256 == b % 256).mean())
    return max(0.0, (equal - 1 / 256) / (1 - 1 / 256))


def told(files: list[Path]) -> dict[tuple[int, int], tuple[int, int]]:
    gone = {}
    for part, path in enumerate(files):
        one = Removed.read(path)
        kept = zip(one.kept_part.tolist(), one.kept_documents.tolist(), strict=True)
        assert one.documents.tolist() == sorted(one.documents.tolist())
        gone |= {(part, d): k for d, k in zip(one.documents.tolist(), kept, strict=True)}
    return gone


WORDS = st.lists(st.sampled_from("abcdef"), max_size=5).map(" ".join)
SCORES = st.sampled_from([0.0, 1.0, 1.5, float("-inf")])
CORPUS = st.lists(st.lists(st.tuples(WORDS, SCORES), max_size=6), max_size=4).map(Corpus)


@settings(max_examples=25, deadline=None)
@given(
    CORPUS,
    st.sampled_from([1, 3, 1 << 20]),
    st.sampled_from([0.0, 0.6, 1.0]),
    st.sampled_from([2, 1 << 20]),
    st.booleans(),
    st.booleans(),
)
def test_near_copies_equal_a_brute_force_search(
    tmp_path_factory: pytest.TempPathFactory,
    corpus: Corpus,
    slice_items: int,
    agree: float,
    join_items: int,
    objects: bool,
    merged: bool,
) -> None:
    """Joined by one task or by many, in a folder or in an object store, merged first or not."""
    folder = tmp_path_factory.mktemp("near")
    config = replace(CONFIG, agree=agree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "RUNS_FROM", 1 if merged else 1 << 20)
        patch.setattr(runs, "RUN_PARTS", 2)
        files = find_near_copies(
            ObjectPath(f"file://{folder}") if objects else folder,
            "x",
            len(corpus.parts),
            corpus,
            config,
            slice_items=slice_items,
            join_items=join_items,
        )
    assert told(files) == by_hand(corpus, config)


def test_a_key_in_common_is_not_enough(tmp_path: Path) -> None:
    """One text in three that share a key is a copy of the last, not of the first that leads."""
    base = np.arange(CONFIG.places, dtype=np.uint32)
    rows = np.stack([base, base, base])
    rows[1:, 2:] += 100
    write_columns(tmp_path / "0", spill_bands(rows, np.zeros(3), CONFIG))
    files = join_copies(tmp_path, SpilledParts.open([tmp_path / "0"]), CONFIG)
    assert told(files) == {(0, 2): (0, 1)}
    (tmp_path / "loose").mkdir()
    files = join_copies(
        tmp_path / "loose", SpilledParts.open([tmp_path / "0"]), replace(CONFIG, agree=0)
    )
    assert told(files) == {(0, 1): (0, 0), (0, 2): (0, 0)}


def test_a_key_has_a_limited_number_of_leaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = np.arange(CONFIG.places, dtype=np.uint32)
    rows = np.stack([base] * 6)
    for n in range(6):
        rows[n, 2:] += 10 * (n // 2)
    write_columns(tmp_path / "0", spill_bands(rows, np.zeros(6), CONFIG))
    monkeypatch.setattr(module, "_LEADERS", 2)
    monkeypatch.setattr(module, "_COMPARED", 2)
    one_band = module._find_edges(SpilledParts.open([tmp_path / "0"]), 0, 0, 1, 0.75)
    assert one_band["left"].tolist() == [0, 2]
    assert one_band["right"].tolist() == [1, 3]


def test_texts_without_words_are_copies_of_nothing(tmp_path: Path) -> None:
    corpus = Corpus([[("", 0.0), ("...", 0.0), ("a b", 0.0)], [("", 1.0), ("B, A!", 0.0)]])
    assert told(find_near_copies(tmp_path, "x", 2, corpus, CONFIG)) == {(1, 1): (0, 2)}


def test_the_best_score_stays_and_no_score_is_the_worst(tmp_path: Path) -> None:
    nan = float("nan")
    corpus = Corpus([[("a b", nan), ("a b", -5.0)], [("a b", 2.0), ("a b", 2.0)]])
    assert told(find_near_copies(tmp_path, "x", 2, corpus, CONFIG)) == {
        (0, 0): (1, 0),
        (0, 1): (1, 0),
        (1, 1): (1, 0),
    }


def test_workers_slices_and_parts_change_nothing(tmp_path: Path) -> None:
    rng = random.Random(5)
    texts = [(" ".join(rng.choices("abcdefghij", k=6)), rng.random()) for _ in range(60)]
    corpus = Corpus([texts[:7], texts[7:40], [], texts[40:]])
    contents = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        find_near_copies(folder, "x", 4, corpus, CONFIG, workers=workers, slice_items=20)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        contents.append({path.relative_to(folder): path.read_bytes() for path in files})
    assert contents[0] == contents[1]
    assert len(contents[0]) > 4 + 4 * 4 + 1 + 4
    whole = find_near_copies(tmp_path / "whole", "x", 1, Corpus([texts]), CONFIG)
    cuts = [(p, d) for p, part in enumerate(corpus.parts) for d in range(len(part))]
    expected = {cuts[n]: cuts[kept] for (_, n), (_, kept) in told(whole).items()}
    assert told(sorted((tmp_path / "2" / "removed").iterdir())) == expected
    assert expected
