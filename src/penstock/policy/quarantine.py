"""Quarantine of hardware that fails by its own fault: a node, or one accelerator of it, after two
strikes.

Some faults say nothing about the hardware: a host that announced its preemption, a layout that does
not fit, and a process that was killed by a signal.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Kind = Literal["lost", "rank", "differs"]

STRIKES = 2
# A host that was cut off once a month is not a bad host.
FORGIVEN_S = 24 * 3600.0

# Messages of drivers and collectives that blame the device itself.
_DEVICE = re.compile(
    r"uncorrectable|ECC error|NVLink|Xid|hardware error|device-side .*unavailable|"
    r"GPU (has fallen off|is lost)|cudaErrorDevicesUnavailable|unspecified launch failure|"
    r"CUDA error: (an illegal instruction|misaligned address|hardware stack)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class HardwarePart:
    """A node, or one accelerator of it."""

    node: str
    accelerator: int | None = None

    def __str__(self) -> str:
        which = "" if self.accelerator is None else f", accelerator {self.accelerator}"
        return f"{self.node}{which}"


@dataclass(frozen=True)
class Strike:
    """One fault that counts against a part."""

    part: HardwarePart
    t_s: float
    reason: str


@dataclass(frozen=True)
class QuarantineState:
    """The strikes so far, and the parts that are left out."""

    strikes: tuple[Strike, ...] = ()
    out: tuple[HardwarePart, ...] = ()  # left out for the rest of the run

    def node_out(self, node: str) -> bool:
        return HardwarePart(node) in self.out

    def usable(self, node: str, accelerators: int) -> list[int]:
        """Return the accelerators of a node that may work; none of a node that is left out."""
        if self.node_out(node):
            return []
        return [a for a in range(accelerators) if HardwarePart(node, a) not in self.out]


@dataclass(frozen=True)
class HardwareFault:
    """A failure. `lost`: the whole host disappeared without a word."""

    node: str
    accelerator: int | None  # None: one of them
    reason: str
    t_s: float
    kind: Kind


def part_at_fault(fault: HardwareFault) -> HardwarePart | None:
    """Return the part that the fault counts against; None when it says nothing of the hardware."""
    if fault.kind == "lost":
        return HardwarePart(fault.node)
    if fault.kind == "differs" or _blames_device(fault.reason):
        return HardwarePart(fault.node, fault.accelerator)
    return None


@lru_cache(maxsize=256)  # a simulation asks about the same few reasons a million times
def _blames_device(reason: str) -> bool:
    return _DEVICE.search(reason) is not None


def decide(
    state: QuarantineState, fault: HardwareFault
) -> tuple[QuarantineState, HardwarePart | None]:
    """Return the strikes after this fault, and the part that is left out from now on, if any."""
    part = part_at_fault(fault)
    if part is None:
        return state, None
    strikes, against = [], 1
    for strike in state.strikes:
        if fault.t_s - strike.t_s < FORGIVEN_S:
            strikes.append(strike)
            against += strike.part == part
    strikes.append(Strike(part, fault.t_s, fault.reason))
    if against < STRIKES or part in state.out:
        return QuarantineState(tuple(strikes), state.out), None
    return QuarantineState(tuple(strikes), (*state.out, part)), part
