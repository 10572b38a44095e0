"""Saving and loading checkpoints while the caller waits; `published.py` describes the format.

`save` returns when everything is on disk. A run saves through `saver.py` instead, in the
background, with the same files.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from blake3 import blake3
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from penstock.files import sync
from penstock.guard.format.file_names import FileTable, plain_path
from penstock.guard.format.file_plan import METADATA, FilePlan, RankGroup, plan_files
from penstock.guard.format.index import INDEX
from penstock.guard.format.local_file import local_file_name, read_local
from penstock.guard.format.manifest import MANIFEST, manifest_bytes, manifest_fields
from penstock.guard.format.published import SCALARS, Checkpoint, file_entry, folder_name, hash_file
from penstock.guard.format.reader import IndexReader
from penstock.guard.save.staging import PendingCopies, RankFiles
from penstock.guard.tiers.stores import DiskStore
from penstock.untrusted import hash_json


def save(
    folder: Path,
    step: int,
    state: dict[str, Tensor],
    local_state: dict[str, Tensor],
    scalars: dict[str, Any],
    world: RankGroup,
    run: str = "",
) -> Checkpoint:
    """Write, hash and publish a checkpoint; all ranks together. Returns when it is on disk.

    `run` is the identity of the run, if the checkpoint belongs to one.
    """
    disk, final = DiskStore(folder), folder / folder_name(step)
    if world.broadcast((final / MANIFEST).is_file()):
        return Checkpoint(final)  # the same step of the same run: nothing to add
    if world.rank == 0:
        disk.begin(step)
    drawing = plan_files(state, world)  # nobody writes before the folder is clean
    own = RankFiles(disk.aside(step), drawing, world.rank)
    PendingCopies(own.copies(state, local_state))
    names = own.names
    own.close()
    files: FileTable = {}
    for part in world.gather({name: _sealed(disk.aside(step) / name) for name in names}):
        files |= part
    if world.rank == 0:
        for name, content in shared_files(drawing, scalars).items():
            disk.put(step, name, content)
            files[name] = file_entry(content)
        disk.publish(step, manifest_bytes(step, files, **manifest_fields(run, scalars)))
    world.gather(None)
    return Checkpoint(final)


def shared_files(drawing: FilePlan, scalars: dict[str, Any]) -> dict[str, bytes]:
    """Return the files of a checkpoint that are the same for all ranks; one rank writes them."""
    return {
        INDEX: drawing.content,
        METADATA: drawing.metadata,
        SCALARS: json.dumps(scalars, indent=1).encode(),
    }


def load(checkpoint: Checkpoint, state: dict[str, Tensor], world: RankGroup | None) -> None:
    """Load a checkpoint of any layout into the tensors of `state`.

    Each rank reads its own parts. torch's DCP would exchange plans between ranks as pickles; here
    the ranks only tell each other whether all of them succeeded.
    """
    checkpoint.check_format()
    try:
        index = checkpoint.index()
    except ValueError as error:
        raise OSError(f"{checkpoint.path}: {error}") from None
    reader = IndexReader(checkpoint.path, index)
    problem, cause = "", None
    with warnings.catch_warnings():
        # torch warns about its own internals here (TypedStorage, a planner without a group).
        warnings.simplefilter("ignore")
        try:
            dcp.load(state, storage_reader=reader, no_dist=True)
        except CheckpointException as error:  # no `Exception`: it would pass all who look for one
            problem, cause = "; ".join(str(raised) for raised, _ in error.failures.values()), error
    problems = world.gather(problem) if world is not None else [problem]
    if why := "; ".join(f"rank {rank}: {one}" for rank, one in enumerate(problems) if one):
        raise OSError(f"{checkpoint.path}: {why}") from cause


def load_local(checkpoint: Checkpoint, rank: int) -> dict[str, Tensor]:
    """Load the replica-local state of a rank."""
    return read_local(plain_path(checkpoint.path, local_file_name(rank)))


def weights_hash(weights: dict[str, Tensor], world: RankGroup | None, hashing: bool = True) -> str:
    """Return one hash of the full weights: equal weights have equal hashes in any layout.

    All ranks must call it, each with the weights that it holds. Ranks with `hashing` false only
    contribute their shards.
    """
    own = {}
    for name, param in sorted(weights.items()):
        whole = param.full_tensor() if hasattr(param, "full_tensor") else param
        if not hashing:
            continue
        digest = blake3(f"{whole.dtype} {tuple(whole.shape)}\n".encode())
        digest.update(whole.detach().cpu().flatten().view(torch.uint8).numpy())
        own[name] = digest.hexdigest()
    every_own = world.gather(own) if world else [own]
    return hash_json({name: found for part in every_own for name, found in part.items()})


def _sealed(path: Path) -> dict[str, Any]:
    """Return size and hash of a file, which is on disk when it returns."""
    sync(path)
    return {"bytes": path.stat().st_size, "blake3": hash_file(path)}
