"""Files that are whole or not there. Below every room, like `errors`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import PenstockError

READABLE, PRIVATE = 0o666, 0o600  # modes of a new file, before the umask
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def write_synced(path: Path, content: bytes, mode: int = READABLE) -> None:
    """On disk when it returns; a new file gets `mode`, less the umask."""
    with naming(path), os.fdopen(os.open(path, _NEW, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def refuse_existing(path: Path, force: bool, deed: str = "replace it", other: str = "") -> None:
    """Refuse to write to a file that is there, or to a folder that is not empty, without `force`.

    `deed` is what --force does to it, `other` how another place is named.
    """
    if force or not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    another = other or "name another"
    raise PenstockError(f"{path} is there already; {deed} with --force, or {another}")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this user can read. A link in its place is not followed."""
    with naming(path), os.fdopen(os.open(path, _NEW | os.O_NOFOLLOW, PRIVATE), "wb") as file:
        file.write(content)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error of a write, which the system leaves out: a disk may be full."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_atomic(path: Path, text: str, mode: int = READABLE) -> None:
    """A reader sees the old or the new file, never a half; the new one is on disk when it
    returns, under its name."""
    write_whole(path, text.encode(), mode)


def write_whole(path: Path, content: bytes, mode: int = READABLE) -> None:
    """Write bytes as `write_atomic` writes text."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)  # of a process that was killed: its mode may be another
    write_synced(aside, content, mode)
    aside.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """A file's content, or a folder's entries, on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
