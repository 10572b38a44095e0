"""Plan of a checkpoint's files: which rank writes which part of which tensor.

The plan is torch DCP's own, turned into an index of byte offsets. A tensor that several ranks hold
is written by one of them, and the files of the ranks get about the same size.
"""

import dataclasses
import json
import pickle
import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.tensor import DTensor

from penstock.guard.format.index import INDEX, Chunk, Index, TensorEntry, state_file_name
from penstock.guard.format.published import SCALARS
from penstock.guard.format.skeleton import ALIGNMENT, archive_skeleton

METADATA = "state/.metadata"
DCP_VERSION = "1.0.0"


class RankGroup(Protocol):
    """The ranks that make a checkpoint together."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def host_group(self) -> Any: ...
    def gather(self, value: Any) -> list[Any]: ...
    def broadcast(self, value: Any) -> Any: ...


@dataclass(frozen=True)
class FilePlan:
    """The file and byte offset of every chunk. `metadata` is torch's form of it; rank 0 writes
    it."""

    index: Index
    content: bytes  # of the index, as written
    metadata: bytes

    def shared_files(self, scalars: dict[str, Any]) -> dict[str, bytes]:
        """Return the files that are the same for all ranks; one rank writes them."""
        return {
            INDEX: self.content,
            METADATA: self.metadata,
            SCALARS: json.dumps(scalars, indent=1).encode(),
        }


def plan_files(state: dict[str, Tensor], world: RankGroup) -> FilePlan:
    """Plan the files of a checkpoint; all ranks call it together.

    The plan depends on shapes and layout only, so it holds for all steps of a run.
    """
    planner = DefaultSavePlanner()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's about its own internals
        planner.set_up_planner(state, StorageMeta(), world.rank == 0)
        described = world.gather(
            [_describe_item(item) for item in planner.create_local_plan().items]
        )
        plans = [_rank_plan([_rebuild_item(*one) for one in items]) for items in described]
        made = _lay_out_files(planner, plans) if world.rank == 0 else None
    content, metadata = world.broadcast(made)
    return FilePlan(Index.from_bytes(content), content, metadata)


def _describe_item(item: WriteItem) -> tuple[Any, ...]:
    """Return what other ranks need to know about a part that this rank would write."""
    about, at = item.tensor_data, item.index
    assert about is not None, f"{at.fqn}: only tensors are saved"
    dtype = str(about.properties.dtype).removeprefix("torch.")
    offset = None if at.offset is None else tuple(at.offset)
    chunk = (tuple(about.chunk.offsets), tuple(about.chunk.sizes))
    return (at.fqn, offset, at.index, item.type.name, dtype, tuple(about.size), *chunk)


def _rebuild_item(
    name: str,
    offset: tuple[int, ...] | None,
    index: int | None,
    kind: str,
    dtype: str,
    size: tuple[int, ...],
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
) -> WriteItem:
    """Rebuild torch's item from what `_describe_item` returned."""
    at = MetadataIndex(name, None if offset is None else torch.Size(offset), index)
    chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
    properties = TensorProperties(dtype=torch_dtype(dtype))
    about = TensorWriteData(chunk, properties, torch.Size(size))
    return WriteItem(at, WriteItemType[kind], tensor_data=about)


def _rank_plan(items: list[WriteItem]) -> SavePlan:
    """Put items into torch's plan of one rank; their names are flat already."""
    return SavePlan(items, planner_data={item.index.fqn: (item.index.fqn,) for item in items})


def merge_plans(plans: list[SavePlan]) -> FilePlan:
    """Return the file plan for given plans of ranks; the ranks need not exist."""
    content, metadata = _lay_out_files(DefaultSavePlanner(), plans)
    return FilePlan(Index.from_bytes(content), content, metadata)


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch type with this name; raises ValueError for an unknown name."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no type of torch {torch.__version__}")
    return found


def _lay_out_files(planner: DefaultSavePlanner, plans: list[SavePlan]) -> tuple[bytes, bytes]:
    """Assign every item its place in a file; return the index and torch's metadata as bytes."""
    shared, metadata = planner.create_global_plan(plans)
    chunks: dict[str, list[Chunk]] = {}
    stored: dict[MetadataIndex, _StorageInfo] = {}
    files: dict[str, int] = {}
    for rank, plan in enumerate(shared):
        file, end = state_file_name(rank), 0
        for item in plan.items:
            chunk, start, length = _place_item(item, file, end)
            chunks.setdefault(item.index.fqn, []).append(chunk)
            stored[item.index] = _StorageInfo(file.removeprefix("state/"), start, length)
            end = start + length
        files[file] = max(end, ALIGNMENT)  # a file without bytes cannot be mapped
    tensors = {}
    for name, held in chunks.items():
        about = metadata.state_dict_metadata[name]
        dtype = str(about.properties.dtype).removeprefix("torch.")
        tensors[name] = TensorEntry(dtype, tuple(about.size), tuple(held))
    return Index(tensors, files).to_bytes(), _pickle_metadata(metadata, stored)


def _place_item(item: WriteItem, file: str, end: int) -> tuple[Chunk, int, int]:
    """Return the chunk, and the first byte and the length of torch's archive around it."""
    about = item.tensor_data
    assert about is not None, f"{item.index.fqn}: only tensors are saved"
    sizes = tuple(about.chunk.sizes)
    bones = archive_skeleton(sizes, about.properties.dtype)
    start = -(-end // ALIGNMENT) * ALIGNMENT
    at = start + len(bones.head)
    return Chunk(tuple(about.chunk.offsets), sizes, file, at), start, bones.length


def _pickle_metadata(metadata: Metadata, stored: dict[MetadataIndex, _StorageInfo]) -> bytes:
    found = dataclasses.replace(metadata, storage_data=stored, storage_meta=StorageMeta())
    if hasattr(found, "version"):
        found.version = DCP_VERSION
    return pickle.dumps(found)
