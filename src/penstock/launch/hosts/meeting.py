"""Where the hosts of a run meet: small objects in a folder that they share, or behind a URL.

Four calls are all that a lease and the exchange of records need. What fails is an OSError. A call
gives up after a few seconds: whoever cannot reach the others' place must know it soon.
"""

import os
import re
import secrets
import uuid
from pathlib import Path
from typing import Protocol

from penstock.data.store.objects import Store, is_url
from penstock.errors import RunFailed
from penstock.files import PRIVATE, sync
from penstock.run.schema.run import Run

PATIENCE_S = 3.0
SECRET_BYTES, MOST_SECRETS = 32, 100
_SECRET = "secret"


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
            sync(aside.parent)
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
        # For the owner alone: run files and the secret of the hosts lie here. Synced before it has
        # its name: a power cut leaves a whole record or none.
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
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


def secret_of(place: Place) -> str:
    """Return the secret of the run's hosts: the first host makes it, the others read it.

    One that cannot be read is passed over for the next by all hosts alike.
    """
    for number in range(1, MOST_SECRETS):
        name = f"{_SECRET}/{number:06d}"
        try:
            found = place.get(name)
        except FileNotFoundError:
            place.create(name, secrets.token_hex(SECRET_BYTES).encode())
            found = place.get(name)  # its own, or that of a host that was first
        if re.fullmatch(rb"[0-9a-f]{%d}" % (2 * SECRET_BYTES), found):
            return found.decode()
    raise RunFailed(f"{place}: none of {MOST_SECRETS - 1} secrets of the hosts can be read")


def of(run: Run) -> Folder | Url:
    """The durable place of the run, or its folder, which then has to be one that all hosts see."""
    durable = run.guard.durable
    if durable is None:
        return Folder(run.folder / "meeting")
    if is_url(durable):
        return Url(f"{durable.rstrip('/')}/{run.name}/meeting")
    return Folder(Path(durable).expanduser() / run.name / "meeting")
