"""What a launch tells whoever shows it. No torch: a display can be made without it."""

from typing import TYPE_CHECKING, Any

from penstock.policy.straggler import Change
from penstock.run.folder import RunFolder

if TYPE_CHECKING:
    from penstock.launch.resume import How


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

    def straggler(self, change: Change) -> None:
        """A rank holds the others up, or does not any more."""

    def stopping(self) -> None:
        """Somebody asked for a stop by a signal; the ranks save first."""

    def over_budget(self, words: str) -> None:
        """The budget is spent; the ranks save and stop."""

    def tick(self) -> None:
        """About ten times a second while the ranks run."""
