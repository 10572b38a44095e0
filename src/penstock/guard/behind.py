"""The ranks as threads beside the loop meet them: over a group of their own.

The loop's own groups are not for them: two threads that meet others over one group mix their
messages.
"""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class Behind:
    rank: int
    ranks: int
    group: Any  # gloo

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value on every rank; raises when one of them is gone."""
        if self.ranks == 1:
            return [value]
        every: list[Any] = [None] * self.ranks
        dist.all_gather_object(every, value, group=self.group)
        return every
