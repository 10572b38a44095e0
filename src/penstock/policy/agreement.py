"""How replicas over slow links should agree: in every step, or after local steps by a codec.

Local steps cost loss and save time. Among the ways that keep most of the time for
computing, the policy takes the one that costs the least loss, by the upper end of the measured
range. A way whose loss nobody has measured is taken only if no other keeps the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

ENOUGH = 0.85  # of the time computing
LENGTHS = (10, 30, 100)  # steps of a round that are looked at: those that were measured
LEAST_ROUNDS = 10  # of a run, so that the outer optimizer has something to average
STREAMED = 3  # parts, where the exchange is too long to be waited for


@dataclass(frozen=True)
class AgreementOption:
    """One way to agree, with its prediction."""

    local_steps: int
    codec: str
    parts: int
    optimizer: str
    utilization: float
    loss_low: float | None  # more loss than data parallel, as a share; None: not known
    loss_high: float | None
    fewer_bytes: float
    step_s: float

    @property
    def name(self) -> str:
        when = f"every {self.local_steps} steps" if self.local_steps > 1 else "every step"
        streamed = f" in {self.parts} parts" if self.parts > 1 else ""
        return f"{self.optimizer}, {when} by {self.codec}{streamed}"


def choose(options: Sequence[AgreementOption]) -> tuple[AgreementOption, str]:
    """Return the way to take, and why."""
    known = [one for one in options if one.loss_high is not None]
    enough = [one for one in known if one.utilization >= ENOUGH]
    if enough:
        best = min(enough, key=lambda one: (_high(one), one.parts, -one.utilization))
        return best, f"it costs the least loss of those that compute {ENOUGH:.0%} of the time"
    unknown = [one for one in options if one not in known and one.utilization >= ENOUGH]
    if unknown:
        best = min(unknown, key=lambda one: (one.local_steps, one.parts, -one.utilization))
        return best, (
            f"no way with a measured loss computes {ENOUGH:.0%} of the time; nobody has measured "
            "what this one costs"
        )
    best = max(known or options, key=lambda one: one.utilization)
    return best, f"nothing computes {ENOUGH:.0%} of the time over this link; it computes most"


def _high(option: AgreementOption) -> float:
    return 0.0 if option.loss_high is None else option.loss_high
