"""Files that are whole or not there. Below every room, like `errors`."""

import os
from pathlib import Path

READABLE, PRIVATE = 0o666, 0o600  # modes of a new file, before the umask


def write_synced(path: Path, content: bytes, mode: int = READABLE) -> None:
    """On disk when it returns; a new file gets `mode`, less the umask."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, text: str, mode: int = READABLE) -> None:
    """A reader sees the old or the new file, never a half."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)  # of a process that was killed: its mode may be another
    write_synced(aside, text.encode(), mode)
    aside.replace(path)


def sync(path: Path) -> None:
    """A file's content, or a folder's entries, on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
