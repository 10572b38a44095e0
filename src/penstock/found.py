"""A path as a file gives it, with where it was found. Below every room, like `errors`.

A run keeps its paths as they were written, so that it stays the same run wherever it is gone on
with; what opens one asks `located`.
"""

from pathlib import Path


class FoundPath(str):
    """A relative path as it stands in a run file, which knows where it lies."""

    where: str

    def __new__(cls, given: str, where: str = "") -> "FoundPath":
        found = super().__new__(cls, given)
        found.where = where or given
        return found


def located(given: str) -> str:
    """Where the path was found; a plain text is as it is, from the current folder."""
    return given.where if isinstance(given, FoundPath) else given


def place_of(given: str) -> Path:
    """The same as a path, `~` resolved."""
    return Path(located(given)).expanduser()
