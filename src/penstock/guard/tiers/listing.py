"""The checkpoints of a run in every tier: what there is, and whether it is whole. No torch.

A look reads manifests and compares sizes; `verify` reads every byte. Neither changes anything: what
is damaged is put aside when the run goes on, not because somebody looked.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, RunFailed, system_words
from penstock.guard.format.file_names import FileTable
from penstock.guard.format.index import INDEX, Index
from penstock.guard.format.manifest import FORMAT, MANIFEST, READABLE_FORMATS, UnsupportedFormat
from penstock.guard.format.published import (
    SCALARS,
    Checkpoint,
    published_checkpoints,
    validation_loss,
)
from penstock.guard.tiers.checkpoint_files import CheckpointFiles, LocalFiles, Progress, RemoteFiles
from penstock.guard.tiers.search import memory_folders
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
from penstock.run.load import load

TIERS = ("memory", "disk", "remote")  # nearest first
_ASIDE = {DAMAGED: "damaged", FOREIGN: "of another run", REPLACED: "replaced"}
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class ListedCheckpoint:
    tier: str
    step: int
    shelf: CheckpointFiles
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
        told = {n: v for n, v in vars(self).items() if n not in ("shelf", "problems")}
        return told | {
            "where": self.shelf.where,
            "state": self.state,
            "aside": bool(self.aside),
            "problems": list(self.problems),
        }


def list_checkpoints(
    folder: RunFolder, elsewhere: bool = True
) -> tuple[list[ListedCheckpoint], list[str]]:
    """All of them, newest first, and the places that could not be asked; who looks every second
    leaves out what is `elsewhere`."""
    durable = load(folder.run_file).guard.durable
    ask = [lambda: _memory(folder), lambda: _disk(folder.checkpoints)]
    if durable and elsewhere:
        ask.append(lambda: _elsewhere(durable, folder))
    found: list[ListedCheckpoint] = []
    unreachable = []
    for tier in ask:
        try:
            found += tier()
        except OSError as error:
            unreachable.append(system_words(error))
    seen = _with_best([_described(one) for one in found])
    return sorted(seen, key=lambda one: (-one.step, TIERS.index(one.tier))), unreachable


def _with_best(found: list[ListedCheckpoint]) -> list[ListedCheckpoint]:
    """Mark the step with the lowest validation loss, in every tier that has it."""
    good = [one for one in found if one.tier != "memory" and not one.problems and not one.aside]
    known = [(one.validation_loss, one.step) for one in good if one.validation_loss is not None]
    if not known:
        return found
    _, step = min(known)
    return [replace(one, best=one in good and one.step == step) for one in found]


def select(
    found: list[ListedCheckpoint],
    step: int | None = None,
    tier: str | None = None,
    unreachable: Sequence[str] = (),
) -> list[ListedCheckpoint]:
    """Those of a step and a tier, if they are asked for; to find none is a mistake, unless a place
    was `unreachable`."""
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
    """What is wrong with it, every byte read; empty if nothing is. None: a run that goes on has
    deleted it or written over it meanwhile."""
    found = list(one.problems) or _damage(one, progress)
    return found if not found or one.shelf.there() else None


def _damage(one: ListedCheckpoint, progress: Progress) -> list[str]:
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
    """Return its files by its manifest, also in a format whose tensors cannot be read here."""
    try:
        return one.shelf.about().files
    except UnsupportedFormat as error:
        return error.files


def _content(one: ListedCheckpoint, name: str, entry: dict[str, Any], progress: Progress) -> str:
    try:
        same = one.shelf.hash(name, progress) == entry["blake3"]
    except OSError as error:
        return f"{name}: {error}"
    return "" if same else f"{name}: content does not match its hash"


def read_index(one: ListedCheckpoint) -> Index:
    """Every tensor's type, shape and place."""
    try:
        files = one.shelf.about().files
    except UnsupportedFormat as error:
        raise PenstockError(f"{one.shelf.where}: {error}") from None
    found = Index.from_bytes(one.shelf.read(INDEX))
    for name, size in found.files.items():
        if name not in files or files[name]["bytes"] != size:
            raise ValueError(f"{INDEX} names {name}, which no hash covers as it says")
    return found


def _memory(folder: RunFolder) -> list[ListedCheckpoint]:
    return [
        ListedCheckpoint("memory", s.step, LocalFiles(s))
        for f in memory_folders(folder)
        for s in sealed_slots(f)
    ]


def _disk(checkpoints: Path) -> list[ListedCheckpoint]:
    whole = [
        ListedCheckpoint("disk", one.step, LocalFiles(one))
        for one in published_checkpoints(checkpoints)
    ]
    aside = [
        ListedCheckpoint(
            "disk", int(path.name.split("-")[1]), LocalFiles(Checkpoint(path)), aside=why
        )
        for prefix, why in _ASIDE.items()
        for path in checkpoints.glob(f".{prefix}-*")
    ]
    return whole + aside


def _elsewhere(durable: str, folder: RunFolder) -> list[ListedCheckpoint]:
    place = open_store(durable, folder.name)
    if isinstance(place, RemoteStore):
        return [
            ListedCheckpoint("remote", step, RemoteFiles(place, step)) for step in place.steps()
        ]
    assert isinstance(place, DiskStore)
    return [
        ListedCheckpoint("disk", one.step, LocalFiles(one))
        for one in published_checkpoints(place.root)
    ]


def _described(one: ListedCheckpoint) -> ListedCheckpoint:
    """With what its small files say."""
    reading = MANIFEST
    try:
        if isinstance(one.shelf, LocalFiles):
            changed = max(p.stat().st_mtime for p in one.shelf.found.path.iterdir())
            one = replace(one, age_s=max(0.0, time.time() - changed))
        files = _files(one)
        one = replace(one, format=_format(one), bytes=sum(f["bytes"] for f in files.values()))
        problems = [_size(one, name, entry["bytes"]) for name, entry in sorted(files.items())]
        if (
            one.format in READABLE_FORMATS
            and not one.aside
            and one.shelf.about().step not in (None, one.step)
        ):
            is_of = one.shelf.about().step
            problems.append(f"{MANIFEST}: it is a checkpoint of step {is_of}, not {one.step}")
        one = replace(one, problems=tuple(problem for problem in problems if problem))
        reading = SCALARS
        scalars = one.shelf.scalars()
        loss = validation_loss(one.step, scalars)
        return replace(one, layout=scalars["layout"], validation_loss=loss)
    except UNREADABLE as error:
        problem = f"{reading}: {type(error).__name__}: {error}"
        return replace(one, problems=one.problems or (problem,))


def _format(one: ListedCheckpoint) -> int:
    try:
        return one.shelf.about().format
    except UnsupportedFormat as error:
        return error.format


def _size(one: ListedCheckpoint, name: str, wanted: int) -> str:
    size = one.shelf.size(name)
    if size is None:
        return f"{name}: missing"
    return "" if size == wanted else f"{name}: {size} bytes, not {wanted}"
