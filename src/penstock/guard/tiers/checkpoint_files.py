"""The files of a checkpoint, wherever it is, for whoever only looks at them. No torch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, Protocol, cast

from blake3 import blake3

from penstock.guard.format.file_names import plain_path
from penstock.guard.format.manifest import MANIFEST, Manifest
from penstock.guard.format.published import SCALARS, Checkpoint, folder_name
from penstock.guard.tiers.slots import MemoryCheckpoint, read_seal, seal_path
from penstock.guard.tiers.stores import RemoteStore
from penstock.untrusted import parse_table

READ_BYTES = 16 << 20
Progress = Callable[[int], None]  # bytes that were read since the last call


class CheckpointFiles(Protocol):
    """What can be asked of a checkpoint. All of it raises OSError or ValueError where it fails."""

    @property
    def where(self) -> str: ...
    def there(self) -> bool:
        """Whether it still is, and is the same: a run that goes on makes and deletes them."""

    def about(self) -> Manifest:
        """What it says of itself, in a manifest whose own hash is right."""

    def scalars(self) -> dict[str, Any]: ...
    def size(self, name: str) -> int | None:
        """None for a file that is not there."""

    def read(self, name: str) -> bytes:
        """A small file."""

    def hash(self, name: str, progress: Progress) -> str: ...


class LocalFiles:
    """On this machine: a folder on disk, or a slot in memory."""

    def __init__(self, found: Checkpoint) -> None:
        self.found = found

    @property
    def where(self) -> str:
        return str(self.found.path)

    def there(self) -> bool:
        if not isinstance(self.found, MemoryCheckpoint):
            return self.found.path.is_dir()
        seals = self.found.seals
        return all(read_seal(seal_path(self.found.path, seal.rank)) == seal for seal in seals)

    def about(self) -> Manifest:
        return self.found.about()

    def scalars(self) -> dict[str, Any]:
        return self.found.scalars

    def size(self, name: str) -> int | None:
        path = plain_path(self.found.path, name)
        return path.stat().st_size if path.is_file() else None

    def read(self, name: str) -> bytes:
        return self.found.read(name)

    def hash(self, name: str, progress: Progress) -> str:
        with plain_path(self.found.path, name).open("rb") as file:
            sink = _Hashing(progress)
            while part := file.read(READ_BYTES):
                sink.write(part)
        return sink.hexdigest()


@dataclass(frozen=True)
class RemoteFiles:
    """Behind a URL. Nothing of it is kept on this machine."""

    place: RemoteStore
    step: int

    @property
    def where(self) -> str:
        return self.place.store.where(folder_name(self.step))

    def there(self) -> bool:
        return self.step in self.place.steps()

    def about(self) -> Manifest:
        return self._manifest

    def scalars(self) -> dict[str, Any]:
        return parse_table(self.read(SCALARS))

    def size(self, name: str) -> int | None:
        return self._sizes.get(f"{folder_name(self.step)}/{name}")

    def read(self, name: str) -> bytes:
        return self.place.read(f"{folder_name(self.step)}/{name}")

    def hash(self, name: str, progress: Progress) -> str:
        sink = _Hashing(progress)
        self.place.store.download(f"{folder_name(self.step)}/{name}", cast(IO[bytes], sink))
        return sink.hexdigest()

    @cached_property
    def _manifest(self) -> Manifest:
        return Manifest.from_bytes(self.read(MANIFEST))

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {one.name: one.size for one in self.place.store.list(folder_name(self.step))}


class _Hashing:
    """As much of a file as a download needs, which keeps nothing but the hash."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.seek(0)

    def seek(self, at: int) -> int:
        """A download begins again from the start."""
        self._digest = blake3(max_threads=blake3.AUTO)
        return at

    def truncate(self) -> None: ...

    def write(self, part: bytes) -> int:
        self._digest.update(memoryview(part))
        self._progress(len(part))
        return len(part)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
