"""Rounds of local steps: after which steps replicas agree, and when a part of the model travels.

A round is `length` steps, and the last one of a run may be shorter. Without streaming the whole
model is exchanged at the end of a round, and training waits for it. With it, the parts of the model
leave in turn, one every `length / parts` steps, and are due when the next one leaves: each is late
by that much, and never by a whole round. After the last step nothing is late.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Rounds:
    """The calendar of a run's rounds. Steps count from 1; a round of one step is plain training."""

    steps: int  # of the whole run
    length: int = 1  # steps of a round
    parts: int = 1  # of the model; more than one are streamed

    def ends(self, step: int) -> bool:
        """Return whether a round ends with `step`: all replicas agree there on what to do next."""
        return step % self.length == 0 or step == self.steps

    def before(self, step: int) -> int:
        """Return the last step of the round before that of `step`."""
        return (step - 1) // self.length * self.length

    @property
    def late_steps(self) -> int:
        """Return how many steps are taken while a part travels."""
        return self.length // self.parts if self.parts > 1 else 0

    def leaving(self, step: int) -> Iterator[int]:
        """Yield the parts whose exchange begins after `step`."""
        for part in range(self.parts):
            if step == self.steps or (step - self._offset(part)) % self.length == 0:
                yield part

    def arriving(self, step: int) -> Iterator[int]:
        """Yield the parts that have travelled since an earlier step and are due after `step`."""
        late = self.late_steps
        for part in range(self.parts) if late else ():
            left = step - (step - self._offset(part)) % self.length  # when it last left
            if left == step:
                left -= self.length  # it leaves again, after it has arrived
            due = left + late
            if left > 0 and (due == step or (step == self.steps and due > step)):
                yield part

    @property
    def count(self) -> int:
        """Return the number of rounds of the run; the last one may be shorter."""
        return -(-self.steps // self.length)

    def times_leaving(self, part: int) -> int:
        """Return how often a part is sent in the whole run."""
        late = self.steps - self._offset(part)
        if late < 0:
            return 1  # after the last step only
        return late // self.length + 1 + (late % self.length > 0)

    def _offset(self, part: int) -> int:
        """Return the place in a round after which a part leaves."""
        return (part + 1) * self.length // self.parts


def part_of(start: int, length: int, whole: int, parts: int) -> int:
    """Return the part of the model that a tensor travels in, by the place of its middle.

    So a large tensor is alone in its part where that is possible.
    """
    return min(parts - 1, (2 * start + length) * parts // max(1, 2 * whole))
