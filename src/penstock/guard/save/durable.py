"""One durable save: every rank puts its files into a store, and rank 0 publishes them.

The ranks communicate three times, over a group of their own. A failure on one rank is an error on
all: a checkpoint is published by all ranks or not at all.
"""

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from penstock.guard.format.file_names import FileTable
from penstock.guard.format.manifest import MANIFEST, CheckpointManifest
from penstock.guard.format.published import file_entry, folder_name
from penstock.guard.save.background_group import BackgroundGroup
from penstock.guard.tiers.stores import FOREIGN, NONE_PROTECTED, CheckpointStore, ProtectedSteps

T = TypeVar("T")
FULL = os.strerror(errno.ENOSPC)


@dataclass(frozen=True)
class DurableSave:
    """The files of one save. `own` are this rank's files in `source`; rank 0 adds `shared` for
    all."""

    step: int
    own: FileTable
    problem: str  # why there are none
    shared: dict[str, bytes]
    keep: int
    world: BackgroundGroup
    beside: Callable[[str, int], None]  # tells a drill where the writer is
    best: ProtectedSteps = NONE_PROTECTED  # checkpoints that stay whatever their age
    dropped: list[int] = field(default_factory=list)  # by rank 0, to make room
    about: dict[str, Any] = field(default_factory=dict)  # of the manifest, beside step and files

    def write(self, store: CheckpointStore, source: Path) -> tuple[str, str]:
        """Publish the checkpoint in a store; return its location and its manifest's hash.

        Both are empty if it was there already. Raises OSError on all ranks. On a full disk the
        oldest checkpoint is deleted: a newer one is worth more.
        """
        while True:
            try:
                return self._try(store, source)
            except OSError as error:
                if FULL not in str(error) or not self._together(lambda: self._drop(store))[0]:
                    raise

    def _drop(self, store: CheckpointStore) -> bool:
        """Delete the oldest checkpoint; return whether there was one. The newest and the best
        stay."""
        steps = store.steps() if self._first and store.tier == "disk" else []
        old = [step for step in steps[1:] if step not in self.best.among(steps)]
        if not old:
            return False
        store.delete(old[-1])
        self.dropped.append(old[-1])
        return True

    def _try(self, store: CheckpointStore, source: Path) -> tuple[str, str]:
        try:
            if self._together(lambda: self._begin(store))[0]:
                return "", ""
            parts = self._together(lambda: self._put(store, source))
            files = {name: entry for part in parts for name, entry in part.items()}
            published = self._together(lambda: self._publish(store, files))[0]
        except OSError:
            if self._first:  # a full disk is needed for other things
                store.abandon(self.step)
            raise
        if self._first:
            with contextlib.suppress(OSError):  # what cannot be deleted now is next time
                store.retain(self.keep, self.best)
        return published

    @property
    def _first(self) -> bool:
        return self.world.rank == 0

    def _begin(self, store: CheckpointStore) -> bool:
        """Return whether the checkpoint is there already. A foreign one of the same step is put
        aside."""
        there = self._first and self.step in store.steps()
        if there and not self._is_own(store):
            store.put_aside(self.step, FOREIGN)
            there = False
        if self._first and not there:
            store.begin(self.step)
        return there

    def _is_own(self, store: CheckpointStore) -> bool:
        try:
            found = CheckpointManifest.from_bytes(
                store.read(f"{folder_name(self.step)}/{MANIFEST}")
            )
        except ValueError:
            return False
        return found.step in (None, self.step) and found.run in ("", self.about.get("run", ""))

    def _put(self, store: CheckpointStore, source: Path) -> FileTable:
        if self.problem:
            raise OSError(self.problem)
        self.beside("write" if store.tier == "disk" else "send", self.step)
        for name in self.own:
            store.put(self.step, name, source / name)
        return self.own

    def _publish(self, store: CheckpointStore, files: FileTable) -> tuple[str, str]:
        if not self._first:
            return "", ""
        for name, content in self.shared.items():
            store.put(self.step, name, content)
        every = files | {name: file_entry(content) for name, content in self.shared.items()}
        self.beside("publish", self.step)
        manifest = CheckpointManifest(self.step, every, **self.about)
        return store.publish(self.step, manifest.to_bytes()), manifest.digest

    def _together(self, work: Callable[[], T]) -> list[T]:
        """Run `work` on every rank; return all answers, or raise OSError on all ranks."""
        value, problem = None, ""
        try:
            value = work()
        except Exception as error:  # sent to the other ranks, and raised on all of them below
            problem = f"{type(error).__name__}: {error}"
        parts = self.world.gather((value, problem))
        problems = [f"rank {rank}: {why}" for rank, (_, why) in enumerate(parts) if why]
        if problems:
            raise OSError("; ".join(problems))
        return [value for value, _ in parts]
