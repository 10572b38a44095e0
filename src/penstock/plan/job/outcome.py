"""The predictions of the two models of a step: its time, its memory, and their error bands.

Every other part of a plan reads these three and none of them knows how a number came about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COMPUTE_PARTS = (
    "matmul",
    "attention",
    "elementwise",
    "loss",
    "optimizer",
    "recompute",
    "reference",
    "launch",
    "experts",
    "outer",
)
COMMUNICATE_PARTS = (
    "tensor",
    "context",
    "gather",
    "reduce",
    "all-to-all",
    "pipeline",
    "exchange",
)
# Replicas that take local steps: the work of the outer step and the exposed exchange of a round,
# divided by its steps.
OUTER_PARTS = ("outer", "exchange")
STEP_PARTS = (*COMPUTE_PARTS, *COMMUNICATE_PARTS, "bubble", "jitter", "data")
STEP_CAUSES = ("compute", "communicate", "bubble", "peer_wait", "data_wait")
MEMORY_PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "outer",  # anchor, outer momentum and error feedback of replicas that take local steps
    "activations",
    "logits",
    "buffers",
    "cached",  # held by the allocator and not in use
    "context",  # outside the allocator: CUDA's context and communicators
)
OUTSIDE_PARTS = ("cached", "context")


@dataclass(frozen=True)
class StepTime:
    """The time of one optimizer step: wall-clock seconds of the slowest rank."""

    parts: Mapping[str, float]
    """Seconds by part, keys of ``STEP_PARTS``; they add up to ``step_s``."""
    causes: Mapping[str, float]
    """Seconds by cause, keys of ``STEP_CAUSES``; they add up to ``step_s``."""
    step_s: float
    tokens: int
    """Of the step, over all ranks."""
    model_flops: float
    """Of the step, over all ranks, recomputation not counted."""
    notes: tuple[str, ...] = ()
    """Lines of derivation."""

    @property
    def inner_s(self) -> float:
        """Return the step without what replicas that take local steps exchange."""
        return self.step_s - sum(self.parts.get(name, 0.0) for name in OUTER_PARTS)


@dataclass(frozen=True)
class PeakMemory:
    """The memory of the fullest rank at its peak."""

    parts: Mapping[str, float]
    """Bytes by part, keys of ``MEMORY_PARTS``."""
    stage: int
    """The pipeline stage the fullest rank works on."""
    capacity_bytes: float
    high: float = 1.0
    """Upper end of the error band, over the prediction."""

    @property
    def allocated_bytes(self) -> float:
        """Return the peak of what torch has allocated."""
        return sum(size for name, size in self.parts.items() if name not in OUTSIDE_PARTS)

    @property
    def reserved_bytes(self) -> float:
        """Return the peak of what torch's allocator has reserved."""
        return self.allocated_bytes + self.parts.get("cached", 0.0)

    @property
    def peak_bytes(self) -> float:
        """Return the peak that the device shows as used."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Tell whether even the upper end of the band fits."""
        return self.peak_bytes * self.high <= self.capacity_bytes

    @property
    def short_bytes(self) -> float:
        """Return what is missing for the upper end of the band; below zero where it fits."""
        return self.peak_bytes * self.high - self.capacity_bytes

    @property
    def margin(self) -> float:
        """Return the share of the capacity that is left; negative when the peak does not fit."""
        return 1.0 - self.peak_bytes / self.capacity_bytes


@dataclass(frozen=True)
class Band:
    """Factors on an estimate between which 80 % of its residuals fell."""

    low: float
    high: float
