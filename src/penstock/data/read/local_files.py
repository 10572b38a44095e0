"""The files of a dataset in a folder on this machine."""

import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.format.manifest import SHARDS, TOKENIZER, Manifest
from penstock.data.format.shard_file import BadBlock, LocalShard, size_problem
from penstock.data.format.types import Positions
from penstock.data.read.shard_bounds import ShardBounds

CHUNK_BYTES = 8 << 20


class LocalDatasetFiles:
    """Access to the shards of a dataset in a folder; they are memory-mapped."""

    def __init__(self, folder: Path, manifest: Manifest, bounds: ShardBounds) -> None:
        self.where = str(folder)
        dtype = np.dtype(manifest.dtype)
        self._bounds = bounds
        self._starts: list[int] = bounds.starts.tolist()
        self.shards = [
            LocalShard(folder, shard, dtype, first_token, manifest.vocab)
            for shard, first_token in zip(manifest.shards, self._starts, strict=False)
        ]

    def crops(self, starts: Positions, length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return crops [len(starts), length]: one copy of all rows, which also converts the type.

        Faster than `ShardBounds.gather`, which copies row by row.
        """
        out = np.empty((len(starts), length), dtype=dtype)
        first_tokens: list[int] = starts.tolist()
        if not first_tokens:
            return out
        self._bounds.refuse_outside(min(first_tokens), max(first_tokens), length)
        bounds, shards = self._starts, self.shards
        views = []
        try:
            for start in first_tokens:
                k, stop = bisect_right(bounds, start) - 1, start + length
                while start < stop:
                    first, end = bounds[k], min(stop, bounds[k + 1])
                    views.append(shards[k].view(start - first, end - first))
                    start, k = end, k + 1
        except BadBlock as bad:
            raise bad.for_crops(starts, length) from None
        if views:
            np.concatenate(views, out=out.reshape(-1))
        return out

    def chunks(self, file: str) -> Iterator[memoryview]:
        """Yield a file in parts that hold whole tokens."""
        with Path(self.where, file).open("rb") as opened:
            while chunk := opened.read(CHUNK_BYTES):
                yield memoryview(chunk)

    def plan_ahead(self, batches: Iterator[Positions], length: int) -> None:
        """Do nothing: the kernel reads ahead on a local disk."""

    def close(self) -> None:
        """Do nothing: no thread works in the background."""


def file_problems(folder: Path, manifest: Manifest) -> list[str]:
    """Return one line for each file that is missing, has a wrong size or is a link to outside."""
    problems = [
        problem
        for shard in manifest.shards
        for file, (_, size) in shard.files().items()
        if (problem := size_problem(folder / file, size))
    ]
    problems += _links_out(folder, manifest)
    if not (folder / TOKENIZER).is_file():
        problems.append(f"{folder / TOKENIZER} is missing")
    return problems


def _links_out(folder: Path, manifest: Manifest) -> list[str]:
    """Return a line for each link that leads out of the dataset: nothing outside may be read."""
    inside = os.path.realpath(folder)
    names = [TOKENIZER, SHARDS, *(file for shard in manifest.shards for file in shard.files())]
    links = [folder / name for name in names if os.path.islink(folder / name)]
    return [
        f"{path} is a link that leads out of the dataset"
        for path in links
        if os.path.commonpath([inside, os.path.realpath(path)]) != inside
    ]
