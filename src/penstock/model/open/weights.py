"""The weights of an open model by our names, read one tensor at a time or in part.

The files are mapped into memory: what is not asked for is not read, so that a rank can take what it
holds of a model that is larger than its machine.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from penstock.model.open.files import OpenFiles, look
from penstock.model.open.names import Place, tensors


class OpenWeights:
    """Of a folder whose files are right; else the error of `open_files.look`."""

    def __init__(self, folder: Path | str) -> None:
        self.files: OpenFiles = look(Path(folder))
        self.shape, self.family = self.files.shape, self.files.family
        self.dimensions = tensors(self.shape)
        self._open: dict[Path, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.dimensions

    def read(self, name: str) -> Tensor:
        """All of a tensor, in the type it is stored in."""
        return self.slice(name)[:]

    def slice(self, name: str) -> "Slice":
        """A tensor that is read where it is indexed: `.slice("head.weight")[100:200]`."""
        place = self.files.places[name]
        return Slice(self, place, self.dimensions[name])

    def stored(self, name: str) -> Any:
        """One of their tensors, unread."""
        file = self.files.entries[name].file
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt", device="cpu")
        return self._open[file].get_slice(name)


class Slice:
    """A tensor of ours that lies in files of theirs."""

    def __init__(self, weights: OpenWeights, place: Place, shape: tuple[int, ...]) -> None:
        self._weights, self._place, self.shape = weights, place, shape

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Tensor:
        first, *rest = index if isinstance(index, tuple) else (index,)
        if self._place.stacked:
            names = self._place.names[first]
            inner = tuple(rest) or (slice(None),)
            return torch.stack([self._weights.stored(name)[inner] for name in names])
        stored = self._weights.stored(self._place.names[0])
        if self._place.rows is None:
            return stored[(first, *rest)]
        begin, end = self._place.rows
        start, stop, step = (rest[0] if rest else slice(None)).indices(end - begin)
        return stored[(first, slice(begin + start, begin + stop, step), *rest[1:])]
