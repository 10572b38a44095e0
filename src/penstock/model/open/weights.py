"""The weights of an open model by our names, read one tensor at a time or in part.

The files are memory-mapped: only what is asked for is read, so that a rank can load its part of a
model that is larger than its machine.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.model.initialize import copy_to_shard
from penstock.model.open.files import OpenFiles, check_open_files
from penstock.model.open.names import TensorLocation, tensor_shapes


class OpenWeights:
    """Weights of a folder whose files passed `check_open_files`."""

    def __init__(self, folder: Path | str) -> None:
        self.files: OpenFiles = check_open_files(Path(folder))
        self.shape, self.family = self.files.shape, self.files.family
        self.dimensions = tensor_shapes(self.shape)
        self._open: dict[Path, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.dimensions

    def read(self, name: str) -> Tensor:
        """Return a whole tensor, in the type it is stored in."""
        return self.slice(name)[:]

    def slice(self, name: str) -> "TensorSlice":
        """Return a tensor that is read when it is indexed: `.slice("head.weight")[100:200]`."""
        location = self.files.locations[name]
        return TensorSlice(self, location, self.dimensions[name])

    def stored_slice(self, name: str) -> Any:
        """Return one of their tensors, unread."""
        file = self.files.entries[name].file
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt", device="cpu")
        return self._open[file].get_slice(name)


class TensorSlice:
    """One of our tensors, read from their files when it is indexed."""

    def __init__(
        self, weights: OpenWeights, location: TensorLocation, shape: tuple[int, ...]
    ) -> None:
        self._weights, self._location, self.shape = weights, location, shape

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Tensor:
        first, *rest = index if isinstance(index, tuple) else (index,)
        if self._location.stacked:
            names = self._location.names[first]
            inner = tuple(rest) or (slice(None),)
            return torch.stack([self._weights.stored_slice(name)[inner] for name in names])
        stored = self._weights.stored_slice(self._location.names[0])
        place = self._location.index((first, *rest))
        found = stored[tuple(slice(one.start, one.stop) for one in place)]  # it knows no steps
        found = found[tuple(slice(None, None, one.step) for one in place)]
        return found.mT if self._location.transposed else found


def load_open_weights(model: nn.Module, weights: OpenWeights, device: torch.device) -> None:
    """Allocate a model that has no memory yet, and load all its weights."""
    model.to_empty(device=device)
    copy_open_tensors(
        {**dict(model.named_parameters()), **dict(model.named_buffers())}, weights, device
    )


@torch.no_grad()
def copy_open_tensors(
    ours: Mapping[str, Tensor], weights: OpenWeights, device: torch.device
) -> None:
    """Copy each parameter and buffer from the tensor of its name, cast to its own type.

    Every rank reads the whole tensor and keeps its part: one tensor at a time, and nothing is sent.
    A buffer that the family does not store (counts, the balance of experts) begins at zero.
    """
    for name, tensor in ours.items():
        if name in weights:
            if weights.dimensions[name] != tuple(tensor.shape):
                raise PenstockError(
                    f"{weights.files.folder}: {name} is {weights.dimensions[name]}, and the "
                    f"model's is {tuple(tensor.shape)}"
                )
            copy_to_shard(tensor, weights.read(name).to(device, tensor.dtype))
        elif not isinstance(tensor, nn.Parameter):
            tensor.zero_()
        else:
            raise PenstockError(
                f"{weights.files.folder}: the model has {name}, which {weights.family} has not"
            )
