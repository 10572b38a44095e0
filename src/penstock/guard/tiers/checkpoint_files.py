"""Read access to the files of a checkpoint in any tier. No torch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, Protocol, cast

from blake3 import blake3

from penstock.guard.format.file_names import plain_path
from penstock.guard.format.manifest import MANIFEST, CheckpointManifest
from penstock.guard.format.published import SCALARS, StoredCheckpoint, folder_name
from penstock.guard.tiers.slots import MemoryCheckpoint, read_seal, seal_path
from penstock.guard.tiers.stores import RemoteStore
from penstock.untrusted import parse_table

READ_BYTES = 16 << 20
Progress = Callable[[int], None]  # bytes that were read since the last call


class CheckpointFiles(Protocol):
    """The files of one checkpoint. Every method raises OSError or ValueError if it fails."""

    @property
    def where(self) -> str: ...
    def still_there(self) -> bool:
        """Return whether the same checkpoint still exists: a live run creates and deletes them."""

    def manifest(self) -> CheckpointManifest:
        """Return the manifest, whose own hash is verified."""

    def scalars(self) -> dict[str, Any]: ...
    def size(self, name: str) -> int | None:
        """Return a file's size in bytes; None if it is missing."""

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""

    def hash(self, name: str, progress: Progress) -> str: ...


class LocalCheckpointFiles:
    """A folder on disk or a slot in memory, on this machine."""

    def __init__(self, found: StoredCheckpoint) -> None:
        self.checkpoint = found

    @property
    def where(self) -> str:
        return str(self.checkpoint.path)

    def still_there(self) -> bool:
        if not isinstance(self.checkpoint, MemoryCheckpoint):
            return self.checkpoint.path.is_dir()
        seals = self.checkpoint.seals
        return all(read_seal(seal_path(self.checkpoint.path, seal.rank)) == seal for seal in seals)

    def manifest(self) -> CheckpointManifest:
        return self.checkpoint.read_manifest()

    def scalars(self) -> dict[str, Any]:
        return self.checkpoint.scalars

    def size(self, name: str) -> int | None:
        path = plain_path(self.checkpoint.path, name)
        return path.stat().st_size if path.is_file() else None

    def read(self, name: str) -> bytes:
        return self.checkpoint.read(name)

    def hash(self, name: str, progress: Progress) -> str:
        with plain_path(self.checkpoint.path, name).open("rb") as file:
            sink = _Hashing(progress)
            while part := file.read(READ_BYTES):
                sink.write(part)
        return sink.hexdigest()


@dataclass(frozen=True)
class RemoteCheckpointFiles:
    """A checkpoint behind a URL. Nothing of it is stored on this machine."""

    store: RemoteStore
    step: int

    @property
    def where(self) -> str:
        return self.store.store.where(folder_name(self.step))

    def still_there(self) -> bool:
        return self.step in self.store.steps()

    def manifest(self) -> CheckpointManifest:
        return self._manifest

    def scalars(self) -> dict[str, Any]:
        return parse_table(self.read(SCALARS))

    def size(self, name: str) -> int | None:
        return self._sizes.get(f"{folder_name(self.step)}/{name}")

    def read(self, name: str) -> bytes:
        return self.store.read(f"{folder_name(self.step)}/{name}")

    def hash(self, name: str, progress: Progress) -> str:
        sink = _Hashing(progress)
        self.store.store.download(f"{folder_name(self.step)}/{name}", cast(IO[bytes], sink))
        return sink.hexdigest()

    @cached_property
    def _manifest(self) -> CheckpointManifest:
        return CheckpointManifest.from_bytes(self.read(MANIFEST))

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {one.name: one.size for one in self.store.store.list(folder_name(self.step))}


class _Hashing:
    """A writable file that keeps only the hash of its content; enough for a download."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.seek(0)

    def seek(self, at: int) -> int:
        """Begin again from the start, as a repeated download does."""
        self._digest = blake3(max_threads=blake3.AUTO)
        return at

    def truncate(self) -> None: ...

    def write(self, part: bytes) -> int:
        self._digest.update(memoryview(part))
        self._progress(len(part))
        return len(part)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
