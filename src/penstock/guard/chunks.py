"""Which rank writes which part of which tensor: torch DCP's own plan, as an index of bytes.

Tensors that several ranks hold are written by one of them, and the ranks' files come out even.
"""

import dataclasses
import pickle
import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.tensor import DTensor

from penstock.guard.index import Chunk, Entry, Index, state_file
from penstock.guard.skeleton import ALIGNMENT, skeleton

METADATA = "state/.metadata"
DCP_VERSION = "1.0.0"


class Ranks(Protocol):
    """What a checkpoint needs of the ranks that make it together."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def host_group(self) -> Any: ...
    def gather(self, value: Any) -> list[Any]: ...
    def broadcast(self, value: Any) -> Any: ...


@dataclass(frozen=True)
class Drawing:
    """Where everything goes. `metadata` is torch's form of it, for rank 0 to write."""

    index: Index
    content: bytes  # of the index, as written
    metadata: bytes


def draw(state: dict[str, Tensor], world: Ranks) -> Drawing:
    """All ranks together; of shapes and layout only, so that it holds for all steps of a run."""
    planner = DefaultSavePlanner()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's about its own internals
        planner.set_up_planner(state, StorageMeta(), world.rank == 0)
        plans = world.gather(planner.create_local_plan())
        made = _whole(planner, plans) if world.rank == 0 else None
    content, metadata = world.broadcast(made)
    return Drawing(Index.from_bytes(content), content, metadata)


def drawn(plans: list[SavePlan]) -> Drawing:
    """Of the plans of ranks that need not exist."""
    content, metadata = _whole(DefaultSavePlanner(), plans)
    return Drawing(Index.from_bytes(content), content, metadata)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no type of torch {torch.__version__}")
    return found


def _whole(planner: DefaultSavePlanner, plans: list[SavePlan]) -> tuple[bytes, bytes]:
    shared, metadata = planner.create_global_plan(plans)
    chunks: dict[str, list[Chunk]] = {}
    stored: dict[MetadataIndex, _StorageInfo] = {}
    files: dict[str, int] = {}
    for rank, plan in enumerate(shared):
        file, end = state_file(rank), 0
        for item in plan.items:
            chunk, start, length = _placed(item, file, end)
            chunks.setdefault(item.index.fqn, []).append(chunk)
            stored[item.index] = _StorageInfo(file.removeprefix("state/"), start, length)
            end = start + length
        files[file] = max(end, ALIGNMENT)  # a file without bytes cannot be mapped
    tensors = {}
    for name, held in chunks.items():
        about = metadata.state_dict_metadata[name]
        dtype = str(about.properties.dtype).removeprefix("torch.")
        tensors[name] = Entry(dtype, tuple(about.size), tuple(held))
    return Index(tensors, files).to_bytes(), _pickled(metadata, stored)


def _placed(item: WriteItem, file: str, end: int) -> tuple[Chunk, int, int]:
    """The chunk, and the first byte and the length of torch's archive around it."""
    about = item.tensor_data
    assert about is not None, f"{item.index.fqn}: only tensors are saved"
    sizes = tuple(about.chunk.sizes)
    bones = skeleton(sizes, about.properties.dtype)
    start = -(-end // ALIGNMENT) * ALIGNMENT
    at = start + len(bones.head)
    return Chunk(tuple(about.chunk.offsets), sizes, file, at), start, bones.length


def _pickled(metadata: Metadata, stored: dict[MetadataIndex, _StorageInfo]) -> bytes:
    found = dataclasses.replace(metadata, storage_data=stored, storage_meta=StorageMeta())
    if hasattr(found, "version"):
        found.version = DCP_VERSION
    return pickle.dumps(found)
