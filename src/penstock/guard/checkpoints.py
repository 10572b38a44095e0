"""Checkpoints of a run: save, load, list, verify. Start reading here.

    checkpoints.save(folder, step, state, local_state, scalars, world)  # on disk when it returns
    saver.stage(step, state, local_state, scalars, durable=True)        # in the background: Saver
    found = checkpoints.search_of_run(folder, run, world).newest_good()  # every hash verified
    checkpoints.load(found.checkpoint, state, world)                    # from any layout
    listed, unreachable = checkpoints.list_checkpoints(folder)          # in every tier
    problems = checkpoints.verify(listed[0])                            # every byte read

The rest of `guard/` is below this file: `format/` is a checkpoint's bytes on disk, `tiers/` the
places that hold checkpoints (memory, disk, object store) and the search over them, `save/` the
background saver. `convert/` is above it. Nothing is ever unpickled.

Only `save`, `load` and `load_local` import torch, so that displays can use this file too.
"""

import contextlib
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, RunFailed, system_words
from penstock.files import sync
from penstock.guard.format.file_names import FileTable, plain_path
from penstock.guard.format.manifest import MANIFEST, manifest_bytes, manifest_fields
from penstock.guard.format.published import (
    StoredCheckpoint,
    best_first,
    file_entry,
    folder_name,
    hash_file,
    newest_path,
    published_checkpoints,
)
from penstock.guard.tiers.checkpoint_files import Progress
from penstock.guard.tiers.identity import IdentityCopies
from penstock.guard.tiers.journal_facts import (
    began_and_never_saved,
    forked_step,
    recorded_manifests,
    recorded_step,
)
from penstock.guard.tiers.listing import (
    TIERS,
    ListedCheckpoint,
    describe,
    find_damage,
    in_durable_store,
    in_memory,
    mark_best,
    on_disk,
    read_index,
)
from penstock.guard.tiers.locations import memory_folders, stores_of_run
from penstock.guard.tiers.ownership import Owner
from penstock.guard.tiers.search import CheckpointSearch, SearchResult, SingleProcess
from penstock.guard.tiers.slots import MemoryCheckpoint, sealed_slots
from penstock.guard.tiers.stores import CheckpointStore, DiskStore
from penstock.run.fingerprint import settings_fingerprint
from penstock.run.folder import RunFolder
from penstock.run.load import load as load_run
from penstock.run.schema.run import Run

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.guard.format.file_plan import RankGroup

__all__ = [
    "TIERS",
    "CheckpointSearch",
    "ListedCheckpoint",
    "SearchResult",
    "SingleProcess",
    "StoredCheckpoint",
    "best_first",
    "create_identity",
    "list_checkpoints",
    "load",
    "load_local",
    "newest_in_memory",
    "newest_path",
    "problems_of",
    "published_checkpoints",
    "read_index",
    "save",
    "search_of_run",
    "select",
    "steps_for_restart",
    "verify",
]


def save(
    folder: Path,
    step: int,
    state: "dict[str, Tensor]",
    local_state: "dict[str, Tensor]",
    scalars: dict[str, Any],
    world: "RankGroup",
    run: str = "",
) -> StoredCheckpoint:
    """Write, hash and publish a checkpoint; all ranks together. Returns when it is on disk.

    `run` is the identity of the run, if the checkpoint belongs to one.
    """
    from penstock.guard.format.file_plan import plan_files
    from penstock.guard.save.staging import PendingCopies, RankFiles

    disk, final = DiskStore(folder), folder / folder_name(step)
    if world.broadcast((final / MANIFEST).is_file()):
        return StoredCheckpoint(final)  # the same step of the same run: nothing to add
    if world.rank == 0:
        disk.begin(step)
    plan = plan_files(state, world)  # nobody writes before the folder is clean
    own = RankFiles(disk.aside(step), plan, world.rank)
    PendingCopies(own.copies(state, local_state))
    names = own.names
    own.close()
    files: FileTable = {}
    for part in world.gather({name: _synced_entry(disk.aside(step) / name) for name in names}):
        files |= part
    if world.rank == 0:
        for name, content in plan.shared_files(scalars).items():
            disk.put(step, name, content)
            files[name] = file_entry(content)
        disk.publish(step, manifest_bytes(step, files, **manifest_fields(run, scalars)))
    world.gather(None)
    return StoredCheckpoint(final)


def load(
    checkpoint: StoredCheckpoint, state: "dict[str, Tensor]", world: "RankGroup | None"
) -> None:
    """Load a checkpoint of any layout into the tensors of `state`.

    Each rank reads its own parts. torch's DCP would exchange plans between ranks as pickles; here
    the ranks only tell each other whether all of them succeeded.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    from penstock.guard.format.reader import IndexReader

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


def load_local(checkpoint: StoredCheckpoint, rank: int) -> "dict[str, Tensor]":
    """Load the replica-local state of a rank."""
    from penstock.guard.format.local_file import local_file_name, read_local

    return read_local(plain_path(checkpoint.path, local_file_name(rank)))


def search_of_run(
    folder: RunFolder, run: Run, world: Any, is_host_leader: bool = True, ranks: bool = True
) -> CheckpointSearch:
    """Return the search over all tiers of a run.

    With `ranks` the identity of the run is created if it is missing; the supervisor only reads it.
    """
    stores = stores_of_run(folder, run)
    copies = _identity_copies(folder, run, stores)
    if ranks:
        identity = world.broadcast(copies.read_or_create() if world.rank == 0 else None)
    else:
        identity = copies.read()
    fast, memory_error = [], ""
    try:
        fast = memory_folders(folder)
    except OSError as error:
        memory_error = system_words(error)
    restart_hint = "`--fresh`, which keeps the old run folder aside"
    if run.cluster.nodes > 1:
        restart_hint = "another name for the run"
    return CheckpointSearch(
        fast,
        stores,
        folder.checkpoints,
        identity,
        world,
        is_host_leader,
        lambda: recorded_step(folder),
        restart_hint,
        memory_error,
        Owner(identity, run, cache(lambda: _manifests(folder)), forked_step(folder)),
        copies.notes,
    )


def steps_for_restart(folder: RunFolder, run: Run) -> list[int]:
    """Return the steps that a restart may go on from: what rotation keeps in any store, and what is
    in the memory of this host. Raises OSError if a store does not answer.
    """
    durable = [s for store in stores_of_run(folder, run) for s in store.steps()[: run.guard.keep]]
    fast = [slot.step for where in memory_folders(folder) for slot in sealed_slots(where)]
    return sorted({*durable, *fast})


def create_identity(folder: RunFolder, run: Run) -> list[str]:
    """Create the identity of a run on disk unless it has one; return what was wrong with copies.

    A launch calls this before it records anything else of the run: a run without an identity could
    not tell a checkpoint that somebody put into its folder from its own.
    """
    copies = _identity_copies(folder, run, stores_of_run(folder, run))
    copies.read_or_create()
    return copies.notes


def problems_of(folder: RunFolder, run: Run, found: StoredCheckpoint) -> list[str]:
    """Say why a checkpoint in a run folder cannot be used: damage, or another run's."""
    if damage := found.find_damage():
        return damage
    refusal = search_of_run(folder, run, SingleProcess(), ranks=False).refusal(found)
    return [refusal] if refusal else []


def newest_in_memory(folder: RunFolder, run: Run) -> MemoryCheckpoint | None:
    """Return the newest good state in the memory of this host, as a crash leaves it.

    None while the run is live: it would overwrite the slot that is being read.
    """
    if folder.running():
        return None
    tiers = search_of_run(folder, run, SingleProcess(), ranks=False)
    good = (one for one in tiers.memory() if not one.find_damage() and not tiers.refusal(one))
    return next(good, None)


def list_checkpoints(
    folder: RunFolder, elsewhere: bool = True
) -> tuple[list[ListedCheckpoint], list[str]]:
    """Return all checkpoints of a run, newest first, and the stores that could not be read.

    With `elsewhere` false the durable store is left out, for displays that refresh every second.
    """
    durable = load_run(folder.run_file).guard.durable
    ask = [lambda: in_memory(folder), lambda: on_disk(folder.checkpoints)]
    if durable and elsewhere:
        ask.append(lambda: in_durable_store(durable, folder))
    found: list[ListedCheckpoint] = []
    unreachable = []
    for tier in ask:
        try:
            found += tier()
        except OSError as error:
            unreachable.append(system_words(error))
    seen = mark_best([describe(one) for one in found])
    return sorted(seen, key=lambda one: (-one.step, TIERS.index(one.tier))), unreachable


def select(
    found: list[ListedCheckpoint],
    step: int | None = None,
    tier: str | None = None,
    unreachable: Sequence[str] = (),
) -> list[ListedCheckpoint]:
    """Return the checkpoints of a step and a tier, if given.

    Raises PenstockError if there are none, or RunFailed if a store was `unreachable`.
    """
    there = [one for one in found if not one.aside and tier in (None, one.tier)]
    chosen = [one for one in there if step in (None, one.step)]
    if not chosen:
        steps = ", ".join(str(s) for s in sorted({one.step for one in there})) or "none"
        what = "checkpoint" if step is None else f"checkpoint of step {step}"
        if unreachable:
            raise RunFailed(f"no {what} can be read: {'; '.join(unreachable)}")
        raise PenstockError(f"there is no {what}{f' in {tier}' if tier else ''}; found: {steps}")
    return chosen


def verify(one: ListedCheckpoint, progress: Progress = lambda count: None) -> list[str] | None:
    """Read every byte of a checkpoint and list what is wrong; empty if nothing is.

    None if a live run has deleted or overwritten it meanwhile.
    """
    found = list(one.problems) or find_damage(one, progress)
    return found if not found or one.files.still_there() else None


def _synced_entry(path: Path) -> dict[str, Any]:
    """Return size and hash of a file, which is on disk when it returns."""
    sync(path)
    return {"bytes": path.stat().st_size, "blake3": hash_file(path)}


def _manifests(folder: RunFolder) -> dict[int, str]:
    """Return the manifest hashes that the journal recorded; none if it cannot be read."""
    try:
        return recorded_manifests(folder)
    except OSError:
        return {}


def _identity_copies(
    folder: RunFolder, run: Run, stores: Sequence[CheckpointStore]
) -> IdentityCopies:
    """Return the copies of a run's identity.

    Every host has its own run folder; several hosts share the durable store, so that decides.
    """
    holders = stores if run.cluster.nodes > 1 else [DiskStore(folder.path), *stores]
    return IdentityCopies(holders, lambda: _remembered(folder, run, stores))


def _remembered(folder: RunFolder, run: Run, stores: Sequence[CheckpointStore]) -> str | None:
    """Return the run identity in the manifests on disk, for when every copy of it is lost.

    A manifest that the journal recorded comes first, then one with this run's settings, then the
    newest. None if the journal shows that the run has saved nothing: no checkpoint is its own then.
    The journal of one host of several may lack the saves of the others, so there it says nothing.
    """
    with contextlib.suppress(OSError):
        if run.cluster.nodes == 1 and began_and_never_saved(folder):
            return None
    said: list[tuple[bool, bool, str]] = []
    own, recorded = settings_fingerprint(run), _manifests(folder)
    for store in stores:
        if isinstance(store, DiskStore):
            with contextlib.suppress(OSError):
                for found in published_checkpoints(store.root):
                    with contextlib.suppress(OSError, ValueError):
                        about = found.read_manifest()
                        is_recorded = about.digest in recorded.values()
                        if about.run:
                            said.append((not is_recorded, about.settings != own, about.run))
    return min(said, key=lambda one: one[:2])[2] if said else None
