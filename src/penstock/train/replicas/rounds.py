"""The exchanges of a run's rounds on one rank: which parts leave and arrive after a step.

In three calls, since a process that simulates several replicas must let all of them send before one
of them can receive: `arrive`, `leave`, `settle`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.policy.rounds import Rounds
from penstock.train.replicas.outer import OuterStep


@dataclass
class RoundExchange:
    """The outer steps of one rank, by the calendar of the rounds."""

    rounds: Rounds
    outer: OuterStep
    # By part: tokens that were trained on since its difference was last sent.
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = self.tokens or [0] * self.rounds.parts

    def count(self, tokens: int) -> None:
        """Count the tokens of an inner step that has changed the weights."""
        self.tokens = [before + tokens for before in self.tokens]

    def waiting(self, step: int) -> Iterator[int]:
        """Yield the parts that `arrive` will wait for."""
        return (part for part in self.rounds.arriving(step) if part in self.outer.flights)

    def arrive(self, step: int) -> None:
        """Apply what was sent some steps ago."""
        for part in list(self.waiting(step)):
            self.outer.finish(part)

    def leave(self, step: int) -> None:
        """Send the parts whose turn it is."""
        late = self.rounds.late_steps > 0 and step < self.rounds.steps
        for part in self.rounds.leaving(step):
            self.outer.begin(part, self.tokens[part], late)
            self.tokens[part] = 0

    def settle(self, step: int) -> None:
        """Apply what was just sent, unless training goes on meanwhile."""
        if not self.rounds.late_steps or step == self.rounds.steps:
            for part in list(self.outer.flights):
                self.outer.finish(part)
