"""Where the hosts of a run meet: small objects in a folder that they share, or behind a URL.

Four calls are all that a lease and the exchange of records need. What fails is an OSError. A call
gives up after a few seconds: whoever cannot reach the others' place must know it soon.
"""

import os
import uuid
from pathlib import Path
from typing import Protocol

from penstock.data.remote_store import Store, is_url
from penstock.run.file import Run

PATIENCE_S = 3.0


class Place(Protocol):
    def create(self, name: str, content: bytes) -> bool:
        """Write it unless it is there; whether it was not."""
        ...

    def put(self, name: str, content: bytes) -> None: ...
    def get(self, name: str) -> bytes: ...
    def list(self, prefix: str) -> dict[str, int]:
        """Names below a folder of the place, with their sizes."""
        ...


class Folder:
    """A folder that all hosts see. Needs links, which every file system of a cluster has."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def create(self, name: str, content: bytes) -> bool:
        """A link appears whole or not at all, also on NFS, where O_EXCL alone shows a torn file."""
        aside = self._aside(name, content)
        try:
            os.link(aside, self.path / name)
            return True
        except FileExistsError:
            return False
        finally:
            aside.unlink()

    def put(self, name: str, content: bytes) -> None:
        self._aside(name, content).replace(self.path / name)

    def get(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def list(self, prefix: str) -> dict[str, int]:
        return {
            str(path.relative_to(self.path)): path.stat().st_size
            for path in (self.path / prefix).glob("*")
            if path.is_file() and not path.name.startswith(".")
        }

    def _aside(self, name: str, content: bytes) -> Path:
        final = self.path / name
        final.parent.mkdir(parents=True, exist_ok=True)
        aside = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
        aside.write_bytes(content)
        return aside


class Url:
    """Objects behind a URL."""

    def __init__(self, url: str) -> None:
        self.store = Store(url, patience_s=PATIENCE_S)

    def __str__(self) -> str:
        return self.store.url

    def create(self, name: str, content: bytes) -> bool:
        return self.store.create(name, content)

    def put(self, name: str, content: bytes) -> None:
        self.store.put(name, content)

    def get(self, name: str) -> bytes:
        return self.store.get(name)

    def list(self, prefix: str) -> dict[str, int]:
        return {one.name: one.size for one in self.store.list(prefix)}


def of(run: Run) -> Folder | Url:
    """The durable place of the run, or its folder, which then has to be one that all hosts see."""
    durable = run.guard.durable
    if durable is None:
        return Folder(run.folder / "meeting")
    if is_url(durable):
        return Url(f"{durable.rstrip('/')}/{run.name}/meeting")
    return Folder(Path(durable).expanduser() / run.name / "meeting")
