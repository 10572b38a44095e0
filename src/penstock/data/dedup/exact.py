"""Exact copies of documents and of lines, over the whole dataset.

Two documents are copies if their texts are equal after NFC and after replacing every run of white
space by one space; the key is the xxh3-128 of that text. Lines are compared in the same way, but
only from `characters` on: short ones ("}", "Share") legitimately occur everywhere. The copy in the
document with the best score stays.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from penstock.data.dedup.groups import (
    SLICE_ITEMS,
    SpilledParts,
    find_groups,
    keep_best,
    rank_scores,
    spill_columns,
)
from penstock.data.dedup.runs import merge_runs
from penstock.data.dedup.stages import ReadPart, list_removed, read_part, run_per_part
from penstock.data.dedup.words import U64, to_nfc
from penstock.data.format.columns import Columns
from penstock.data.format.manifest import Json
from penstock.data.format.types import Progress
from penstock.data.workers.pool import Executor, Task, run_stage, work_folder

REVISION = 1


@dataclass(frozen=True)
class ExactDocuments:
    """Settings of the search for equal documents."""

    stages = ("hash", "merge keys", "find copies", "list copies")  # for people

    def identity(self) -> dict[str, Json]:
        return {"kind": "exact documents", "revision": REVISION}


@dataclass(frozen=True)
class ExactLines:
    """Settings of the search for equal lines."""

    characters: int = 40  # least length of a line after normalization

    stages = ("hash lines", "merge lines", "find lines", "list lines")  # for people

    def identity(self) -> dict[str, Json]:
        return {"kind": "exact lines", "revision": REVISION, **asdict(self)}


def find_exact_copies(
    folder: Path,
    inputs: str,
    parts: int,
    read: ReadPart,
    config: ExactDocuments | ExactLines,
    workers: int | Executor = 1,
    slice_items: int = SLICE_ITEMS,
    progress: Progress | None = None,
) -> list[Path]:
    """Write a file for each part that lists what to remove, and return the files' paths.

    `Removed.read` reads such a file. `inputs` is the identity of the texts that `read` returns; a
    folder with work on other inputs is refused.
    """
    with work_folder(folder, {"inputs": inputs, "parts": parts, **config.identity()}):
        keys = folder / "keys"
        hashing, merging, finding, listing = config.stages
        paths = run_per_part(hashing, keys, _hash_part, parts, (read, config), workers, progress)
        spill = merge_runs(folder, SpilledParts.open(paths), 1, workers, progress, merging)
        slices = spill.slice_count(slice_items)
        pairs = tuple(folder / "pairs" / f"{piece}-of-{slices}" for piece in range(slices))
        run_stage(
            finding,
            [Task(path, _find_pairs, (spill, piece, slices)) for piece, path in enumerate(pairs)],
            workers,
            progress,
        )
        out = [folder / "removed" / f"{part:06d}" for part in range(parts)]
        run_stage(
            listing,
            [Task(path, list_removed, (part, spill, pairs)) for part, path in enumerate(out)],
            workers,
            progress,
        )
        return out


def normalize(text: str) -> str:
    """Return the text in NFC, with every run of white space as one space."""
    return " ".join(to_nfc(text).split())


def hash_texts(texts: Sequence[str]) -> tuple[U64, U64]:
    """Return the high and the low half of the xxh3-128 of each text."""
    digests = b"".join(
        xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass")) for text in texts
    )
    halves = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
    return halves[:, 0].copy(), halves[:, 1].copy()


def remove_lines(text: str, lines: Sequence[int] | npt.NDArray[np.int64]) -> str:
    """Return the text without the lines with these numbers (from 0, as in `Removed.lines`)."""
    removed = {int(line) for line in lines}
    return "\n".join(line for at, line in enumerate(text.split("\n")) if at not in removed)


def _hash_part(part: int, read: ReadPart, config: ExactDocuments | ExactLines) -> Columns:
    texts, scores = read_part(read, part)
    if isinstance(config, ExactDocuments):
        highs, lows = hash_texts([normalize(text) for text in texts])
        return spill_columns(highs[None], scores, lows[None], carried=rank_scores(scores))
    keys: list[str] = []
    documents: list[int] = []
    places: list[int] = []
    for document, text in enumerate(texts):
        for place, line in enumerate(text.split("\n")):
            if len(line) >= config.characters:
                plain = normalize(line)
                if len(plain) >= config.characters:
                    keys.append(plain)
                    documents.append(document)
                    places.append(place)
    highs, lows = hash_texts(keys)
    owners = np.array(documents, np.uint32)
    line_scores = rank_scores(scores[owners])
    return {
        **spill_columns(highs[None], line_scores, lows[None], carried=line_scores),
        "documents": owners,
        "lines": np.array(places, np.uint32),
    }


def _find_pairs(parts: SpilledParts, piece: int, slices: int) -> Columns:
    members, firsts, scores = find_groups(parts, 0, piece, slices)
    sizes = np.diff(np.append(firsts, len(members)))
    groups = np.repeat(np.arange(len(firsts)), sizes)
    if scores is None:  # there is no part
        scores = np.empty(0)
    return keep_best(groups, members, scores)
