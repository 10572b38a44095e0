"""Positions of the shards in a dataset, and crops of tokens that may cross shard borders."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from penstock.data.format.manifest import Manifest
from penstock.data.format.shard_file import BadBlock
from penstock.data.format.types import Positions

_Kind = TypeVar("_Kind", bound=np.generic)


class ShardBounds:
    """The token range of each shard: shard k holds tokens [starts[k], starts[k + 1])."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.starts = np.cumsum([0, *(shard.tokens for shard in manifest.shards)], dtype=np.int64)

    def refuse_outside(self, first: int, last: int, length: int) -> None:
        """Raise ValueError unless crops that start from `first` to `last` are in the dataset."""
        tokens = self._manifest.tokens
        if first < 0 or last + length > tokens:
            raise ValueError(
                f"crops of {length} tokens from {first} to {last} are not within the {tokens} of "
                f"{self._manifest.id}"
            )

    def gather(
        self,
        starts: Positions,
        length: int,
        dtype: "np.dtype[_Kind]",
        read: Callable[[int, Positions, int], npt.NDArray[_Kind]],
    ) -> npt.NDArray[_Kind]:
        """Return crops, [len(starts), length], put together from reads within single shards.

        `read(shard, starts in the shard, length)` returns the crops of one shard.
        """
        starts = np.asarray(starts, dtype=np.int64)
        out = np.empty((len(starts), length), dtype=dtype)
        if not out.size:
            return out
        self.refuse_outside(int(starts.min()), int(starts.max()), length)
        shard = np.searchsorted(self.starts, starts, side="right") - 1
        crosses = starts + length > self.starts[shard + 1]
        try:
            for row in np.flatnonzero(crosses):
                start, at, k = starts[row], 0, int(shard[row])
                while at < length:
                    count = int(min(length - at, self.starts[k + 1] - start - at))
                    inside = np.array([start + at - self.starts[k]])
                    out[row, at : at + count] = read(k, inside, count)[0] if count else ()
                    at, k = at + count, k + 1
            for k in np.unique(shard[~crosses]):
                rows = np.flatnonzero((shard == k) & ~crosses)
                out[rows] = read(int(k), starts[rows] - self.starts[k], length)
        except BadBlock as bad:
            raise bad.for_crops(starts, length) from None
        return out
