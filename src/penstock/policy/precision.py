"""The number format that `train.precision = "auto"` means, and a warning when a given one is slow.

One rule for a launch, a plan, a probe and a report. They differ only in where the speed of bf16
comes from: a measurement, a probe, the catalog, or what the kernel says of the CPU.
"""

from dataclasses import dataclass
from typing import Literal

from penstock.meter.precision import FASTER, Bf16Speed

# A given precision is worth a warning from this factor on. fp32 is often a deliberate choice.
SLOW = 3.0


@dataclass(frozen=True)
class PrecisionChoice:
    """A number format, and the reason for it in words."""

    precision: Literal["fp32", "bf16"]
    why: str


def choose_precision(bf16: Bf16Speed, weights: str = "fp32") -> PrecisionChoice:
    """Return what "auto" means. Weights kept in bf16 need bf16 matmuls, fast or slow."""
    if weights == "bf16":
        return PrecisionChoice("bf16", 'train.weights = "bf16" needs it')
    return PrecisionChoice("bf16" if bf16.fast else "fp32", bf16.words)


def warning(precision: str, bf16: Bf16Speed) -> str:
    """Return the warning about a precision that is slow on this device; "" if it is not."""
    if precision == "bf16":
        if bf16.speedup == 0:
            return (
                f'train.precision = "bf16": {bf16.words} and emulates them slowly; "fp32" is faster'
            )
        if bf16.speedup is not None and bf16.speedup < 1 / FASTER:
            return f'train.precision = "bf16": {bf16.words}; "fp32" is faster'
    if precision == "fp32" and bf16.speedup is not None and bf16.speedup >= SLOW:
        return f'train.precision = "fp32": {bf16.words}; "bf16" is faster'
    return ""
