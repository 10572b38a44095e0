"""Atomic and synced file writes. Below every room, like `errors`."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import PenstockError

READABLE, PRIVATE = 0o666, 0o600  # modes of a new file, before the umask
_PROCESS = secrets.token_hex(4)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def process_name() -> str:
    """Return a name that no other process has, for temporary files.

    Machines that share a folder have processes with equal ids, and containers equal host names.
    """
    return f"{os.getpid()}-{_PROCESS}"


def write_synced(path: Path, content: bytes, mode: int = READABLE) -> None:
    """Write a file that is on disk when this returns; a new file gets `mode`, less the umask."""
    with naming(path), os.fdopen(os.open(path, _NEW, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def refuse_existing(path: Path, force: bool, deed: str = "replace it", other: str = "") -> None:
    """Raise PenstockError for an existing file or a folder that is not empty, unless `force`.

    `deed` says what --force does to it, `other` how to name another place.
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
    """Add the path to an OSError of a write, which the system leaves out: a disk may be full."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_atomic(path: Path, text: str, mode: int = READABLE) -> None:
    """Replace a file so that a reader sees the old or the new one, never a half.

    The new one is on disk under its name when this returns.
    """
    write_whole(path, text.encode(), mode)


def write_whole(path: Path, content: bytes, mode: int = READABLE) -> None:
    """Write bytes as `write_atomic` writes text."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)  # left by a killed process, perhaps with another mode
    write_synced(aside, content, mode)
    aside.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
