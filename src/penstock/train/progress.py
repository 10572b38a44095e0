"""How far a rank has come, and the loss curve that it writes."""

from dataclasses import dataclass

from penstock.ledger.journal.writer import Journal
from penstock.train.replicas.reduce import Vote
from penstock.train.world.world import World


@dataclass
class Progress:
    """Position of a rank in the run."""

    step: int = 0  # the last optimizer step that it has passed
    pending: Vote | None = None  # of that step, until everything that it asked for is done
    finished: bool = False  # the run ends here
    has_state: bool = False  # of `step`: loaded, computed or received from another replica
    checked_step: int = 0  # the last step that the anomaly guard has checked

    def reset_checked(self) -> None:
        """Decide which step the anomaly guard checks next, after a resume or a rewind.

        Replicas may disagree about whether the last step was checked; if work is pending, all of
        them check it again.
        """
        self.checked_step = self.step - 1 if self.pending and self.step else self.step


@dataclass
class LossCurve:
    """The points of the loss curve, one per step that changed the weights.

    One rank writes them. All others remember the last point: in live mode the rank that writes may
    be lost before it has written it.
    """

    journal: Journal
    world: World
    _last: tuple[int, float, float, float, int] | None = None

    def add(self, step: int, vote: Vote, rate: float, tokens: int) -> None:
        """Add the point of a step; `tokens` is how many the run has trained on."""
        self._last = step, vote.loss, vote.grad_norm, rate, tokens
        if self.world.lead:
            self.flush()

    def flush(self) -> None:
        """Write the last point, if this rank has not."""
        if self._last:
            self.journal.curve(*self._last)
        self._last = None
