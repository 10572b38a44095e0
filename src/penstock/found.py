"""Paths from a run file that remember where they were found. Below every room, like `errors`.

A run keeps its paths as they were written, so that it stays the same run wherever it is resumed;
code that opens a path calls `located`.
"""

from pathlib import Path


class FoundPath(str):
    """A relative path as written in a run file, with its real location."""

    where: str

    def __new__(cls, written: str, where: str = "") -> "FoundPath":
        path = super().__new__(cls, written)
        path.where = where or written
        return path


def located(given: str) -> str:
    """Return the real location of a path; plain text is relative to the current folder."""
    return given.where if isinstance(given, FoundPath) else given


def expanded_path(given: str) -> Path:
    """Return the real location as a Path, with `~` resolved."""
    return Path(located(given)).expanduser()
