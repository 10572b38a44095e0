"""The ranks as threads beside the loop meet them: over a group of their own.

The loop's own groups are not for them: two threads that meet others over one group mix their
messages.
"""

from dataclasses import dataclass
from typing import Any

from penstock.guard.save import exchange


@dataclass(frozen=True)
class BackgroundGroup:
    rank: int
    ranks: int
    group: Any  # gloo

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value on every rank; raises when one of them is gone."""
        if self.ranks == 1:
            return [value]
        return exchange.gather(value, self.ranks, self.group)
