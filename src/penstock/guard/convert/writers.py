"""Writers of a checkpoint's tensors in other formats: safetensors or torch.

Only one tensor is in memory at a time, if the format allows it. The file is written under another
name and renamed, so a reader sees all of it or nothing.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.files import refuse_existing, sync
from penstock.guard.format.file_plan import torch_dtype
from penstock.guard.format.index import TensorEntry
from penstock.guard.format.local_file import DTYPES
from penstock.guard.format.published import StoredCheckpoint
from penstock.guard.format.reader import IndexReader

MODEL = "model/"
Progress = Callable[[int], None]  # bytes that were written since the last call


@dataclass(frozen=True)
class TensorInfo:
    """Type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class TensorSource(Protocol):
    """Named tensors that can be read one at a time."""

    @property
    def about(self) -> dict[str, Any]:
        """A few facts that go with the tensors."""

    def tensors(self) -> dict[str, TensorInfo]: ...
    def read(self, name: str) -> Tensor: ...


class RunCheckpoint:
    """A checkpoint of a run, read through its index: nothing is unpickled."""

    def __init__(self, found: StoredCheckpoint) -> None:
        found.check_format()
        self.checkpoint, self.index = found, found.index()
        self._reader = IndexReader(found.path, self.index)

    @property
    def about(self) -> dict[str, Any]:
        scalars = self.checkpoint.scalars
        return {name: scalars[name] for name in ("step", "tokens", "penstock") if name in scalars}

    def tensors(self) -> dict[str, TensorInfo]:
        return {n: TensorInfo(torch_dtype(e.dtype), e.shape) for n, e in self.index.tensors.items()}

    def read(self, name: str) -> Tensor:
        return assemble_tensor(self._reader, self.index.tensors[name])


def assemble_tensor(reader: IndexReader, entry: TensorEntry) -> Tensor:
    """Assemble a tensor from its chunks; a single chunk is returned as it is in its file."""
    if len(entry.chunks) == 1:
        return reader.saved(entry, entry.chunks[0])
    made = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype))
    for chunk in entry.chunks:
        box = made
        for dimension, (at, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
            box = box.narrow(dimension, at, size)
        box.copy_(reader.saved(entry, chunk))
    return made


def write_safetensors(
    source: TensorSource, out: Path, moments: bool, progress: Progress, force: bool = False
) -> int:
    """Write weights by name, with `moments` also `optimizer/NAME/KEY`; return the bytes written."""
    chosen = _chosen(source, moments)
    about: dict[str, Any] = {"__metadata__": {k: str(v) for k, v in source.about.items()}}
    end = 0
    # Wide types first: all stay aligned, with no gaps between them, which the format forbids.
    order = sorted(chosen, key=lambda name: (-chosen[name][1].dtype.itemsize, name))
    for name in order:
        _, one = chosen[name]
        if one.dtype not in DTYPES:
            raise PenstockError(f"{name}: safetensors has no {one.dtype}; write to a .pt file")
        place = {"data_offsets": [end, end + one.bytes]}
        about[name] = {"dtype": DTYPES[one.dtype], "shape": list(one.shape)} | place
        end += one.bytes
    text = json.dumps(about).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with _aside(out, force) as aside, aside.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            tensor = source.read(chosen[name][0]).contiguous()
            file.write(tensor.flatten().view(torch.uint8).numpy().data)
            progress(tensor.nbytes)
    return 8 + len(text) + end


def write_torch(
    source: TensorSource, out: Path, moments: bool, progress: Progress, force: bool = False
) -> int:
    """Write `{"model": …, "optimizer": …, "about": …}`, for `torch.load(…, weights_only=True)`."""
    made: dict[str, Any] = {"model": {}, "about": dict(source.about)}
    for name, (key, one) in _chosen(source, moments).items():
        part = "optimizer" if name.startswith("optimizer/") else "model"
        # A copy: a view of a file's bytes would be saved with all of the file.
        made.setdefault(part, {})[name.removeprefix("optimizer/")] = source.read(key).clone()
        progress(one.bytes)
    with _aside(out, force) as aside:
        torch.save(made, aside)
    return out.stat().st_size


def _chosen(source: TensorSource, moments: bool) -> dict[str, tuple[str, TensorInfo]]:
    """Return the chosen tensors by new name, with their old names."""
    found = {
        name.removeprefix(MODEL): (name, one)
        for name, one in source.tensors().items()
        if moments or not name.startswith("optimizer/")
    }
    if not found:
        raise PenstockError("there is no tensor in it: nothing is written")
    return found


@contextmanager
def _aside(out: Path, force: bool) -> Iterator[Path]:
    """Yield a temporary path that becomes `out`; `force` replaces an existing file."""
    refuse_existing(out, force)
    aside = out.with_name(f".{out.name}.writing")
    try:
        yield aside
        sync(aside)
        aside.rename(out)
        sync(out.parent)
    except OSError as error:
        raise PenstockError(
            f"{out}: cannot be written: {error.strerror or error}; name another place"
        ) from error
    finally:
        aside.unlink(missing_ok=True)
