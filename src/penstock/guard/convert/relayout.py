"""A checkpoint rewritten into the files of another number of ranks.

A run reads any layout's files into its own, so this is never needed to resume. It is for other
readers that want one file each, or fewer and larger files to move.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from penstock.errors import PenstockError
from penstock.files import refuse_existing
from penstock.guard.convert.writers import RunCheckpoint
from penstock.guard.format.file_names import FileTable
from penstock.guard.format.file_plan import merge_plans
from penstock.guard.format.manifest import manifest_bytes, manifest_fields
from penstock.guard.format.published import file_entry, folder_name, hash_file
from penstock.guard.save.staging import PendingCopies, RankFiles
from penstock.guard.tiers.stores import DiskStore
from penstock.plan.job.layout import Layout

Cut = tuple[int, int]  # first row, rows


def rewrite_for_ranks(
    source: RunCheckpoint,
    out: Path,
    ranks: int,
    progress: Callable[[int], None],
    force: bool = False,
) -> int:
    """Write a checkpoint as `out/step-N` for `ranks` ranks; return the bytes written.

    Replica-local state is left out. With `force` the folder may have files; a checkpoint of the
    same step is replaced.
    """
    refuse_existing(out, force, "write into it")
    disk, step = DiskStore(out), source.checkpoint.step
    if os.path.realpath(out / folder_name(step)) == os.path.realpath(source.checkpoint.path):
        raise PenstockError(f"{out} holds the checkpoint that is converted; name another folder")
    plans = [_plan(source, rank, ranks) for rank in range(ranks)]
    file_plan = merge_plans(plans)
    disk.begin(step)
    files: FileTable = {}
    for rank in range(ranks):
        own = RankFiles(disk.aside(step), file_plan, rank)
        held = {item.index.fqn: _part(source, item) for item in plans[rank].items}
        PendingCopies(own.copies(held, {}))
        progress(sum(tensor.nbytes for tensor in held.values()))
        for name in own.names:
            path = disk.aside(step) / name
            files[name] = {"bytes": path.stat().st_size, "blake3": hash_file(path)}
        own.close()
    layout = Layout(
        shard=ranks, microbatch=source.checkpoint.scalars["layout"].get("microbatch", 1)
    )
    scalars = source.checkpoint.scalars | {"layout": layout.to_json()}
    for name, content in file_plan.shared_files(scalars).items():
        disk.put(step, name, content)
        files[name] = file_entry(content)
    if step in disk.steps():
        disk.delete(step)
    about = source.checkpoint.read_manifest()
    manifest = manifest_fields(about.run, scalars) | {
        "settings": about.settings,
        "origin": about.origin,
    }
    disk.publish(step, manifest_bytes(step, files, **manifest))
    return sum(entry["bytes"] for entry in files.values())


def rows_of_rank(shape: tuple[int, ...], rank: int, ranks: int) -> Cut | None:
    """Return a rank's rows as torch shards them; None for no rows. Scalars go to the first rank."""
    if not shape:
        return (0, 1) if rank == 0 else None
    each = -(-shape[0] // ranks)
    first = rank * each
    rows = min(each, shape[0] - first)
    return (first, rows) if rows > 0 or (rank == 0 and not shape[0]) else None


def _plan(source: RunCheckpoint, rank: int, ranks: int) -> SavePlan:
    items = []
    for name, one in source.tensors().items():
        own = rows_of_rank(one.shape, rank, ranks)
        if own is not None:
            offsets, sizes = _box(one.shape, own)
            data = TensorWriteData(
                ChunkStorageMetadata(offsets, sizes),
                TensorProperties(dtype=one.dtype),
                torch.Size(one.shape),
            )
            items.append(WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, None, data))
    paths: dict[str, Any] = {item.index.fqn: (item.index.fqn,) for item in items}
    return SavePlan(items, planner_data=paths)


def _box(shape: tuple[int, ...], own: Cut) -> tuple[torch.Size, torch.Size]:
    if not shape:
        return torch.Size(), torch.Size()
    first, rows = own
    return torch.Size((first, *[0] * (len(shape) - 1))), torch.Size((rows, *shape[1:]))


def _part(source: RunCheckpoint, item: WriteItem) -> Tensor:
    assert item.tensor_data is not None
    tensor, chunk = source.read(item.index.fqn), item.tensor_data.chunk
    return tensor.narrow(0, chunk.offsets[0], chunk.sizes[0]) if chunk.offsets else tensor
