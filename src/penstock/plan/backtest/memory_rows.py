"""A row of measured memory, predicted in the unit and by the metric that the row uses."""

import re
from dataclasses import replace

from penstock.plan.backtest.rows import MeasuredRow, RowSkipped, number
from penstock.plan.job.constants import StrandedMemory
from penstock.plan.job.job import Job
from penstock.plan.job.outcome import PeakMemory
from penstock.plan.memory import memory, moments, state

GIB = 2**30


def predict_row(row: MeasuredRow, holes: StrandedMemory | None = None) -> tuple[float, bool]:
    """Predict the row's figure (GiB, or GB or percent where it says so), and whether the job
    fits. `holes` are the allocator's constants, where they are not those of all plans.
    """
    if row.job is None:
        raise RowSkipped(row.skipped)
    job, cells = row.job, row.cells
    generates = "inference" in cells.get("notes", "").lower()
    found = _generating(job) if generates else memory.predict(job, holes)
    component = cells.get("component", "") or "total"
    if component != "total":
        return _component(job, component), found.fits
    metric = cells.get("mem_metric", "")
    reported = found
    if "LAST rank" in metric:
        reported = memory.of_stage(job, job.layout.pipeline - 1, holes)
    if not cells.get("peak_mem_gib") and cells.get("reserved_gib"):
        metric += " reserved"
    return memory.as_metric(reported, metric) / _unit(metric), found.fits


def _component(job: Job, component: str) -> float:
    if component == "params+grads+optimizer":
        stages = [state.state_bytes(job, stage) for stage in range(job.layout.pipeline)]
        return max(s.weights + s.gradients + s.optimizer for s in stages) / GIB
    if component == "activations":
        return _kept(job) / GIB
    if component == "activations(relative)":
        # Percent of what the same layout keeps with neither a split stream nor recomputation.
        plain = replace(job.layout, sequence_parallel=False, recompute="none")
        return 100 * _kept(job) / _kept(job.with_layout(plain))
    raise RowSkipped(f"component is '{component}': total, activations or params+grads+optimizer")


def _kept(job: Job) -> float:
    """Count what the first stage keeps: it holds most microbatches."""
    return moments.kept_bytes(job, 0, moments.layer_bytes(job))


def measured(row: MeasuredRow) -> float | None:
    """Return what was measured, in the same unit; None where the row has no figure."""
    percent = re.search(r"percent.*?([\d.]+)\s*$", row.cells.get("mem_metric", "").lower())
    if percent:
        return float(percent[1])
    return number(row.cells, "peak_mem_gib") or number(row.cells, "reserved_gib")


def _unit(metric: str) -> float:
    """Return the bytes of the tool's unit: tools that print GB mean 10⁹ bytes. nvidia-smi prints
    MiB, and what is written down as GB are its thousands.
    """
    if "smi" in metric:
        return 1000 * 2**20 if re.search(r"\bGB\b", metric) else GIB
    return 1e9 if re.search(r"\bGB\b", metric) else GIB


def _generating(job: Job) -> PeakMemory:
    """Predict a model that generates (some tables of fine-tuning list it): weights and cached
    keys.
    """
    shape = job.shape
    cached = 4.0 * shape.layers * shape.kv_heads * shape.head_width * job.sequence
    weights = state.state_bytes(job, 0).weights
    parts = {"weights": weights, "activations": cached, "context": memory.CONTEXT_BYTES}
    return PeakMemory(parts, 0, job.machine.memory_bytes * memory.USABLE_SHARE)
