"""A blow that fell on a run."""

import time
from dataclasses import dataclass

from penstock.meter.clock import now

# From the machine's monotonic clock, which all processes share, to that of the journal.
OFFSET_S = now() - time.monotonic()
# What a rank does not live through.
LETHAL = frozenset({"kill", "kill_soon", "stop", "exit", "raise", "oom"})


@dataclass(frozen=True)
class Struck:
    """When it was, by the machine's monotonic clock, and whom it hit."""

    t: float
    attempt: int
    rank: int | None
    what: str
    lethal: bool

    def __str__(self) -> str:
        who = f"rank {self.rank}, " if self.rank is not None else ""
        return f"{self.what} ({who}attempt {self.attempt})"
