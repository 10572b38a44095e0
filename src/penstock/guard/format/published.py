"""Published checkpoints on disk, without torch: which exist, what is in them, whether they are
whole.

A checkpoint is a folder `step-00000250/`:

  state/                 reshardable: `model/NAME`, `optimizer/NAME/KEY`, one file for each rank in
                         the form of torch DCP, with torch's `.metadata` for torch's own tools;
                         `optimizer/NAME/KEY@R` is replica R's own, if replicas take local steps
  index.json             where each tensor's bytes are in those files
  local-r*.safetensors   replica-local: error feedback and the like; used only by the same layout
  scalars.json           position, seed, schedule, fingerprint, layout
  manifest.json          the step, the run, BLAKE3 and size of every file above, and a hash of all
                         that (`manifest.py`); written last

A folder without a good manifest is not a checkpoint.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from blake3 import blake3

from penstock.errors import RunFailed
from penstock.guard.format.file_names import FileTable, plain_path
from penstock.guard.format.index import INDEX, Index
from penstock.guard.format.manifest import (
    MANIFEST,
    CheckpointManifest,
    UnsupportedFormat,
)
from penstock.untrusted import parse_table, read_record

SCALARS = "scalars.json"
USE_OTHER_VERSION = "go on with the version that wrote it, or begin again with `--fresh`"
_NAME = re.compile(r"step-\d+")


@dataclass(frozen=True)
class StoredCheckpoint:
    """One checkpoint folder. Nothing about it is trusted before its hashes are verified."""

    path: Path
    tier: ClassVar[str] = "disk"

    @property
    def step(self) -> int:
        return step_of(self.path)

    @property
    def name(self) -> str:
        """The name for messages."""
        return self.path.name

    @property
    def scalars(self) -> dict[str, Any]:
        """The table in `scalars.json`; raises ValueError if it is not a table."""
        return parse_table(self.read(SCALARS))

    @property
    def validation_loss(self) -> float | None:
        """Validation loss of this step; None if it was not evaluated."""
        return validation_loss(self.step, self.scalars)

    @property
    def size_bytes(self) -> int:
        return sum(entry["bytes"] for entry in self.files().values())

    def index(self) -> Index:
        """Return the index; raises ValueError if it names other files than the manifest does."""
        found, files = Index.from_bytes(self.read(INDEX)), self.files()
        for name, size in found.files.items():
            if name not in files or files[name]["bytes"] != size:
                raise ValueError(f"{INDEX} names {name}, which no hash covers as it says")
        return found

    def read(self, name: str) -> bytes:
        """Return the content of one of its small files."""
        return read_record(plain_path(self.path, name))

    def read_manifest(self) -> CheckpointManifest:
        """Return the manifest; raises ValueError or OSError if it is damaged."""
        return CheckpointManifest.from_bytes(self.read(MANIFEST))

    def files(self) -> FileTable:
        """Return size and hash of each file; raises ValueError or OSError if the manifest is
        damaged."""
        return self.read_manifest().files

    def content_step(self) -> int | None:
        """Return the step of its content, whatever its folder is called; None if it does not
        say."""
        about = self.read_manifest()
        if about.step is not None:
            return about.step
        if self._problem(SCALARS, about.files.get(SCALARS), hashed=True):
            return None
        step = self.scalars.get("step")
        return step if type(step) is int else None

    def check_format(self) -> None:
        """Raise RunFailed if it is whole but in a format that this version cannot read."""
        try:
            self.read_manifest()
        except UnsupportedFormat as error:
            raise RunFailed(f"{self.path}: {error}; {USE_OTHER_VERSION}") from None
        except (OSError, ValueError):  # damaged, which is another matter
            return

    def find_damage(
        self,
        part: int = 0,
        parts: int = 1,
        only: str | None = None,
        hashed: bool = True,
        called: bool = True,
    ) -> list[str]:
        """List what is wrong with its files, or with the file `only`. Ranks can share the reading.

        With `hashed` false only sizes are compared. With `called` false the folder may have the
        name of another step.
        """
        try:
            files = self.files()
            said = self._misnamed() if called and only is None and part == 0 else ""
        except UnsupportedFormat as error:
            return [f"{MANIFEST}: {error}"]
        except (OSError, ValueError) as error:
            return [f"{MANIFEST}: not readable as one: {type(error).__name__}: {error}"]
        names = sorted(files if only is None else [only])[part::parts]
        found = [said, *(self._problem(name, files.get(name), hashed) for name in names)]
        if INDEX in names and not any(problem.startswith(f"{INDEX}: ") for problem in found):
            found.append(self._bad_index())
        return [problem for problem in found if problem]

    def _misnamed(self) -> str:
        """Say so if the folder's name and the content are of different steps."""
        if not is_checkpoint_name(self.path.name) or (step := self.content_step()) in (
            None,
            self.step,
        ):
            return ""
        return f"{MANIFEST}: it is a checkpoint of step {step}, under the name of step {self.step}"

    def _bad_index(self) -> str:
        try:
            self.index()
        except (OSError, ValueError) as error:
            return f"{INDEX}: {error}"
        return ""

    def _problem(self, name: str, entry: dict[str, Any] | None, hashed: bool) -> str:
        try:
            path = plain_path(self.path, name)
            if entry is None or not path.is_file():
                return f"{name}: missing"
            if path.stat().st_size != entry["bytes"]:
                return f"{name}: {path.stat().st_size} bytes, not {entry['bytes']}"
            same = not hashed or hash_file(path) == entry["blake3"]
            return "" if same else f"{name}: content does not match its hash"
        except OSError as error:  # a disk that cannot read it
            return f"{name}: {error}"


def validation_loss(step: int, scalars: dict[str, Any]) -> float | None:
    """Return the validation loss in the scalars of a checkpoint, if it is of the checkpoint's
    step."""
    best = scalars.get("best", {})
    return best.get("last_loss") if best.get("last_step") == step else None


def best_first(found: list[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """Return the evaluated checkpoints, lowest validation loss first; unreadable ones are left
    out."""
    losses: list[tuple[float, int, StoredCheckpoint]] = []
    for one in found:
        try:
            loss = one.validation_loss
        except (OSError, ValueError, AttributeError):  # damaged
            continue
        if loss is not None:
            losses.append((loss, one.step, one))
    return [one for _, _, one in sorted(losses, key=lambda pair: pair[:2])]


def published_checkpoints(folder: Path) -> list[StoredCheckpoint]:
    """Return all published checkpoints of a folder, newest first."""
    return [StoredCheckpoint(path) for path in published_folders(folder)]


def published_folders(folder: Path) -> list[Path]:
    """Return the folders of all published checkpoints, newest first.

    Raises OSError if the folder cannot be listed: that is not the same as none.
    """
    try:
        # A copy that somebody put beside it has another name.
        found = [folder / name for name in os.listdir(folder) if is_checkpoint_name(name)]
    except FileNotFoundError:
        return []
    return sorted((path for path in found if _has_manifest(path)), key=step_of, reverse=True)


def _has_manifest(checkpoint: Path) -> bool:
    """Return whether it was published. One that cannot be read counts: `find_damage` says why."""
    try:
        os.stat(checkpoint / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def is_checkpoint_name(folder: str) -> bool:
    """Return whether a folder has a checkpoint's name."""
    return _NAME.fullmatch(folder) is not None


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def newest_path(folder: Path) -> str | None:
    """Return the newest checkpoint's path for display; None also if the folder cannot be read."""
    try:
        paths = published_folders(folder)
    except OSError:
        return None
    return str(paths[0]) if paths else None


def file_entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "blake3": blake3(content).hexdigest()}


def hash_file(path: Path, threads: int = blake3.AUTO) -> str:
    return blake3(max_threads=threads).update_mmap(path).hexdigest()
