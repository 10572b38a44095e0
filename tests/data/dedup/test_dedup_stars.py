"""Clusters are the same in one process and by tasks on ranges of items, however they are cut."""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.dedup import stars as module
from penstock.data.dedup.groups import SpilledParts
from penstock.data.dedup.stars import cluster_labels, join_by_stars
from penstock.data.format.columns import read_columns, write_columns

Edges = list[tuple[int, int]]


@pytest.fixture(autouse=True, scope="module")
def _without_waiting_for_the_disk() -> Iterator[None]:
    """Many small files in many examples; what fsync is for needs a power cut to show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Edges]]:
    count = draw(st.integers(1, 14))
    edge = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    return count, draw(st.lists(st.lists(edge, max_size=8), max_size=3))


def clusters(count: int, edges: Edges) -> list[int]:
    label = list(range(count))
    for a, b in edges * count:
        label[a] = label[b] = min(label[a], label[b])
    return label


def arrays(lists: list[Edges]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (np.array([a for a, _ in one], np.int64), np.array([b for _, b in one], np.int64))
        for one in lists
    ]


@settings(max_examples=80)
@given(graphs(), st.sampled_from([1, 3, module._EDGES]))
def test_labels_are_the_smallest_item_of_the_cluster(
    graph: tuple[int, list[Edges]], at_once: int
) -> None:
    count, lists = graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_EDGES", at_once)
        found = cluster_labels(count, arrays(lists))
    assert found.tolist() == clusters(count, [edge for one in lists for edge in one])


def joined(folder: Path, count: int, lists: list[Edges], range_items: int) -> dict[int, int]:
    """Removed item → kept item."""
    write_columns(folder / "part", {"scores": np.arange(count) % 3.0})
    files = tuple(folder / f"edges{n}" for n in range(len(lists)))
    for path, (left, right) in zip(files, arrays(lists), strict=True):
        write_columns(path, {"left": left, "right": right})
    spill = SpilledParts.open([folder / "part"])
    out: dict[int, int] = {}
    for path in join_by_stars(folder, spill, files, range_items, 1, None):
        pairs = read_columns(path)
        assert np.all(np.diff(pairs["removed"]) > 0)
        out |= dict(zip(pairs["removed"].tolist(), pairs["kept"].tolist(), strict=True))
    return out


def by_hand(count: int, lists: list[Edges]) -> dict[int, int]:
    label = clusters(count, [edge for one in lists for edge in one])
    gone = {}
    for root in set(label):
        members = [n for n in range(count) if label[n] == root]
        kept = max(members, key=lambda n: (n % 3, -n))
        gone |= {n: kept for n in members if n != kept}
    return gone


@settings(max_examples=40)
@given(graphs(), st.sampled_from([1, 2, 5, 100]))
def test_stars_are_the_clusters(
    tmp_path_factory: pytest.TempPathFactory, graph: tuple[int, list[Edges]], range_items: int
) -> None:
    folder = tmp_path_factory.mktemp("stars")
    assert joined(folder, *graph, range_items) == by_hand(*graph)


def test_a_long_chain_is_joined_in_few_steps(tmp_path: Path) -> None:
    """The steps grow with the logarithm of a chain's length, whose items are in any order."""
    order = np.random.default_rng(0).permutation(2000).tolist()
    chain = list(pairwise(order))
    assert joined(tmp_path, 2000, [chain], 500) == by_hand(2000, [chain])
    turns = {path.name.partition("-")[0] for path in (tmp_path / "stars").glob("*-large-*")}
    assert 2 < len(turns) < 16
