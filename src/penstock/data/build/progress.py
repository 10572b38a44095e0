"""Watchers: the interface through which a build reports to a terminal, a log or a test."""

import sys
from typing import Protocol

WARNING = "warning: "  # prefix of notes that are warnings


class BuildWatcher(Protocol):
    """A receiver of the progress of a build."""

    def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
        """Begin a stage. Totals count what this attempt still has to do; None: not known yet."""

    def did(self, documents: int, bytes: int) -> None:
        """Add work of the stage that was done since the last call."""

    def note(self, text: str) -> None:
        """Show a sentence: a wait, work that was done before, damage."""


class SilentWatcher:
    """A watcher that shows nothing."""

    def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
        pass

    def did(self, documents: int, bytes: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class WarningsOnly(SilentWatcher):
    """A watcher that writes warnings to stderr and nothing else."""

    def note(self, text: str) -> None:
        if text.startswith(WARNING):
            sys.stderr.write(f"{text}\n")
