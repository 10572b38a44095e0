"""Paths whose files are objects: a build names them as it names files of a folder.

Only what builds do with files works here. An object is written whole or not at all, so none needs
a temporary name, a sync or a rename.
"""

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path, PosixPath
from typing import Any, NoReturn, TypeVar

from penstock.data.store.objects import ObjectInfo, Store, is_url, split_url

READERS = 16  # requests at a time; each one waits for the network most of the time
_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class ObjectPath(PosixPath):
    """The path of an object, such as s3:/bucket/key. Picklable; `url` is its address."""

    @property
    def url(self) -> str:
        scheme, _, rest = str(self).partition(":/")
        return f"{scheme}:///{rest}" if scheme == "file" else f"{scheme}://{rest}"

    @property
    def key(self) -> str:
        """Return the name of the object in its store."""
        return split_url(self.url)[1]

    @property
    def store(self) -> Store:
        return _store(split_url(self.url)[0])

    def exists(self, **_: Any) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self, **_: Any) -> bool:
        try:
            self.store.head(self.key)
            return True
        except FileNotFoundError:
            return False

    def is_dir(self, **_: Any) -> bool:
        """Return whether there is any object below this path."""
        folders, objects = self._entries()
        return bool(folders or objects)

    def iterdir(self) -> Iterator["ObjectPath"]:  # type: ignore[override]
        folders, objects = self._entries()
        for name in (*folders, *(one.name for one in objects)):
            yield self / name

    def sizes(self) -> dict[str, int]:
        """Return the size of every object directly below this path, by name."""
        return {one.name: one.size for one in self._entries()[1]}

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Do nothing: a store has no folders."""

    def read_bytes(self) -> bytes:
        return self.store.get(self.key)

    def read_text(self, *_: Any, **__: Any) -> str:
        return self.read_bytes().decode()

    def write_bytes(self, data: Any) -> int:
        self.store.put(self.key, bytes(data))
        return len(data)

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.store.delete(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def open(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.ENOTSUP, f"{self.url} is an object; it cannot be opened as a file")

    def _entries(self) -> tuple[Sequence[str], Sequence[ObjectInfo]]:
        try:
            return self.store.list_folder(self.key)
        except FileNotFoundError:  # `file:` stores have folders
            return [], []


@lru_cache(maxsize=16)
def _store(base: str) -> Store:
    return Store(base)


def place(where: str | Path) -> Path:
    """Return the path of a folder, or of a prefix of an object store if `where` is a URL."""
    if isinstance(where, str) and where.startswith("file://"):
        return Path("/", split_url(where)[1])
    return ObjectPath(where) if is_url(where) else Path(where).expanduser()


def location(path: Path) -> str:
    """Return the address for people and for opening: a URL, or the path."""
    return path.url if isinstance(path, ObjectPath) else str(path)


def existing(paths: Sequence[Path]) -> set[Path]:
    """Return the paths that exist. Objects are listed by folder: one request each takes hours."""
    found: set[Path] = set()
    listed: dict[Path, set[str]] = {}
    for path in paths:
        if not isinstance(path, ObjectPath):
            if path.exists():
                found.add(path)
            continue
        if path.parent not in listed:
            listed[path.parent] = {one.name for one in path.parent.iterdir()}
        if path.name in listed[path.parent]:
            found.add(path)
    return found


def remove_tree(path: Path) -> None:
    """Remove a folder and all below it, if it is there."""
    if not isinstance(path, ObjectPath):
        shutil.rmtree(path, ignore_errors=True)
        return
    store, key = path.store, path.key
    names = [one.name for one in _listed(store, key)]
    list(map_places(lambda name: _delete(store, name), names, path))


def _listed(store: Store, key: str) -> Any:
    try:
        return store.list(key)
    except FileNotFoundError:
        return []


def _delete(store: Store, name: str) -> None:
    try:
        store.delete(name)
    except FileNotFoundError:  # another attempt has deleted it
        return


def map_places(
    function: Callable[[_Item], _Answer], items: Iterable[_Item], like: Path | None
) -> Iterator[_Answer]:
    """Call the function for each item and yield the answers in order.

    Where files are objects (`like` is one), several calls wait for the network at a time.
    """
    if not isinstance(like, ObjectPath):
        yield from map(function, items)
        return
    with ThreadPoolExecutor(READERS, thread_name_prefix="penstock-objects") as pool:
        yield from pool.map(function, items)
