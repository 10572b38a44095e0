"""The exchanges of a run's rounds on one rank: which parts leave and arrive after a step.

In three calls, since a process that simulates several replicas must let all of them send before one
of them can receive: `arrive`, `leave`, `settle`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from penstock.policy.rounds import Rounds
from penstock.train.replicas.outer import Flight, OuterStep


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

    def is_late(self, step: int) -> bool:
        """Return whether training goes on while what leaves after `step` travels."""
        return self.rounds.late_steps > 0 and step < self.rounds.steps

    def leave(self, step: int) -> None:
        """Send the parts whose turn it is."""
        for part in self.rounds.leaving(step):
            self.outer.begin(part, self.tokens[part], self.is_late(step))
            self.tokens[part] = 0

    def settle(self, step: int) -> None:
        """Apply what was just sent, unless training goes on meanwhile."""
        if not self.is_late(step):
            for part in list(self.outer.flights):
                self.outer.finish(part)

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps besides tensors."""
        return {"tokens": self.tokens}

    def resume(self, saved: dict[str, Any] | None) -> None:
        """Go on from loaded tensors; `saved` is this replica's (`to_json`). None: begin a round at
        the anchor, with no memory of the ones before."""
        self.outer.flights = {}
        if saved is None:
            self.outer.restart()
        self.tokens = list(saved["tokens"] if saved else [0] * self.rounds.parts)

    def local_state(self) -> dict[str, Tensor]:
        """Return what is on its way, which a save has to wait for. Its means are whole: the other
        replicas may not be there when it is loaded."""
        found: dict[str, Tensor] = {}
        for part, flight in self.outer.flights.items():
            self.outer.receive(part)
            found |= {f"flight.{part}.{name}": t for name, t in flight.tensors.items()}
        return found

    def load_local_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `local_state` returned; nothing else is on its way then."""
        self.outer.flights = {}
        for part in range(self.rounds.parts):
            mean, sent = (state.get(f"flight.{part}.{name}") for name in ("mean", "sent"))
            if mean is not None:
                device = self.outer.anchor.device
                sent = None if sent is None else sent.to(device)
                self.outer.flights[part] = Flight(sent, None, mean=mean.to(device))
