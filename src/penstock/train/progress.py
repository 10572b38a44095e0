"""How far a rank has come."""

from dataclasses import dataclass

from penstock.train.replicas.reduce import Vote


@dataclass
class Progress:
    step: int = 0  # the last one that it passed
    due: Vote | None = None  # of that step, until all that it asked for is done
    over: bool = False  # the run ends here
    whole: bool = False  # it has the state of `step`: loaded, made or taken from another replica

    @property
    def looked(self) -> int:
        """The last step that the sentinels need not look at, where a run goes on.

        Of replicas that meet some may have looked and some not: with anything due, all do.
        """
        return self.step - 1 if self.due and self.step else self.step
