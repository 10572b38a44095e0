"""A store of small objects that several machines share: a folder, or a prefix of an object store.

A call that fails raises OSError, and it gives up after a few seconds: a machine that cannot reach
the place must know that soon.
"""

import contextlib
import math
import os
import uuid
from pathlib import Path
from typing import Protocol

from penstock.data.store.objects import ANSWER_S, ObjectTooLarge, Store
from penstock.files import PRIVATE, sync

PATIENCE_S = 3.0
LARGE_BYTES = 1 << 20
SLOWEST = 125_000.0  # bytes per second of an upload that is still waited for


class MeetingPlace(Protocol):
    """A store of small objects that all hosts of a run can reach."""

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless the name is taken; return whether it was written."""
        ...

    def put(self, name: str, content: bytes) -> None: ...
    def get(self, name: str, max_bytes: int | None = None) -> bytes:
        """Return a whole object. Raises ObjectTooLarge, without reading it, if it is larger."""
        ...

    def list(self, prefix: str) -> dict[str, int]:
        """Return the names below a folder, with their sizes."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        ...


class SharedFolder:
    """A folder that all hosts see. It needs hard links, which cluster file systems have."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file aside and link it to its name.

        A link appears whole or not at all, also on NFS, where O_EXCL alone can show a torn file.
        """
        aside = self._aside(name, content)
        try:
            os.link(aside, self.path / name)
            sync(aside.parent)
            return True
        except FileExistsError:
            return False
        finally:
            aside.unlink()

    def put(self, name: str, content: bytes) -> None:
        self._aside(name, content).replace(self.path / name)

    def get(self, name: str, max_bytes: int | None = None) -> bytes:
        path = self.path / name
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if max_bytes is not None and size > max_bytes:
                raise ObjectTooLarge(str(path), size)
            return file.read() if max_bytes is None else file.read(max_bytes)

    def list(self, prefix: str) -> dict[str, int]:
        found = {}
        for path in (self.path / prefix).glob("*"):
            if not path.name.startswith(".") and path.is_file():
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    found[str(path.relative_to(self.path))] = path.stat().st_size
        return found

    def delete(self, name: str) -> None:
        path = self.path / name
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty, or somebody writes into it
            path.parent.rmdir()

    def _aside(self, name: str, content: bytes) -> Path:
        final = self.path / name
        final.parent.mkdir(parents=True, exist_ok=True)
        aside = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
        # For the owner alone: run files and the secret of the hosts are here. Synced before it gets
        # its name: a power cut leaves a whole record or none.
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return aside


class ObjectStore:
    """A prefix of an object store."""

    def __init__(self, url: str) -> None:
        self.store = Store(url, patience_s=PATIENCE_S)

    def __str__(self) -> str:
        return self.store.url

    def create(self, name: str, content: bytes) -> bool:
        return self._store_for(content).create(name, content)

    def put(self, name: str, content: bytes) -> None:
        self._store_for(content).put(name, content)

    def get(self, name: str, max_bytes: int | None = None) -> bytes:
        return self.store.get(name, max_bytes)

    def list(self, prefix: str) -> dict[str, int]:
        return {one.name: one.size for one in self.store.list(prefix)}

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.store.delete(name)

    def _store_for(self, content: bytes) -> Store:
        """Return a store that waits as long as an upload over a slow link takes."""
        if len(content) < LARGE_BYTES:
            return self.store
        answer_s = ANSWER_S + len(content) / SLOWEST
        doubled = ANSWER_S * 2.0 ** math.ceil(math.log2(answer_s / ANSWER_S))  # few clients
        return Store(self.store.url, patience_s=PATIENCE_S, answer_s=doubled)
