"""Exact copies of documents and of lines, over the whole set.

Two documents are the same if their texts are after NFC with every run of white space as one blank;
the key is the xxh3-128 of that. Lines likewise, from `characters` on: short ones ("}", "Share") are
rightly everywhere. Of equal lines the one in the best-scored document stays.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from penstock.data.dedup.groups import SLICE_ITEMS, Parts, best, grouped, spilled
from penstock.data.dedup.removed import removed_of_part
from penstock.data.dedup.stage import Read, each_part, read_part
from penstock.data.dedup.words import U64, composed
from penstock.data.format.columns import Columns
from penstock.data.format.manifest import Json
from penstock.data.format.types import Progress
from penstock.data.workers.pool import Task, WorkerPool, run_stage, work_folder

REVISION = 1


@dataclass(frozen=True)
class Documents:
    def identity(self) -> dict[str, Json]:
        return {"kind": "exact documents", "revision": REVISION}


@dataclass(frozen=True)
class Lines:
    characters: int = 40  # of the normalised line, at least

    def identity(self) -> dict[str, Json]:
        return {"kind": "exact lines", "revision": REVISION, **asdict(self)}


def exact(
    folder: Path,
    inputs: str,
    parts: int,
    read: Read,
    config: Documents | Lines,
    workers: int | WorkerPool = 1,
    slice_items: int = SLICE_ITEMS,
    progress: Progress | None = None,
) -> list[Path]:
    """A file for each part that says what to remove: `Removed.read` reads it.

    `inputs` is the identity of what `read` gives; a folder goes on only with the same.
    """
    with work_folder(folder, {"inputs": inputs, "parts": parts, **config.identity()}):
        to = folder / "keys"
        paths = each_part("hash", to, _hashed, parts, (read, config), workers, progress)
        spill = Parts.of(paths)
        slices = spill.slices(slice_items)
        pairs = tuple(folder / "pairs" / f"{piece}-of-{slices}" for piece in range(slices))
        run_stage(
            "find copies",
            [Task(path, _pairs, (spill, piece, slices)) for piece, path in enumerate(pairs)],
            workers,
            progress,
        )
        out = [folder / "removed" / f"{part:06d}" for part in range(parts)]
        run_stage(
            "list copies",
            [Task(path, removed_of_part, (part, spill, pairs)) for part, path in enumerate(out)],
            workers,
            progress,
        )
        return out


def normalised(text: str) -> str:
    return " ".join(composed(text).split())


def text_keys(texts: Sequence[str]) -> tuple[U64, U64]:
    """The high and the low half of the xxh3-128 of each text, as given."""
    digests = b"".join(
        xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass")) for text in texts
    )
    halves = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
    return halves[:, 0].copy(), halves[:, 1].copy()


def without_lines(text: str, lines: Sequence[int] | npt.NDArray[np.int64]) -> str:
    """The text without the lines of these places, as `Removed` names them."""
    gone = {int(line) for line in lines}
    return "\n".join(line for place, line in enumerate(text.split("\n")) if place not in gone)


def _hashed(part: int, read: Read, config: Documents | Lines) -> Columns:
    texts, scores = read_part(read, part)
    if isinstance(config, Documents):
        highs, lows = text_keys([normalised(text) for text in texts])
        return spilled(highs[None], scores, lows[None])
    keys: list[str] = []
    documents: list[int] = []
    places: list[int] = []
    for document, text in enumerate(texts):
        for place, line in enumerate(text.split("\n")):
            if len(line) >= config.characters:
                plain = normalised(line)
                if len(plain) >= config.characters:
                    keys.append(plain)
                    documents.append(document)
                    places.append(place)
    highs, lows = text_keys(keys)
    owners = np.array(documents, np.uint32)
    return {
        **spilled(highs[None], scores[owners], lows[None]),
        "documents": owners,
        "lines": np.array(places, np.uint32),
    }


def _pairs(parts: Parts, piece: int, slices: int) -> Columns:
    members, firsts = grouped(parts, 0, piece, slices)
    sizes = np.diff(np.append(firsts, len(members)))
    groups = np.repeat(np.arange(len(firsts)), sizes)
    return best(groups, members, parts.column("scores", members))
