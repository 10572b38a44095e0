"""Near-duplicates over the whole dataset, by MinHash with bands (LSH).

Two texts are joined if they share the key of a band and their signatures agree. Texts that are
joined, directly or through others, are a cluster. The text with the best score stays; among equal
scores, the first.

Each worker holds one slice in memory; then the clusters take about 30 bytes per document, of at
most `JOIN_ITEMS` documents: larger sets are joined by many tasks (`stars.py`). One byte of each
value of each signature is on disk and memory-mapped while pairs are compared. In an object store it
lies beside each key instead, since single rows of all parts would be too many requests.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.groups import (
    SLICE_ITEMS,
    Groups,
    SpilledParts,
    find_groups,
    keep_best,
    spill_columns,
)
from penstock.data.dedup.runs import merge_runs
from penstock.data.dedup.signatures import U32, MinHash, band_keys, compute_signatures, has_words
from penstock.data.dedup.stages import ReadPart, list_removed, read_part, run_per_part
from penstock.data.dedup.stars import cluster_labels, join_by_stars
from penstock.data.dedup.words import Int64
from penstock.data.format.columns import Columns, read_columns
from penstock.data.format.types import Progress
from penstock.data.store.object_path import ObjectPath, map_places
from penstock.data.workers.pool import Executor, Task, run_stage, work_folder

JOIN_ITEMS = 1 << 24  # most that one task joins, in about 500 MB
_COMPARED = 1 << 18  # pairs compared at once; each batch opens every part
_LEADERS = 16  # in a group with one key


def find_near_copies(
    folder: Path,
    inputs: str,
    parts: int,
    read: ReadPart,
    config: MinHash,
    workers: int | Executor = 1,
    slice_items: int = SLICE_ITEMS,
    progress: Progress | None = None,
    join_items: int = JOIN_ITEMS,
) -> list[Path]:
    """Write a file for each part that lists what to remove, and return the files' paths.

    `Removed.read` reads such a file. `inputs` is the identity of the texts that `read` returns; a
    folder with work on other inputs is refused.
    """
    with work_folder(folder, {"inputs": inputs, "parts": parts, **config.identity()}):
        bands, carry = folder / "bands", isinstance(folder, ObjectPath)
        args = (read, config, carry)
        paths = run_per_part("sign", bands, _sign_part, parts, args, workers, progress)
        opened = SpilledParts.open(paths)
        spill = merge_runs(folder, opened, config.bands, workers, progress, "merge near")
        return join_copies(folder, spill, config, workers, slice_items, progress, join_items)


def join_copies(
    folder: Path,
    spill: SpilledParts,
    config: MinHash,
    workers: int | Executor = 1,
    slice_items: int = SLICE_ITEMS,
    progress: Progress | None = None,
    join_items: int = JOIN_ITEMS,
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
    run_stage("find near", edges, workers, progress)
    edge_files = tuple(task.path for task in edges)
    if spill.items > join_items:
        pairs = join_by_stars(folder, spill, edge_files, join_items, workers, progress)
    else:
        pairs = (folder / "pairs",)
        join = Task(pairs[0], _join_clusters, (spill, edge_files))
        run_stage("join near", [join], workers, progress)
    out = [folder / "removed" / f"{part:06d}" for part in range(len(spill.paths))]
    run_stage(
        "list near",
        [Task(path, list_removed, (part, spill, pairs)) for part, path in enumerate(out)],
        workers,
        progress,
    )
    return out


def spill_bands(rows: U32, scores: npt.ArrayLike, config: MinHash, carry: bool = False) -> Columns:
    """Return the columns of a part, given the signatures of its texts."""
    items = np.flatnonzero(has_words(rows))
    # One byte of each value shows agreement as well as all four, in a quarter of the space.
    glance = rows.astype(np.uint8)
    keys = band_keys(rows[items], config)
    if carry:
        return spill_columns(keys, scores, items=items, carried=glance)
    return {**spill_columns(keys, scores, items=items), "glance": glance}


def _sign_part(part: int, read: ReadPart, config: MinHash, carry: bool) -> Columns:
    texts, scores = read_part(read, part)
    return spill_bands(compute_signatures(texts, config), scores, config, carry)


def _find_edges(parts: SpilledParts, band: int, piece: int, slices: int, agree: float) -> Columns:
    """Join each item of a group to the first leader it agrees with; if there is none, it leads.

    After `_LEADERS` leaders the rest of the group is left alone: such texts share boilerplate and
    are not copies of each other.
    """
    found = find_groups(parts, band, piece, slices)
    sizes = np.diff(np.append(found.firsts, len(found.members)))
    group = np.repeat(np.arange(len(found.firsts)), sizes)
    at = np.arange(len(found.members))  # places in `found` that have no leader yet
    left, right = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for _ in range(_LEADERS):
        _, firsts, sizes = np.unique(group, return_index=True, return_counts=True)
        leads = np.repeat(at[firsts], sizes)
        others = at != leads
        leads, at, group = leads[others], at[others], group[others]
        if not len(at):
            break
        same = _agree(parts, found, leads, at, agree)
        left.append(found.members[leads[same]])
        right.append(found.members[at[same]])
        at, group = at[~same], group[~same]
    return {"left": np.concatenate(left), "right": np.concatenate(right)}


def _agree(
    parts: SpilledParts, found: Groups, left: Int64, right: Int64, agree: float
) -> npt.NDArray[np.bool_]:
    def glance(at: Int64) -> npt.NDArray[np.uint8]:
        if found.carried is not None:
            return found.carried[at]
        return parts.gather("glance", found.members[at])

    same = np.empty(len(left), bool)
    for first in range(0, len(left), _COMPARED):
        here = slice(first, first + _COMPARED)
        equal = glance(left[here]) == glance(right[here])
        # Different values have equal bytes once in 256 times.
        share = (np.count_nonzero(equal, axis=1) / equal.shape[1] - 1 / 256) / (1 - 1 / 256)
        same[here] = np.maximum(share, 0) >= agree
    return same


def _join_clusters(parts: SpilledParts, edges: tuple[Path, ...]) -> Columns:
    read = map_places(read_columns, edges, parts.like)
    pairs = [(column["left"], column["right"]) for column in read]
    label = cluster_labels(parts.items, pairs)
    joined = label != np.arange(parts.items)
    joined[label[joined]] = True
    members = np.flatnonzero(joined)
    return keep_best(label[members], members, parts.gather("scores", members))
