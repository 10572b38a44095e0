"""How far a rank has come."""

from dataclasses import dataclass

from penstock.train.replicas.reduce import Vote


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
