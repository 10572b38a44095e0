"""The fast tier: whole states in the host's memory, sealed once they are hashed. Without torch.

`fast/PLAN/slot-0` and `slot-1` hold the files of a checkpoint, written in place, in turn; PLAN is
the hash of their index, so that another layout has files of its own. A rank's seal says that its
files in a slot are those of a step. It is removed before the first byte of the slot changes and
written after the last one is hashed: a rank that is killed in between leaves a slot without a seal,
and the other slot as it was. A slot is a checkpoint when every rank's seal in it is of one step.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from penstock.guard.format.file_names import FileTable, check_file_table
from penstock.guard.format.index import INDEX, hash_bytes
from penstock.guard.format.manifest import (
    FORMAT,
    READABLE_FORMATS,
    CheckpointManifest,
    manifest_fields,
)
from penstock.guard.format.published import StoredCheckpoint, file_entry
from penstock.untrusted import is_count, parse_table, read_record

SLOTS = 2
_SEAL = re.compile(r"seal-r\d{5,}\.json")


@dataclass(frozen=True)
class Seal:
    """A rank's statement about its files in a slot."""

    run: str  # which run, of all that ever had this folder
    mark: str  # which attempt: seals of two attempts do not make one checkpoint
    step: int
    rank: int
    ranks: int
    files: FileTable
    scalars: dict[str, Any]
    format: int = FORMAT

    def write(self, slot: Path) -> None:
        """Write the seal: a line with the hash, then the JSON it covers."""
        body = json.dumps(vars(self)).encode()
        aside = slot / f".seal-r{self.rank:05d}"
        aside.write_bytes(hash_bytes(body).encode() + b"\n" + body)
        aside.replace(seal_path(slot, self.rank))

    @staticmethod
    def from_table(found: dict[str, Any]) -> "Seal":
        """Make a seal from its JSON table; raises ValueError for anything else."""
        if found.keys() != {one.name for one in fields(Seal)}:
            raise ValueError("a seal has other fields")
        if not all(is_count(found[name]) for name in ("step", "rank", "ranks", "format")):
            raise ValueError("a number of a seal is none")
        if not all(isinstance(found[name], str) for name in ("run", "mark")):
            raise ValueError("a seal does not name its run")
        if not isinstance(found["scalars"], dict):
            raise ValueError("the scalars of a seal are no table")
        if INDEX not in check_file_table(found["files"], "a seal"):
            raise ValueError(f"a seal does not name {INDEX}")
        return Seal(**found)

    @staticmethod
    def from_bytes(content: bytes) -> "Seal":
        """Parse a seal; raises ValueError for anything else."""
        said, _, body = content.partition(b"\n")
        if hash_bytes(body).encode() != said:
            raise ValueError("content does not match its hash")
        return Seal.from_table(parse_table(body))


def seal_path(slot: Path, rank: int) -> Path:
    return slot / f"seal-r{rank:05d}.json"


def read_seal(path: Path) -> Seal | None:
    """Return a good seal, or None. Raises OSError if a seal exists but cannot be read."""
    try:
        return Seal.from_bytes(read_record(path))
    except (FileNotFoundError, ValueError):
        return None


def damaged_seals(fast: Path) -> list[str]:
    """List the damaged seals of a fast tier.

    A missing seal is no damage: it was never written, or removed before its slot was overwritten.
    """
    found = []
    for slot in slot_folders(fast):
        for path in _listed(slot):
            if _SEAL.fullmatch(path.name):
                try:
                    Seal.from_bytes(read_record(path))
                except FileNotFoundError:
                    continue
                except ValueError as error:
                    found.append(f"{slot.name} in memory: {path.name}: {error}")
    return found


@dataclass(frozen=True)
class MemoryCheckpoint(StoredCheckpoint):
    """A slot with the seals of all ranks."""

    seals: tuple[Seal, ...]
    tier: ClassVar[str] = "memory"

    @property
    def step(self) -> int:
        return self.seals[0].step

    @property
    def name(self) -> str:
        return f"step {self.step} in memory"

    @property
    def mark(self) -> str:
        return self.seals[0].mark

    @property
    def scalars(self) -> dict[str, Any]:
        return self.seals[0].scalars

    def read_manifest(self) -> CheckpointManifest:
        seal = self.seals[0]
        files = {name: entry for one in self.seals for name, entry in one.files.items()}
        return CheckpointManifest(seal.step, files, **manifest_fields(seal.run, seal.scalars))

    def files(self) -> FileTable:
        return {name: entry for seal in self.seals for name, entry in seal.files.items()}

    def check_format(self) -> None:
        """Do nothing: seals of another format do not count as seals."""

    def discard(self) -> None:
        """Remove the seals, so that nobody loads it any more."""
        for seal in self.seals:
            seal_path(self.path, seal.rank).unlink(missing_ok=True)


def sealed_slots(fast: Path, run: str | None = None) -> list[MemoryCheckpoint]:
    """Return the slots with all seals, newest first; of one run, or of any."""
    found = [c for slot in slot_folders(fast) if (c := _whole(slot, run))]
    return sorted(found, key=lambda one: one.step, reverse=True)


def slot_folders(fast: Path) -> Iterator[Path]:
    """List the slots of a fast tier. Raises OSError if it cannot be listed."""
    for plan in _listed(fast):
        yield from (slot for slot in _listed(plan) if slot.name.startswith("slot-"))


def _listed(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder))]
    except (FileNotFoundError, NotADirectoryError):
        return []


def plan_folder(fast: Path, index: bytes) -> Path:
    return fast / file_entry(index)["blake3"][:16]


def index_entry(index: bytes) -> FileTable:
    """Return the entry of the index, which all ranks share, for a seal."""
    return {INDEX: file_entry(index)}


def _whole(slot: Path, run: str | None) -> MemoryCheckpoint | None:
    first = read_seal(seal_path(slot, 0))
    if (
        first is None
        or first.format not in READABLE_FORMATS
        or (run is not None and first.run != run)
    ):
        return None
    seals = [first]
    for rank in range(1, first.ranks):
        seal = read_seal(seal_path(slot, rank))
        if seal is None or _of(seal) != _of(first) or seal.rank != rank:
            return None
        seals.append(seal)
    return MemoryCheckpoint(slot, tuple(seals))


def _of(seal: Seal) -> tuple[object, ...]:
    return seal.format, seal.run, seal.mark, seal.step, seal.ranks, seal.files[INDEX]["blake3"]
