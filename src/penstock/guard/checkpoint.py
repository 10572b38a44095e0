"""Checkpoints: written aside, hashed, published by one rename; checked before they are believed.

A checkpoint is a folder `step-00000250/`:
  state/          reshardable: `model/NAME`, `optimizer/NAME/KEY` (torch DCP, sharded)
  local-r*.pt     replica-local: error feedback and the like; used only by the same layout
  scalars.json    position, seed, schedule, fingerprint, layout
  manifest.json   BLAKE3 and size of every file above, and its own; written last
While it is being written it is called `.writing-…`. Without a good manifest it does not exist.
"""

import json
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
from blake3 import blake3
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from penstock.errors import RunFailed
from penstock.files import sync, write_synced
from penstock.guard.published import MANIFEST, published, step_of

FORMAT = 2  # 1 had the tensors under names that followed torch's optimizers


class Ranks(Protocol):
    """What a checkpoint needs of the ranks that make it together."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def host_group(self) -> torch.distributed.ProcessGroup | None: ...
    def gather(self, value: Any) -> list[Any]: ...
    def broadcast(self, value: Any) -> Any: ...


@dataclass(frozen=True)
class Checkpoint:
    path: Path

    @property
    def step(self) -> int:
        return step_of(self.path)

    @property
    def scalars(self) -> dict[str, Any]:
        return json.loads((self.path / "scalars.json").read_text())

    @property
    def size_bytes(self) -> int:
        return sum(entry["bytes"] for entry in self.manifest().values())

    def manifest(self) -> dict[str, Any]:
        """Size and hash of each file; raises when it is not what was written."""
        found = json.loads((self.path / MANIFEST).read_text())
        if found["blake3"] != _hash_of(found["files"]):
            raise ValueError("content does not match its hash")
        return found["files"]

    def refuse_other_format(self) -> None:
        found = json.loads((self.path / MANIFEST).read_text()).get("format")
        if found != FORMAT:
            raise RunFailed(
                f"{self.path}: a checkpoint in format {found}, and this version of Penstock reads "
                f"format {FORMAT}; go on with the version that wrote it, or begin again with "
                "`--fresh`"
            )

    def damage(self, part: int = 0, parts: int = 1, only: str | None = None) -> list[str]:
        """What is wrong with the files of this checkpoint, or of them with the one called `only`;
        ranks can share the reading."""
        try:
            files = self.manifest()
        except (OSError, ValueError, KeyError, TypeError) as error:
            return [f"{MANIFEST}: not readable as one: {type(error).__name__}: {error}"]
        found = []
        for name in sorted(files if only is None else [only])[part::parts]:
            path, entry = self.path / name, files.get(name)
            if entry is None or not path.is_file():
                found.append(f"{name}: missing")
            elif path.stat().st_size != entry["bytes"]:
                found.append(f"{name}: {path.stat().st_size} bytes, not {entry['bytes']}")
            elif hash_file(path) != entry["blake3"]:
                found.append(f"{name}: content does not match its hash")
        return found


def every(folder: Path) -> list[Checkpoint]:
    """All published checkpoints, newest first."""
    return [Checkpoint(path) for path in published(folder)]


def save(
    folder: Path,
    step: int,
    state: dict[str, Tensor],
    local_state: dict[str, Tensor],
    scalars: dict[str, Any],
    world: Ranks,
) -> Checkpoint:
    """All ranks together: write, hash, publish. Returns when the checkpoint is on disk."""
    final = folder / f"step-{step:08d}"
    if world.broadcast((final / MANIFEST).is_file()):
        return Checkpoint(final)  # the same step of the same run: nothing to add
    aside = folder / f".writing-{step:08d}"
    if world.rank == 0:
        _remove(folder, "writing")  # left by a save that was killed, of this or another step
        (aside / "state").mkdir(parents=True)
    world.gather(None)  # nobody writes before the folder is clean
    _dcp(dcp.save, state, aside / "state", world)
    if local_state:
        torch.save(local_state, aside / f"local-r{world.rank:05d}.pt")
    if world.rank == 0:
        (aside / "scalars.json").write_text(json.dumps(scalars, indent=1))
    world.gather(None)  # every file is complete
    # Rank 0 lists: on a network file system ranks may not see the same folder at the same time.
    names = world.broadcast(_files_in(aside))
    files: dict[str, Any] = {}
    for part in world.gather(_seal(aside, names[world.rank :: world.ranks])):
        files |= part
    if world.rank == 0:
        manifest = {"format": FORMAT, "step": step, "blake3": _hash_of(files), "files": files}
        _publish(aside, final, manifest)
    world.gather(None)
    return Checkpoint(final)


def load(checkpoint: Checkpoint, state: dict[str, Tensor], world: Ranks | None) -> None:
    """Into the tensors of `state`: of any layout into this one."""
    checkpoint.refuse_other_format()
    _dcp(dcp.load, state, checkpoint.path / "state", world)


def load_local(checkpoint: Checkpoint, rank: int) -> dict[str, torch.Tensor]:
    path = checkpoint.path / f"local-r{rank:05d}.pt"
    return torch.load(path, weights_only=True) if path.is_file() else {}


def newest_good(folder: Path, world: Ranks) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint whose every hash is right, and what was wrong with newer ones."""
    rejected: list[str] = []
    for checkpoint in map(Checkpoint, world.broadcast([c.path for c in every(folder)])):
        found = world.gather(checkpoint.damage(world.rank, world.ranks))
        damage = [problem for part in found for problem in part]
        if not damage:
            return checkpoint, rejected
        rejected.append(f"{checkpoint.path.name}: {'; '.join(damage)}")
        if world.rank == 0:  # out of the way of the good one that will be saved at the same step
            _put_aside(checkpoint.path)
    if rejected:
        raise RunFailed(
            f"no checkpoint in {folder} is whole:\n  " + "\n  ".join(rejected) + "\n"
            "They were renamed to .damaged-*. Restore one from a copy, or start again to train "
            "from the first step."
        )
    return None, []


def retain(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep`. Renamed first, so that a half-deleted one is not seen."""
    _remove(folder, "deleting")  # left by a deletion that was killed
    for checkpoint in every(folder)[keep:]:
        checkpoint.path.rename(folder / f".deleting-{checkpoint.step:08d}")
    _remove(folder, "deleting")


def hash_file(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


def weights_hash(weights: dict[str, Tensor], world: Ranks | None, hashing: bool = True) -> str:
    """One hash of the full weights: equal for equal weights, whatever the layout they lie in.

    All ranks must call it, each with the weights that it holds; those that are not `hashing` only
    lend their shards.
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
    return _hash_of({name: found for part in every_own for name, found in part.items()})


def _dcp(action: Any, state: dict[str, Tensor], path: Path, world: Ranks | None) -> None:
    with warnings.catch_warnings():
        # torch warns about its own internals here (TypedStorage, a planner without a group).
        warnings.simplefilter("ignore")
        try:
            if world is None or world.ranks == 1:
                action(state, checkpoint_id=str(path), no_dist=True)
            else:
                action(state, checkpoint_id=str(path), process_group=world.host_group)
        except CheckpointException as error:  # no `Exception`: it would pass all who look for one
            why = "; ".join(f"rank {r}: {raised[0]}" for r, raised in error.failures.items())
            raise OSError(f"{path}: {why}") from error


def _hash_of(files: dict[str, Any]) -> str:
    return blake3(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _remove(folder: Path, what: str) -> None:
    for path in folder.glob(f".{what}-*"):
        shutil.rmtree(path, ignore_errors=True)  # what cannot go now goes next time


def _put_aside(path: Path) -> None:
    """`step-…` becomes `.damaged-…`. Of one step only the last is kept: disks are finite."""
    aside = path.with_name(path.name.replace("step-", ".damaged-"))
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def _files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def _seal(folder: Path, names: list[str]) -> dict[str, Any]:
    """Size and hash of some files, which are on disk when it returns."""
    sealed = {}
    for name in names:
        sync(folder / name)
        size = (folder / name).stat().st_size
        sealed[name] = {"blake3": hash_file(folder / name), "bytes": size}
    return sealed


def _publish(aside: Path, final: Path, manifest: dict[str, Any]) -> None:
    sync(aside / "state")
    write_synced(aside / MANIFEST, json.dumps(manifest, indent=1).encode())
    sync(aside)
    if final.exists():  # it has no manifest, so it is no checkpoint, but it has the name of one
        _put_aside(final)
    aside.rename(final)
    sync(final.parent)
