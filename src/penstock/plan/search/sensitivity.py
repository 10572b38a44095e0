"""Sensitivities: what 10 % more of one resource gives, in per cent of throughput.

Each is the model run again on a machine that has 10 % more of the one thing. Together they say what
the run is short of better than any single share of the step does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.plan.hardware.machine import INSIDE, Machine, NetworkTier
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import PeakMemory, StepTime
from penstock.plan.life.recovery import storage_rates

MORE = 1.1
# Curves of a probe, in seconds by size, by what they are short of; a precision follows the name.
PROBED = {
    "compute": ("matmul_s", "attention_s"),
    "memory_bandwidth": (
        "norm_s",
        "rotary_s",
        "gate_s",
        "add_s",
        "loss_s",
        "shard_s",
        "update_s",
    ),
    "scale_up_bandwidth": ("all_reduce_s",),
}
Curves = Mapping[str, tuple[tuple[float, ...], ...]]

# The name in a plan, and what a person calls it.
RESOURCES = {
    "compute": "compute rate",
    "memory_bandwidth": "memory bandwidth",
    "memory_capacity": "memory",
    "scale_up_bandwidth": "bandwidth inside the node",
    "scale_out_bandwidth": "bandwidth between nodes",
    "latency": "(lower) network latency",
    "storage": "storage speed",
    "host": "host speed",
}


@dataclass(frozen=True)
class LayoutOption:
    """Another layout of the same run that the search tried."""

    layout: Layout
    tokens_per_s: float  # a ceiling for one that does not fit
    memory: PeakMemory
    reason: str = ""  # why it was not taken

    def to_json(self) -> dict[str, Any]:
        return {
            "layout": self.layout.to_json(),
            "tokens_per_s": self.tokens_per_s,
            "peak_bytes": self.memory.peak_bytes,
            "fits": self.memory.fits,
            "reason": self.reason,
        }


def sensitivities(
    job: Job,
    step: StepTime,
    step_of: Callable[[Job], StepTime],
    wall_of: Callable[[Job, StepTime], float],
    options: tuple[LayoutOption, ...] = (),
) -> dict[str, float]:
    """Return per cent more throughput by resource. Storage shows only in `wall_of`, the whole
    run.
    """
    gains = {
        name: step.step_s / step_of(replace(job, machine=better)).step_s
        for name, better in _better(job.machine).items()
    }
    read, write = storage_rates(job.machine)
    faster = replace(job.machine, read_bytes_per_s=MORE * read, write_bytes_per_s=MORE * write)
    gains["storage"] = wall_of(job, step) / wall_of(replace(job, machine=faster), step)
    gains["memory_capacity"] = _roomier(job, step, step_of, options)
    # Launches and data loading are the host's work, one after the other.
    hosted = step.parts.get("launch", 0.0) + step.parts.get("data", 0.0)
    gains["host"] = step.step_s / (step.step_s - hosted * (1 - 1 / MORE))
    return {name: 100 * max(0.0, gains[name] - 1) for name in RESOURCES}


def _better(machine: Machine) -> dict[str, Machine]:
    inside = tuple(_wider(t) if t.name in INSIDE else t for t in machine.tiers)
    outside = tuple(t if t.name in INSIDE else _wider(t) for t in machine.tiers)
    nearer = tuple(replace(t, hop_s=t.hop_s / MORE) for t in machine.tiers)
    # A chip with a higher rate that may not draw more power would not reach it.
    compute = replace(
        machine,
        matmul_flops={kind: rate * MORE for kind, rate in machine.matmul_flops.items()},
        matmuls={
            kind: tuple(replace(point, flops=point.flops * MORE) for point in points)
            for kind, points in machine.matmuls.items()
        },
        tdp_w=machine.tdp_w and machine.tdp_w * MORE,
    )
    better = {
        "compute": compute,
        "memory_bandwidth": replace(machine, memory_bytes_per_s=machine.memory_bytes_per_s * MORE),
        "scale_up_bandwidth": replace(machine, tiers=inside),
        "scale_out_bandwidth": replace(machine, tiers=outside),
        "latency": replace(machine, tiers=nearer),
    }
    return {
        name: replace(changed, curves=_quicker(machine.curves, PROBED.get(name, ())))
        for name, changed in better.items()
    }


def _roomier(
    job: Job, step: StepTime, step_of: Callable[[Job], StepTime], options: tuple[LayoutOption, ...]
) -> float:
    """Return the gain from more memory, which helps only through a faster layout that it makes
    room for. A rejected layout has only a ceiling for its rate, so its time is predicted here.
    """
    near = [
        step.step_s / step_of(job.with_layout(o.layout)).step_s
        for o in options
        if not o.memory.fits and o.memory.short_bytes <= (MORE - 1) * o.memory.capacity_bytes
    ]
    return max(near, default=1.0)


def _wider(tier: NetworkTier) -> NetworkTier:
    return replace(tier, bytes_per_s=tier.bytes_per_s * MORE)


def _quicker(curves: Curves, names: tuple[str, ...]) -> Curves:
    """Return the curves of these names with every time shortened; sizes stay."""
    return {
        name: tuple((*sizes, seconds / MORE) for *sizes, seconds in points)
        if name.startswith(names)
        else points
        for name, points in curves.items()
    }
