"""Listed checkpoints: what one is in any tier, and whether it is whole. No torch.

Nothing here changes anything: a damaged checkpoint is put aside when the run resumes.
"""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.guard.format.file_names import FileTable
from penstock.guard.format.index import INDEX, Index
from penstock.guard.format.manifest import FORMAT, MANIFEST, READABLE_FORMATS, UnsupportedFormat
from penstock.guard.format.published import (
    SCALARS,
    StoredCheckpoint,
    published_checkpoints,
    validation_loss,
)
from penstock.guard.tiers.checkpoint_files import (
    CheckpointFiles,
    LocalCheckpointFiles,
    Progress,
    RemoteCheckpointFiles,
)
from penstock.guard.tiers.locations import memory_folders
from penstock.guard.tiers.slots import sealed_slots
from penstock.guard.tiers.stores import (
    DAMAGED,
    FOREIGN,
    REPLACED,
    DiskStore,
    RemoteStore,
    open_store,
)
from penstock.run.folder import RunFolder

TIERS = ("memory", "disk", "remote")  # nearest first
_ASIDE = {DAMAGED: "damaged", FOREIGN: "of another run", REPLACED: "replaced"}
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class ListedCheckpoint:
    """One checkpoint of a run in one tier."""

    tier: str
    step: int
    files: CheckpointFiles
    bytes: int = 0
    age_s: float | None = None  # unknown of what is elsewhere
    format: int | None = FORMAT
    layout: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    aside: str = ""  # why it was put out of the way, if it was, in words
    validation_loss: float | None = None  # None: this step was not evaluated
    best: bool = False  # has the lowest validation loss of all that are kept

    @property
    def name(self) -> str:
        return f"step {self.step} ({self.tier})"

    @property
    def state(self) -> str:
        if self.aside:
            return f"{self.aside}, put aside"
        if self.problems:
            return "damaged"
        if self.format not in READABLE_FORMATS:
            return f"format {self.format}"
        return "whole, best" if self.best else "whole"

    def to_json(self) -> dict[str, Any]:
        table = {n: v for n, v in vars(self).items() if n not in ("files", "problems")}
        return table | {
            "where": self.files.where,
            "state": self.state,
            "aside": bool(self.aside),
            "problems": list(self.problems),
        }


def mark_best(found: list[ListedCheckpoint]) -> list[ListedCheckpoint]:
    """Mark the step with the lowest validation loss, in every tier that has it."""
    good = [one for one in found if one.tier != "memory" and not one.problems and not one.aside]
    known = [(one.validation_loss, one.step) for one in good if one.validation_loss is not None]
    if not known:
        return found
    _, step = min(known)
    return [replace(one, best=one in good and one.step == step) for one in found]


def find_damage(one: ListedCheckpoint, progress: Progress) -> list[str]:
    """Read every byte of a checkpoint; list what is wrong."""
    try:
        files = _files(one)
    except UNREADABLE as error:
        return [f"{MANIFEST}: {type(error).__name__}: {error}"]
    found = [p for name in sorted(files) if (p := _content(one, name, files[name], progress))]
    if one.format in READABLE_FORMATS and not found:
        try:
            read_index(one)
        except UNREADABLE as error:
            return [f"{INDEX}: {error}"]
    return found


def _files(one: ListedCheckpoint) -> FileTable:
    """Return its files by its manifest, even in a format whose tensors cannot be read here."""
    try:
        return one.files.manifest().files
    except UnsupportedFormat as error:
        return error.files


def _content(one: ListedCheckpoint, name: str, entry: dict[str, Any], progress: Progress) -> str:
    try:
        same = one.files.hash(name, progress) == entry["blake3"]
    except OSError as error:
        return f"{name}: {error}"
    return "" if same else f"{name}: content does not match its hash"


def read_index(one: ListedCheckpoint) -> Index:
    """Return the index: every tensor's type, shape and location."""
    try:
        files = one.files.manifest().files
    except UnsupportedFormat as error:
        raise PenstockError(f"{one.files.where}: {error}") from None
    found = Index.from_bytes(one.files.read(INDEX))
    for name, size in found.files.items():
        if name not in files or files[name]["bytes"] != size:
            raise ValueError(f"{INDEX} names {name}, which no hash covers as it says")
    return found


def in_memory(folder: RunFolder) -> list[ListedCheckpoint]:
    """List the copies in the memory of this host."""
    return [
        ListedCheckpoint("memory", s.step, LocalCheckpointFiles(s))
        for f in memory_folders(folder)
        for s in sealed_slots(f)
    ]


def on_disk(checkpoints: Path) -> list[ListedCheckpoint]:
    """List the checkpoints in a folder, also those that were put aside."""
    whole = [
        ListedCheckpoint("disk", one.step, LocalCheckpointFiles(one))
        for one in published_checkpoints(checkpoints)
    ]
    aside = [
        ListedCheckpoint(
            "disk",
            int(path.name.split("-")[1]),
            LocalCheckpointFiles(StoredCheckpoint(path)),
            aside=why,
        )
        for prefix, why in _ASIDE.items()
        for path in checkpoints.glob(f".{prefix}-*")
    ]
    return whole + aside


def in_durable_store(durable: str, folder: RunFolder) -> list[ListedCheckpoint]:
    """List the checkpoints in the durable store of a run."""
    store = open_store(durable, folder.name)
    if isinstance(store, RemoteStore):
        return [
            ListedCheckpoint("remote", step, RemoteCheckpointFiles(store, step))
            for step in store.steps()
        ]
    assert isinstance(store, DiskStore)
    return [
        ListedCheckpoint("disk", one.step, LocalCheckpointFiles(one))
        for one in published_checkpoints(store.root)
    ]


def describe(one: ListedCheckpoint) -> ListedCheckpoint:
    """Return the checkpoint with what its small files say."""
    reading = MANIFEST
    try:
        if isinstance(one.files, LocalCheckpointFiles):
            changed = max(p.stat().st_mtime for p in one.files.checkpoint.path.iterdir())
            one = replace(one, age_s=max(0.0, time.time() - changed))
        files = _files(one)
        one = replace(one, format=_format(one), bytes=sum(f["bytes"] for f in files.values()))
        problems = [_size(one, name, entry["bytes"]) for name, entry in sorted(files.items())]
        if (
            one.format in READABLE_FORMATS
            and not one.aside
            and one.files.manifest().step not in (None, one.step)
        ):
            is_of = one.files.manifest().step
            problems.append(f"{MANIFEST}: it is a checkpoint of step {is_of}, not {one.step}")
        one = replace(one, problems=tuple(problem for problem in problems if problem))
        reading = SCALARS
        scalars = one.files.scalars()
        loss = validation_loss(one.step, scalars)
        return replace(one, layout=scalars["layout"], validation_loss=loss)
    except UNREADABLE as error:
        problem = f"{reading}: {type(error).__name__}: {error}"
        return replace(one, problems=one.problems or (problem,))


def _format(one: ListedCheckpoint) -> int:
    try:
        return one.files.manifest().format
    except UnsupportedFormat as error:
        return error.format


def _size(one: ListedCheckpoint, name: str, wanted: int) -> str:
    size = one.files.size(name)
    if size is None:
        return f"{name}: missing"
    return "" if size == wanted else f"{name}: {size} bytes, not {wanted}"
