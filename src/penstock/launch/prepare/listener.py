"""What a launch tells whoever shows it. No torch: a display can be made without it."""

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.policy.straggler import StragglerChange
from penstock.run.folder import RunFolder

if TYPE_CHECKING:
    from penstock.launch.prepare.resume import How


class Listener:
    """This one says nothing; a display overrides what it wants to show."""

    def found(self, machine: str) -> None:
        """The machine, in words: `2 CPU cores`."""

    def warning(self, words: str) -> None:
        """Something about the run that its owner should know before it starts."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Work before the launch, such as building the dataset."""

    def going_on(self, how: "How", folder: RunFolder) -> None:
        """Whether the run is new, goes on or has finished."""

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        """The ranks are about to start."""

    def told(self, words: str) -> None:
        """A sentence about the hosts of a run: who leads, who came, who left."""

    def fault(self, rank: int, reason: str, action: str) -> None:
        """A rank failed; the supervisor will `restart`, `restart with LAYOUT` or `give_up`."""

    def straggler(self, change: StragglerChange) -> None:
        """A rank holds the others up, or does not any more."""

    def stopping(self) -> None:
        """Somebody asked for a stop by a signal; the ranks save first."""

    def over_budget(self, words: str) -> None:
        """The budget is spent; the ranks save and stop."""

    def tick(self) -> None:
        """About ten times a second while the ranks run."""

    def problem(self) -> str:
        """Say why nothing is shown any more; "" while it is."""
        return ""


class Shielded(Listener):
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

    def found(self, machine: str) -> None:
        self._show(lambda: self._shown.found(machine))

    def progress(self, what: str, done: int, total: int) -> None:
        self._show(lambda: self._shown.progress(what, done, total))

    def going_on(self, how: "How", folder: RunFolder) -> None:
        self._show(lambda: self._shown.going_on(how, folder))

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        self._show(lambda: self._shown.launching(folder, plan))

    def told(self, words: str) -> None:
        self._show(lambda: self._shown.told(words))

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

    def tick(self) -> None:
        self._show(self._shown.tick)
