"""Clusters of joined items: in the memory of one process, or by many tasks on files.

The tasks alternate two steps until every cluster is a star around its smallest item (large-star and
small-star; Kiveris et al. 2014, "Connected Components in MapReduce and Beyond"). A task holds the
edges of one range of items. Each step reads what the step before wrote, so a killed join goes on.
"""

from functools import partial
from pathlib import Path

import numpy as np

from penstock.data.dedup.groups import SpilledParts, keep_best
from penstock.data.dedup.words import Int64
from penstock.data.format.columns import ColumnFile, Columns, read_columns, with_index
from penstock.data.format.types import Progress
from penstock.data.store.object_path import map_places
from penstock.data.workers.pool import Executor, Task, run_stage

_EDGES = 1 << 21  # edges joined at once


def cluster_labels(count: int, edges: list[tuple[Int64, Int64]]) -> Int64:
    """Return for each of `count` items the smallest item of its cluster.

    A label is never larger than its item and always inside the cluster. So when no edge joins two
    different labels, every label is the smallest. An edge whose effect was overwritten by a later
    edge is applied again in the next round.
    """
    label = np.arange(count, dtype=np.int64)
    while True:
        moved = False
        for left, right in edges:
            for first in range(0, len(left), _EDGES):
                a = label[left[first : first + _EDGES]]
                b = label[right[first : first + _EDGES]]
                apart = a != b
                if apart.any():
                    moved = True
                    high, low = np.maximum(a, b)[apart], np.minimum(a, b)[apart]
                    np.minimum.at(label, high, low)
        if not moved:
            return label
        _compress(label)


def _compress(label: Int64) -> None:
    """Replace every label by the label of its label until nothing changes."""
    while True:
        settled = True
        for first in range(0, len(label), _EDGES):
            old = label[first : first + _EDGES]
            new = label[old]
            if not np.array_equal(old, new):
                settled = False
                label[first : first + _EDGES] = new
        if settled:
            return


def join_by_stars(
    folder: Path,
    spill: SpilledParts,
    edges: tuple[Path, ...],
    range_items: int,
    workers: int | Executor,
    progress: Progress | None,
) -> tuple[Path, ...]:
    """Join the items of all edges in ranges of about `range_items`; return the files of pairs."""
    ranges = -(-spill.items // range_items)
    bounds = tuple(spill.items * number // ranges for number in range(ranges + 1))
    turn = 0

    def step(tasks: list[Task]) -> tuple[Path, ...]:
        run_stage(f"join near, step {turn}", tasks, workers, progress)
        return tuple(task.path for task in tasks)

    def paths(name: str, count: int) -> list[Path]:
        return [folder / "stars" / f"{name}-of-{ranges}" / f"{n:06d}" for n in range(count)]

    both = step(
        [
            Task(path, _both_ways, (file,))
            for path, file in zip(paths("0", len(edges)), edges, strict=True)
        ]
    )
    while True:
        turn += 1
        down = step(
            [
                Task(path, _large_star, (both, bounds[n], bounds[n + 1]))
                for n, path in enumerate(paths(f"{turn}-large", ranges))
            ]
        )
        settled = map_places(lambda path: read_columns(path, "settled")["settled"][0], down, folder)
        if all(settled):
            break
        both = step(
            [
                Task(path, _small_star, (down, bounds[n], bounds[n + 1]))
                for n, path in enumerate(paths(f"{turn}-small", ranges))
            ]
        )
    return step(
        [
            Task(path, _keep_best_of_stars, (spill, both, bounds[n], bounds[n + 1]))
            for n, path in enumerate(paths("pairs", ranges))
        ]
    )


def _both_ways(edges: Path) -> Columns:
    """Return edges in both directions, sorted by their first item."""
    found = read_columns(edges)
    left, right = found["left"].astype(np.int64), found["right"].astype(np.int64)
    return _sorted(np.concatenate([left, right]), np.concatenate([right, left]))


def _large_star(files: tuple[Path, ...], first: int, last: int) -> Columns:
    """Join the larger neighbours of each item to the smallest item among it and its neighbours.

    Edges come in both directions and go out from larger to smaller. `settled` says that the items
    of this range are in stars already: an item with a smaller neighbour has no other one.
    """
    item, other = _load(files, first, last)
    firsts, degrees = _runs(item)
    least = np.minimum(item[firsts], other[firsts])
    settled = bool(np.all((least == item[firsts]) | (degrees == 1)))
    up = other > item
    out = _sorted(other[up], np.repeat(least, degrees)[up])
    return {**out, "settled": np.array([settled])}


def _small_star(files: tuple[Path, ...], first: int, last: int) -> Columns:
    """Join each item and its smaller neighbours to the smallest of them.

    Edges come from larger to smaller and go out in both directions.
    """
    item, other = _load(files, first, last)
    firsts, degrees = _runs(item)
    least = other[firsts]
    centre = np.repeat(least, degrees)
    apart = other != centre
    left = np.concatenate([item[firsts], other[apart]])
    right = np.concatenate([least, centre[apart]])
    return _sorted(np.concatenate([left, right]), np.concatenate([right, left]))


def _keep_best_of_stars(
    parts: SpilledParts, files: tuple[Path, ...], first: int, last: int
) -> Columns:
    """Keep the best item of each star whose centre is in this range."""
    centre, member = _load(files, first, last)
    up = member > centre
    centre, member = centre[up], member[up]
    middles = np.unique(centre)
    groups, members = np.concatenate([middles, centre]), np.concatenate([middles, member])
    return keep_best(groups, members, parts.gather("scores", members))


def _load(files: tuple[Path, ...], first: int, last: int) -> tuple[Int64, Int64]:
    """Return the edges whose first item is in [first, last), each once, sorted."""
    find = partial(_find, first=first, last=last)
    loaded = list(map_places(find, files, files[0] if files else None))
    empty = [np.empty(0, np.int64)]
    item = np.concatenate([*empty, *(found["item"] for found in loaded)])
    other = np.concatenate([*empty, *(found["other"] for found in loaded)])
    return _once(item, other)


def _find(path: Path, first: int, last: int) -> Columns:
    return ColumnFile(path).find("item", first, last, "other")[1]


def _once(item: Int64, other: Int64) -> tuple[Int64, Int64]:
    order = np.lexsort((other, item))
    item, other = item[order], other[order]
    again = np.concatenate([[False], (item[1:] == item[:-1]) & (other[1:] == other[:-1])])
    again = again[: len(item)]
    return item[~again], other[~again]


def _sorted(item: Int64, other: Int64) -> Columns:
    item, other = _once(item, other)
    return with_index({"item": item, "other": other}, "item")


def _runs(item: Int64) -> tuple[Int64, Int64]:
    """Return where each item begins in a sorted column, and how often it occurs."""
    _, firsts, counts = np.unique(item, return_index=True, return_counts=True)
    return firsts, counts
