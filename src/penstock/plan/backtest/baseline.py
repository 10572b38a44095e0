"""The baseline that the planner has to beat: one constant MFU per accelerator and precision.

It is how people estimate by hand: work of a step ÷ (accelerators × peak × a share). The share is
the median of the measured rows, so this is the best that the rule of thumb can do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from penstock.plan.job.job import Job

# Training a low-rank adapter skips the gradients of the frozen weights: 4 of 6 operations remain.
ADAPTER_WORK = 2 / 3


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step."""

    job: Job
    step_s: float
    source: str


@dataclass(frozen=True)
class ConstantMfu:
    """The share of the peak, as fine as the rows allow."""

    by_machine: dict[tuple[str, str], float]  # by (accelerator, precision class)
    by_precision: dict[str, float]
    overall: float | None

    def step_s(self, job: Job) -> float | None:
        """Return the seconds of a step; None without a published peak or any row to learn from."""
        ideal_s = _ideal_s(job)
        kind = precision_class(job.precision)
        share = self.by_machine.get((job.machine.accelerator, kind)) or self.by_precision.get(
            kind, self.overall
        )
        return ideal_s / share if ideal_s and share else None


def fit(points: Sequence[MeasuredStep]) -> ConstantMfu:
    machines: dict[tuple[str, str], list[float]] = {}
    precisions: dict[str, list[float]] = {}
    every: list[float] = []
    for point in points:
        ideal_s = _ideal_s(point.job)
        if ideal_s is None:
            continue
        mfu, kind = ideal_s / point.step_s, precision_class(point.job.precision)
        machines.setdefault((point.job.machine.accelerator, kind), []).append(mfu)
        precisions.setdefault(kind, []).append(mfu)
        every.append(mfu)
    return ConstantMfu(
        {key: median(shares) for key, shares in machines.items()},
        {key: median(shares) for key, shares in precisions.items()},
        median(every) if every else None,
    )


def predictions(points: Sequence[MeasuredStep], leave_one_out: bool) -> list[float | None]:
    """Return the rule's step time of every point; fitted without the point's own source when
    asked.
    """
    if not leave_one_out:
        model = fit(points)
        return [model.step_s(point.job) for point in points]
    without = {
        source: fit([p for p in points if p.source != source])
        for source in {p.source for p in points}
    }
    return [without[point.source].step_s(point.job) for point in points]


def precision_class(precision: str) -> str:
    """Return the rate that the matmuls run at: both 16-bit formats share one, and so do all
    8-bit formats.
    """
    for kind in ("fp4", "fp8", "fp32", "tf32"):
        if kind in precision:
            return kind
    return "bf16"


def _ideal_s(job: Job) -> float | None:
    """Return the seconds at the published peak; of bf16 where the device has no rate for the
    precision.
    """
    peaks = job.machine.peak_flops
    peak = peaks.get(precision_class(job.precision)) or peaks.get("bf16")
    work = job.shape.flops_per_token(job.sequence) * (ADAPTER_WORK if job.adapter else 1.0)
    return job.tokens * work / job.layout.ranks / peak if peak else None
