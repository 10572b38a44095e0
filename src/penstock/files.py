"""Files that are whole or not there. Below every room, like `errors`."""

import os
from pathlib import Path


def write_synced(path: Path, content: bytes) -> None:
    """On disk when it returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, text: str) -> None:
    """A reader sees the old or the new file, never a half."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    write_synced(aside, text.encode())
    aside.replace(path)


def sync(path: Path) -> None:
    """A file's content, or a folder's entries, on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
