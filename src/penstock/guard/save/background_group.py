"""Process group for threads beside the training loop.

They must not use the loop's own groups: two threads that communicate over one group mix their
messages.
"""

from dataclasses import dataclass
from typing import Any

from penstock.guard.save import exchange


@dataclass(frozen=True)
class BackgroundGroup:
    """The ranks, as a thread beside the loop reaches them."""

    rank: int
    ranks: int
    group: Any  # gloo

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value on every rank; raises if a rank is gone."""
        if self.ranks == 1:
            return [value]
        return exchange.gather(value, self.ranks, self.group)
