"""Tensor reader: torch DCP's load over our own index. Any layout reads any other, without pickles.

DCP's planner cuts every requested tensor into boxes of the saved chunks; this reader returns those
boxes as raw bytes.
"""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from penstock.guard.format.file_names import plain_path
from penstock.guard.format.file_plan import torch_dtype
from penstock.guard.format.index import Chunk, Index, TensorEntry
from penstock.guard.format.mapped_file import map_read_only


class IndexReader(StorageReader):
    """A DCP storage reader that finds tensors through `index.json`."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder, self.index = folder, index
        self._chunks: dict[MetadataIndex, tuple[TensorEntry, Chunk]] = {
            MetadataIndex(name, chunk.offsets): (entry, chunk)
            for name, entry in index.tensors.items()
            for chunk in entry.chunks
        }
        self._open: dict[str, Tensor] = {}

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return Metadata(
            {name: _storage(entry) for name, entry in self.index.tensors.items()},
            planner_data={name: (name,) for name in self.index.tensors},
            storage_data={},
        )

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for wanted in plan.items:
            entry, chunk = self._chunks[wanted.storage_index]
            found = self.saved(entry, chunk)
            for dimension, (start, length) in enumerate(
                zip(wanted.storage_offsets, wanted.lengths, strict=True)
            ):
                found = found.narrow(dimension, start, length)
            target = planner.resolve_tensor(wanted).detach()
            target.copy_(found)
            planner.commit_tensor(wanted, target)
        self._open.clear()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def saved(self, entry: TensorEntry, chunk: Chunk) -> Tensor:
        """Return a chunk as it is stored in its file."""
        if chunk.file not in self._open:
            self._open[chunk.file] = map_read_only(plain_path(self.folder, chunk.file))
        dtype = torch_dtype(entry.dtype)
        size = dtype.itemsize
        for length in chunk.sizes:
            size *= length
        if not size:
            return torch.empty(chunk.sizes, dtype=dtype)
        held = self._open[chunk.file][chunk.at : chunk.at + size]
        if len(held) != size:
            raise OSError(f"{self.folder / chunk.file}: a chunk of {size} bytes is not all in it")
        return held.view(dtype).view(chunk.sizes)

    # What DCP's interface asks for and files with an index have no use for.
    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None: ...
    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any
    ) -> None: ...
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return True


def _storage(entry: TensorEntry) -> TensorStorageMetadata:
    boxes = [ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in entry.chunks]
    properties = TensorProperties(dtype=torch_dtype(entry.dtype))
    return TensorStorageMetadata(properties, torch.Size(entry.shape), boxes)
