"""What a build tells while it works, so that a terminal, a log or a test can show it."""

import sys
from typing import Protocol

WARNING = "warning: "  # begins such a note


class Watcher(Protocol):
    def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
        """A stage begins. Totals count what this attempt still has to do; None: not yet known."""

    def did(self, documents: int, bytes: int) -> None:
        """So much of the stage was done since the last call."""

    def note(self, text: str) -> None:
        """A sentence worth a line: a wait, work found done, damage."""


class Quiet:
    """Says nothing."""

    def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
        pass

    def did(self, documents: int, bytes: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class WarningsOnly(Quiet):
    """Says what must not be missed, on the error stream."""

    def note(self, text: str) -> None:
        if text.startswith(WARNING):
            sys.stderr.write(f"{text}\n")
