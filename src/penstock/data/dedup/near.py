"""Near-duplicates over the whole set: MinHash bands, spilled, grouped, joined, and the best kept.

Texts that share a key and agree are joined, and so on through what they are joined with: a cluster.
Of a cluster the best-scored text stays, the first of equals.

Memory is that of one slice a worker, then some 30 bytes a document for the clusters; a byte for
each place of each signature is on disk and mapped while pairs are compared.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.data.dedup.groups import SLICE_ITEMS, Parts, best, grouped, spilled
from penstock.data.dedup.removed import removed_of_part
from penstock.data.dedup.signatures import U32, MinHash, band_keys, has_words, signatures
from penstock.data.dedup.stage import Read, each_part, read_part
from penstock.data.dedup.words import Int64
from penstock.data.format.columns import Columns, read_columns
from penstock.data.format.types import Progress
from penstock.data.workers.pool import Task, WorkerPool, run_stage, work_folder

_EDGES = 1 << 21  # joined at once
_COMPARED = 1 << 18  # pairs compared at once; each look opens every part
_LEADERS = 16  # in a group of one key


def near(
    folder: Path,
    inputs: str,
    parts: int,
    read: Read,
    config: MinHash,
    workers: int | WorkerPool = 1,
    slice_items: int = SLICE_ITEMS,
    progress: Progress | None = None,
) -> list[Path]:
    """A file for each part that says what to remove: `Removed.read` reads it.

    `inputs` is the identity of what `read` gives; a folder goes on only with the same.
    """
    with work_folder(folder, {"inputs": inputs, "parts": parts, **config.identity()}):
        to = folder / "bands"
        paths = each_part("sign", to, _signed, parts, (read, config), workers, progress)
        return join(folder, Parts.of(paths), config, workers, slice_items, progress)


def join(
    folder: Path,
    spill: Parts,
    config: MinHash,
    workers: int | WorkerPool = 1,
    slice_items: int = SLICE_ITEMS,
    progress: Progress | None = None,
) -> list[Path]:
    """From spilled band keys to what to remove of each part."""
    slices = spill.slices(slice_items)
    edges = [
        Task(
            folder / "edges" / f"{band}-{piece}-of-{slices}",
            _edges,
            (spill, band, piece, slices, config.agree),
        )
        for band in range(config.bands)
        for piece in range(slices)
    ]
    run_stage("find copies", edges, workers, progress)
    pairs = folder / "pairs"
    found = tuple(task.path for task in edges)
    run_stage("join copies", [Task(pairs, _clusters, (spill, found))], workers, progress)
    out = [folder / "removed" / f"{part:06d}" for part in range(len(spill.paths))]
    run_stage(
        "list copies",
        [Task(path, removed_of_part, (part, spill, (pairs,))) for part, path in enumerate(out)],
        workers,
        progress,
    )
    return out


def spilled_bands(rows: U32, scores: npt.ArrayLike, config: MinHash) -> Columns:
    """The columns of a part from its signatures."""
    items = np.flatnonzero(has_words(rows))
    columns = spilled(band_keys(rows[items], config), scores, items=items)
    # A byte of each place tells agreement as well as four, in a quarter of the room.
    return {**columns, "glance": rows.astype(np.uint8)}


def labels(count: int, edges: list[tuple[Int64, Int64]]) -> Int64:
    """For each of `count` items the least item that it is joined with, directly or through others.

    A label is never above its item and always inside the cluster, so when no edge joins two
    labels, all are the least. An edge whose work a later one undid is seen again next time round.
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
    """Every label becomes the label of its label, until that changes nothing."""
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


def _signed(part: int, read: Read, config: MinHash) -> Columns:
    texts, scores = read_part(read, part)
    return spilled_bands(signatures(texts, config), scores, config)


def _edges(parts: Parts, band: int, piece: int, slices: int, agree: float) -> Columns:
    """Each item of a group joins the first leader that it agrees with; who agrees with none leads.

    After `_LEADERS` the rest of a group stays as it is: boilerplate, not copies of one text.
    """
    members, firsts = grouped(parts, band, piece, slices)
    group = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(members))))
    left, right = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for _ in range(_LEADERS):
        _, firsts, sizes = np.unique(group, return_index=True, return_counts=True)
        leads = np.repeat(members[firsts], sizes)
        others = members != leads
        leads, members, group = leads[others], members[others], group[others]
        if not len(members):
            break
        same = _agreeing(parts, leads, members, agree)
        left.append(leads[same])
        right.append(members[same])
        members, group = members[~same], group[~same]
    return {"left": np.concatenate(left), "right": np.concatenate(right)}


def _agreeing(parts: Parts, left: Int64, right: Int64, agree: float) -> npt.NDArray[np.bool_]:
    same = np.empty(len(left), bool)
    for first in range(0, len(left), _COMPARED):
        here = slice(first, first + _COMPARED)
        equal = parts.column("glance", left[here]) == parts.column("glance", right[here])
        # Unequal places have equal bytes once in 256.
        share = (np.count_nonzero(equal, axis=1) / equal.shape[1] - 1 / 256) / (1 - 1 / 256)
        same[here] = np.maximum(share, 0) >= agree
    return same


def _clusters(parts: Parts, edges: tuple[Path, ...]) -> Columns:
    pairs = [(column["left"], column["right"]) for column in map(read_columns, edges)]
    label = labels(parts.items, pairs)
    joined = label != np.arange(parts.items)
    joined[label[joined]] = True
    members = np.flatnonzero(joined)
    return best(label[members], members, parts.column("scores", members))
