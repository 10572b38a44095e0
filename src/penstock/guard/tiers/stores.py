"""Stores for durable checkpoints: a folder or a URL. The last write publishes a checkpoint.

Several ranks write files of one checkpoint; one of them begins, publishes and deletes. On disk the
files are in `.writing-N/` until it is renamed. An object store cannot rename: there a checkpoint
exists when its manifest does, which is written last and deleted first.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.data.store.objects import Store, is_url
from penstock.files import sync, write_synced
from penstock.guard.format.manifest import MANIFEST
from penstock.guard.format.published import (
    StoredCheckpoint,
    folder_name,
    published_folders,
    step_of,
)
from penstock.untrusted import read_record

COPY_BYTES = 64 << 20
DAMAGED, FOREIGN, REPLACED = "damaged", "foreign", "replaced"  # why one is put aside
_PUBLISHED = re.compile(rf"(step-\d+)/{re.escape(MANIFEST)}")


@dataclass(frozen=True)
class ProtectedSteps:
    """Checkpoints that rotation keeps: the first `count` of `steps` that exist."""

    count: int = 0
    steps: tuple[int, ...] = ()  # best first

    def among(self, there: Sequence[int]) -> tuple[int, ...]:
        """Return the protected ones of the existing steps."""
        return tuple(step for step in self.steps if step in there)[: self.count]


NONE_PROTECTED = ProtectedSteps()


class CheckpointStore(Protocol):
    """A place for durable checkpoints. One rank calls everything but `put`."""

    @property
    def tier(self) -> str: ...

    @property
    def where(self) -> str:
        """The path or URL, for messages."""

    def steps(self) -> list[int]:
        """Return the published steps, newest first. Raises OSError if they cannot be listed."""

    def begin(self, step: int) -> None:
        """Remove unfinished saves and prepare for files of this step."""

    def put(self, step: int, name: str, source: Path | bytes) -> None:
        """Store a file of the checkpoint; it is safe when this returns. Any rank may call it."""

    def publish(self, step: int, manifest: bytes) -> str:
        """Make the checkpoint exist; return its location."""

    def abandon(self, step: int) -> None:
        """Remove the files of a checkpoint that will not be published, as far as possible."""

    def fetch(self, step: int, folder: Path) -> Path:
        """Return the path of the checkpoint as `step-N` on this host, unverified."""

    def put_aside(self, step: int, why: str = DAMAGED) -> None:
        """Rename a damaged, foreign or replaced checkpoint, so that nobody loads it."""

    def delete(self, step: int) -> None: ...
    def retain(self, keep: int, best: ProtectedSteps = NONE_PROTECTED) -> None:
        """Delete all but the newest `keep` and the protected ones."""

    def create(self, name: str, content: bytes) -> bool:
        """Write a small file unless it exists; return whether it was created."""

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a small file."""

    def read(self, name: str) -> bytes:
        """Return a small file; FileNotFoundError if there is none."""


def open_store(where: str, run: str) -> CheckpointStore:
    """Return the store that `guard.durable` names, for one run."""
    if is_url(where):
        return RemoteStore(Store(f"{where.rstrip('/')}/{run}"))
    return DiskStore(Path(where).expanduser() / run)


@dataclass(frozen=True)
class DiskStore:
    """A store in a folder."""

    root: Path
    tier: str = "disk"

    @property
    def where(self) -> str:
        return str(self.root)

    def steps(self) -> list[int]:
        return [step_of(path) for path in published_folders(self.root)]

    def begin(self, step: int) -> None:
        self._remove("writing")
        (self.aside(step) / "state").mkdir(parents=True)

    def put(self, step: int, name: str, source: Path | bytes) -> None:
        path = self.aside(step) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, bytes):
            write_synced(path, source)
        else:
            copy_synced(source, path)

    def publish(self, step: int, manifest: bytes) -> str:
        aside, final = self.aside(step), self.root / folder_name(step)
        sync(aside / "state")
        write_synced(aside / MANIFEST, manifest)
        sync(aside)
        if final.exists():  # it has no manifest, so it is no checkpoint, but it has the name of one
            self.put_aside(step)
        aside.rename(final)
        sync(self.root)
        return str(final)

    def abandon(self, step: int) -> None:
        self._remove("writing")

    def fetch(self, step: int, folder: Path) -> Path:
        return self.root / folder_name(step)

    def put_aside(self, step: int, why: str = DAMAGED) -> None:
        """Rename `step-…` to `.WHY-…`. Only the last of one step is kept: disks are finite."""
        aside = self.root / f".{why}-{step:08d}"
        shutil.rmtree(aside, ignore_errors=True)
        (self.root / folder_name(step)).rename(aside)
        sync(self.root)

    def delete(self, step: int) -> None:
        """Rename first, so that nobody sees a half-deleted checkpoint."""
        (self.root / folder_name(step)).rename(self.root / f".deleting-{step:08d}")
        self._remove("deleting")

    def retain(self, keep: int, best: ProtectedSteps = NONE_PROTECTED) -> None:
        self._remove("deleting")  # left by a deletion that was killed
        steps = self.steps()
        for step in steps[keep:]:
            if step not in best.among(steps):
                self.delete(step)

    def create(self, name: str, content: bytes) -> bool:
        """Write a small file unless it exists, linked under its name when it is on the disk."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        write_synced(aside, content)
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        finally:
            aside.unlink()
        sync(path.parent)
        return True

    def write(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        write_synced(aside, content)
        aside.replace(path)
        sync(path.parent)

    def read(self, name: str) -> bytes:
        return read_record(self.root / name)

    def misnamed(self) -> dict[int, int]:
        """Return folder steps that differ from the content's step, where the true name is free."""
        found: dict[int, int] = {}
        for path in published_folders(self.root):
            with contextlib.suppress(OSError, ValueError):
                step = StoredCheckpoint(path).content_step()
                free = step is not None and not (self.root / folder_name(step)).exists()
                if step is not None and free and step not in found.values():
                    found[step_of(path)] = step
        return found

    def rename(self, step: int, true_step: int) -> None:
        """Rename a folder to the step of its content."""
        (self.root / folder_name(step)).rename(self.root / folder_name(true_step))
        sync(self.root)

    def aside(self, step: int) -> Path:
        return self.root / f".writing-{step:08d}"

    def _remove(self, what: str) -> None:
        for path in self.root.glob(f".{what}-*"):
            shutil.rmtree(path, ignore_errors=True)  # what cannot go now goes next time


@dataclass(frozen=True)
class RemoteStore:
    """A store in an object store."""

    store: Store
    tier: str = "remote"

    @property
    def where(self) -> str:
        return self.store.where("").rstrip("/")

    def steps(self) -> list[int]:
        found = [_PUBLISHED.fullmatch(name) for name in self._names()]
        return sorted((step_of(Path(m[1])) for m in found if m), reverse=True)

    def begin(self, step: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.store.delete(f"{folder_name(step)}/{MANIFEST}")

    def put(self, step: int, name: str, source: Path | bytes) -> None:
        self.store.put(f"{folder_name(step)}/{name}", source)

    def publish(self, step: int, manifest: bytes) -> str:
        self.store.put(f"{folder_name(step)}/{MANIFEST}", manifest)
        return self.store.where(folder_name(step))

    def abandon(self, step: int) -> None:
        """Leave the files until the next publish: the link that failed would fail again."""

    def fetch(self, step: int, folder: Path) -> Path:
        final, aside = folder / folder_name(step), folder / f".fetching-{step:08d}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        # The manifest says which files; one that names files outside is refused when it is read.
        write_synced(aside / MANIFEST, self.store.get(f"{folder_name(step)}/{MANIFEST}"))
        for name in StoredCheckpoint(aside).files():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            with (aside / name).open("wb") as file:
                self.store.download(f"{folder_name(step)}/{name}", file)
                file.flush()
                os.fsync(file.fileno())
        for path in (*(one for one in aside.iterdir() if one.is_dir()), aside):
            sync(path)
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)
        sync(folder)
        return final

    def put_aside(self, step: int, why: str = DAMAGED) -> None:
        name = f"{folder_name(step)}/{MANIFEST}"
        self.store.put(f"{folder_name(step)}/{why}.json", self.store.get(name))
        self.store.delete(name)

    def delete(self, step: int) -> None:
        self._delete(folder_name(step), self._names())

    def retain(self, keep: int, best: ProtectedSteps = NONE_PROTECTED) -> None:
        """Delete old checkpoints, and unfinished uploads of older steps."""
        steps, names = self.steps(), self._names()
        kept = {*steps[:keep], *best.among(steps)}
        folders = {name.partition("/")[0] for name in names if name.startswith("step-")}
        for folder in sorted(folders):
            step = step_of(Path(folder))
            if step not in kept and step < max(kept, default=0):
                self._delete(folder, names)

    def create(self, name: str, content: bytes) -> bool:
        return self.store.create(name, content)

    def write(self, name: str, content: bytes) -> None:
        self.store.put(name, content)

    def read(self, name: str) -> bytes:
        return self.store.get(name)

    def _names(self) -> list[str]:
        return [one.name for one in self.store.list()]

    def _delete(self, folder: str, names: list[str]) -> None:
        own = [name for name in names if name.startswith(f"{folder}/")]
        for name in sorted(own, key=lambda name: name != f"{folder}/{MANIFEST}"):
            with contextlib.suppress(FileNotFoundError):
                self.store.delete(name)


def copy_synced(source: Path, path: Path) -> None:
    """Copy a file in the kernel; it is on disk when this returns."""
    with source.open("rb") as old, path.open("wb") as new:
        size, done = os.fstat(old.fileno()).st_size, 0
        while done < size:
            done += os.sendfile(new.fileno(), old.fileno(), done, min(COPY_BYTES, size - done))
        os.fsync(new.fileno())
