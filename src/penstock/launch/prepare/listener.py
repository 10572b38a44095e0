"""The listener of a launch: what a launch tells a display. It needs no torch."""

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.policy.straggler import StragglerChange
from penstock.run.folder import RunFolder

if TYPE_CHECKING:
    from penstock.launch.prepare.resume import ResumeDecision


class Listener:
    """A listener that shows nothing; a display overrides what it wants to show."""

    def machine_found(self, machine: str) -> None:
        """Show the machine, in words: `2 CPU cores`."""

    def warning(self, words: str) -> None:
        """Show something about the run that its owner should know before it starts."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Show work before the launch, such as building the dataset."""

    def resuming(self, how: "ResumeDecision", folder: RunFolder) -> None:
        """Show whether the run is new, resumes or has finished."""

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        """Show that the ranks are about to start."""

    def queued(self, words: str) -> None:
        """Show what an engine says of a job: why it waits, where it runs, how it ended."""

    def following(
        self, folder: RunFolder, plan: dict[str, Any], ask: Callable[[str], None]
    ) -> None:
        """Show a run that trains on other machines; `ask` takes "save" or "stop" to it."""

    def detached(self, words: str) -> None:
        """Show that a run on other machines is no longer followed, and goes on."""

    def host_message(self, words: str) -> None:
        """Show a sentence about the hosts of a run: who leads, who came, who left."""

    def fault(self, rank: int, reason: str, action: str) -> None:
        """Show that a rank failed; `action` is `restart`, `restart with LAYOUT` or `give_up`."""

    def straggler(self, change: StragglerChange) -> None:
        """Show that a rank delays the others, or does not any more."""

    def stopping(self) -> None:
        """Show that a signal asked for a stop; the ranks save first."""

    def over_budget(self, words: str) -> None:
        """Show that the budget is spent; the ranks save and stop."""

    def paused(self, words: str) -> None:
        """Show that the run waits for a better hour; "" when it goes on."""

    def resized(self, words: str) -> None:
        """Show that the run goes on with fewer ranks in an hour with less power, or with all."""

    def tick(self) -> None:
        """Refresh the display; called ten times a second while the ranks run."""

    def problem(self) -> str:
        """Return why nothing is shown any more; "" while the display works."""
        return ""


class SafeListener(Listener):
    """A listener whose errors never reach the run: after the first one it is not called again."""

    def __init__(self, shown: Listener) -> None:
        self._shown = shown
        self._error = ""

    def problem(self) -> str:
        return self._error or self._shown.problem()

    def _show(self, call: Callable[[], None]) -> None:
        if self._error:
            return
        try:
            call()
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
            with contextlib.suppress(Exception):  # its terminal may be what broke
                sys.stderr.write(f"the display failed: {self._error}; the run goes on without it\n")

    def machine_found(self, machine: str) -> None:
        self._show(lambda: self._shown.machine_found(machine))

    def progress(self, what: str, done: int, total: int) -> None:
        self._show(lambda: self._shown.progress(what, done, total))

    def resuming(self, how: "ResumeDecision", folder: RunFolder) -> None:
        self._show(lambda: self._shown.resuming(how, folder))

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        self._show(lambda: self._shown.launching(folder, plan))

    def queued(self, words: str) -> None:
        self._show(lambda: self._shown.queued(words))

    def following(
        self, folder: RunFolder, plan: dict[str, Any], ask: Callable[[str], None]
    ) -> None:
        self._show(lambda: self._shown.following(folder, plan, ask))

    def detached(self, words: str) -> None:
        self._show(lambda: self._shown.detached(words))

    def host_message(self, words: str) -> None:
        self._show(lambda: self._shown.host_message(words))

    def fault(self, rank: int, reason: str, action: str) -> None:
        self._show(lambda: self._shown.fault(rank, reason, action))

    def straggler(self, change: StragglerChange) -> None:
        self._show(lambda: self._shown.straggler(change))

    def warning(self, words: str) -> None:
        self._show(lambda: self._shown.warning(words))

    def stopping(self) -> None:
        self._show(self._shown.stopping)

    def over_budget(self, words: str) -> None:
        self._show(lambda: self._shown.over_budget(words))

    def paused(self, words: str) -> None:
        self._show(lambda: self._shown.paused(words))

    def resized(self, words: str) -> None:
        self._show(lambda: self._shown.resized(words))

    def tick(self) -> None:
        self._show(self._shown.tick)
