"""Near-duplicates over the whole dataset, by MinHash with bands (LSH).

Two texts are joined if they share the key of a band and their signatures agree. Texts that are
joined, directly or through others, are a cluster. The text with the best score stays; among equal
scores, the first.

Each worker holds one slice in memory; then the clusters take about 30 bytes per document. One byte
of each value of each signature is on disk and memory-mapped while pairs are compared.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.groups import (
    SLICE_ITEMS,
    SpilledParts,
    find_groups,
    keep_best,
    spill_columns,
)
from penstock.data.dedup.signatures import U32, MinHash, band_keys, compute_signatures, has_words
from penstock.data.dedup.stages import ReadPart, list_removed, read_part, run_per_part
from penstock.data.dedup.words import Int64
from penstock.data.format.columns import Columns, read_columns
from penstock.data.format.types import Progress
from penstock.data.workers.pool import Task, WorkerPool, run_stage, work_folder

_EDGES = 1 << 21  # edges joined at once
_COMPARED = 1 << 18  # pairs compared at once; each batch opens every part
_LEADERS = 16  # in a group with one key


def find_near_copies(
    folder: Path,
    inputs: str,
    parts: int,
    read: ReadPart,
    config: MinHash,
    workers: int | WorkerPool = 1,
    slice_items: int = SLICE_ITEMS,
    progress: Progress | None = None,
) -> list[Path]:
    """Write a file for each part that lists what to remove, and return the files' paths.

    `Removed.read` reads such a file. `inputs` is the identity of the texts that `read` returns; a
    folder with work on other inputs is refused.
    """
    with work_folder(folder, {"inputs": inputs, "parts": parts, **config.identity()}):
        bands = folder / "bands"
        paths = run_per_part("sign", bands, _sign_part, parts, (read, config), workers, progress)
        return join_copies(folder, SpilledParts.open(paths), config, workers, slice_items, progress)


def join_copies(
    folder: Path,
    spill: SpilledParts,
    config: MinHash,
    workers: int | WorkerPool = 1,
    slice_items: int = SLICE_ITEMS,
    progress: Progress | None = None,
) -> list[Path]:
    """List what to remove from each part, given the spilled band keys."""
    slices = spill.slice_count(slice_items)
    edges = [
        Task(
            folder / "edges" / f"{band}-{piece}-of-{slices}",
            _find_edges,
            (spill, band, piece, slices, config.agree),
        )
        for band in range(config.bands)
        for piece in range(slices)
    ]
    run_stage("find copies", edges, workers, progress)
    pairs = folder / "pairs"
    edge_files = tuple(task.path for task in edges)
    run_stage("join copies", [Task(pairs, _join_clusters, (spill, edge_files))], workers, progress)
    out = [folder / "removed" / f"{part:06d}" for part in range(len(spill.paths))]
    run_stage(
        "list copies",
        [Task(path, list_removed, (part, spill, (pairs,))) for part, path in enumerate(out)],
        workers,
        progress,
    )
    return out


def spill_bands(rows: U32, scores: npt.ArrayLike, config: MinHash) -> Columns:
    """Return the columns of a part, given the signatures of its texts."""
    items = np.flatnonzero(has_words(rows))
    columns = spill_columns(band_keys(rows[items], config), scores, items=items)
    # One byte of each value shows agreement as well as all four, in a quarter of the space.
    return {**columns, "glance": rows.astype(np.uint8)}


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


def _sign_part(part: int, read: ReadPart, config: MinHash) -> Columns:
    texts, scores = read_part(read, part)
    return spill_bands(compute_signatures(texts, config), scores, config)


def _find_edges(parts: SpilledParts, band: int, piece: int, slices: int, agree: float) -> Columns:
    """Join each item of a group to the first leader it agrees with; if there is none, it leads.

    After `_LEADERS` leaders the rest of the group is left alone: such texts share boilerplate and
    are not copies of each other.
    """
    members, firsts = find_groups(parts, band, piece, slices)
    group = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(members))))
    left, right = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for _ in range(_LEADERS):
        _, firsts, sizes = np.unique(group, return_index=True, return_counts=True)
        leads = np.repeat(members[firsts], sizes)
        others = members != leads
        leads, members, group = leads[others], members[others], group[others]
        if not len(members):
            break
        same = _agree(parts, leads, members, agree)
        left.append(leads[same])
        right.append(members[same])
        members, group = members[~same], group[~same]
    return {"left": np.concatenate(left), "right": np.concatenate(right)}


def _agree(parts: SpilledParts, left: Int64, right: Int64, agree: float) -> npt.NDArray[np.bool_]:
    same = np.empty(len(left), bool)
    for first in range(0, len(left), _COMPARED):
        here = slice(first, first + _COMPARED)
        equal = parts.gather("glance", left[here]) == parts.gather("glance", right[here])
        # Different values have equal bytes once in 256 times.
        share = (np.count_nonzero(equal, axis=1) / equal.shape[1] - 1 / 256) / (1 - 1 / 256)
        same[here] = np.maximum(share, 0) >= agree
    return same


def _join_clusters(parts: SpilledParts, edges: tuple[Path, ...]) -> Columns:
    pairs = [(column["left"], column["right"]) for column in map(read_columns, edges)]
    label = cluster_labels(parts.items, pairs)
    joined = label != np.arange(parts.items)
    joined[label[joined]] = True
    members = np.flatnonzero(joined)
    return keep_best(label[members], members, parts.gather("scores", members))
