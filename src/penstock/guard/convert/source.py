"""The checkpoint to convert: a run's newest whole one, a folder, or another program's.

Hashes are verified before a byte is used, as when a run resumes.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError, RunFailed
from penstock.guard.checkpoints import list_checkpoints, select, verify
from penstock.guard.convert.foreign import ForeignCheckpoint, is_foreign_checkpoint
from penstock.guard.convert.relayout import rewrite_for_ranks
from penstock.guard.convert.writers import RunCheckpoint, write_safetensors, write_torch
from penstock.guard.format.manifest import MANIFEST
from penstock.guard.format.published import StoredCheckpoint, is_checkpoint_name
from penstock.guard.tiers.checkpoint_files import LocalCheckpointFiles, RemoteCheckpointFiles
from penstock.guard.tiers.listing import ListedCheckpoint
from penstock.run.folder import find_run

WRITERS = {"safetensors": write_safetensors, "pt": write_torch}


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A checkpoint that is open for conversion."""

    name: str
    source: RunCheckpoint | ForeignCheckpoint
    passed_over: tuple[str, ...] = ()  # newer ones that are damaged, or what is no tensor

    def bytes(self, everything: bool) -> int:
        found = self.source.tensors()
        return sum(
            one.bytes for n, one in found.items() if everything or not n.startswith("optimizer/")
        )

    def write(
        self,
        kind: str,
        out: Path,
        moments: bool,
        ranks: int,
        progress: Callable[[int], None],
        force: bool = False,
    ) -> int:
        if kind != "ranks":
            return WRITERS[kind](self.source, out, moments, progress, force)
        if not isinstance(self.source, RunCheckpoint):
            raise PenstockError("--ranks: only for a checkpoint of a run; name a file")
        return rewrite_for_ranks(self.source, out, ranks, progress, force)


@contextmanager
def open_checkpoint(
    where: str, step: int | None, root: str, trust: bool
) -> Iterator[OpenedCheckpoint]:
    """Open a run's checkpoint, a checkpoint folder, or a folder of another program."""
    path = Path(where)
    if is_foreign_checkpoint(path):
        found = ForeignCheckpoint(path, trust)
        left = tuple(f"{name}: no tensor" for name in found.left_out)
        yield OpenedCheckpoint(str(path), found, left)
    elif (path / MANIFEST).is_file():
        yield OpenedCheckpoint(str(path), RunCheckpoint(_whole(path)))
    else:
        with _of_run(where, step, root) as (one, local, rejected):
            yield OpenedCheckpoint(one.name, RunCheckpoint(local), tuple(rejected))


def _whole(path: Path) -> StoredCheckpoint:
    if not is_checkpoint_name(path.name):
        raise PenstockError(f"{path}: a checkpoint's folder is called step-N; rename it back")
    found = StoredCheckpoint(path)
    found.check_format()
    if damage := found.find_damage():
        raise RunFailed(f"{path} is damaged: {'; '.join(damage)}")
    return found


@contextmanager
def _of_run(
    where: str, step: int | None, root: str
) -> Iterator[tuple[ListedCheckpoint, StoredCheckpoint, list[str]]]:
    folder = find_run(where, root)
    found, unreachable = list_checkpoints(folder)
    if folder.running():  # it writes over what is in memory
        found = [one for one in found if one.tier != "memory"]
    rejected = [f"not reached: {problem}" for problem in unreachable]
    for one in select(found, step, unreachable=unreachable):
        problems = verify(one)
        if problems is None:
            continue
        if problems:
            rejected.append(f"{one.name}: {'; '.join(problems)}")
            continue
        if isinstance(one.files, LocalCheckpointFiles):
            yield one, one.files.checkpoint, rejected
            return
        assert isinstance(one.files, RemoteCheckpointFiles)
        with tempfile.TemporaryDirectory(dir=folder.path, prefix=".convert-") as landing:
            yield one, StoredCheckpoint(one.files.store.fetch(one.step, Path(landing))), rejected
            return
    raise RunFailed(f"no checkpoint of '{where}' is whole: {'; '.join(rejected)}")
