"""The memory of the fullest rank at its fullest moment, by part: does the job fit, with what
margin.
"""

from functools import lru_cache

from penstock.catalog.shapes import ModelShape
from penstock.plan.job import partition
from penstock.plan.job.constants import FRAGMENTATION
from penstock.plan.job.job import Job
from penstock.plan.job.outcome import PeakMemory
from penstock.plan.memory.moments import LayerBytes, layer_bytes, moments

# Outside the allocator: CUDA's context with its kernels and one communicator. Measured on an H200
# with torch 2.11 as what the driver counts beyond what torch reserved: 0.82 GiB.
CONTEXT_BYTES = 0.82 * 2**30
# Share of the nominal memory that the driver leaves: 39.4 of 40 GiB on A100 (torch's error
# messages), 139.8 of 141 on H200 (measured).
USABLE_SHARE = 0.985


def predict(job: Job) -> PeakMemory:
    """Predict the fullest stage; stages differ in layers, in microbatches under way, in tables
    and loss.
    """
    have = layer_bytes(job)
    lay = job.layout
    candidates = _candidates(job.shape, lay.pipeline, lay.interleave)
    found = [_of_stage(job, stage, have) for stage in candidates]
    return max(found, key=lambda memory: memory.peak_bytes)


def of_stage(job: Job, stage: int) -> PeakMemory:
    """Predict one rank of a pipeline stage at its fullest moment."""
    return _of_stage(job, stage, layer_bytes(job))


def as_metric(memory: PeakMemory, metric: str) -> float:
    """Return the bytes as a tool would report them: the allocator's peak, what it reserved, or
    nvidia-smi.
    """
    in_use = memory.peak_bytes - memory.parts["overhead"]
    metric = metric.lower()
    if "reserved" in metric:
        return in_use * (1 + FRAGMENTATION)
    return memory.peak_bytes if "smi" in metric else in_use


def _of_stage(job: Job, stage: int, have: LayerBytes) -> PeakMemory:
    fullest = max(moments(job, stage, have), key=sum)
    parts = fullest._asdict()
    on_host = job.machine.kind == "cpu"
    parts["overhead"] = 0.0 if on_host else sum(fullest) * FRAGMENTATION + CONTEXT_BYTES
    return PeakMemory(parts, stage, job.machine.memory_bytes * USABLE_SHARE)


@lru_cache(maxsize=4096)
def _candidates(shape: ModelShape, pipeline: int, interleave: int) -> tuple[int, ...]:
    """Return the stages that can be the fullest.

    Of neighbours with the same layers the first is: it has more microbatches under way, and only
    the first and the last stage have tables.
    """
    counts = partition.stage_layers(shape, pipeline, interleave)
    last = pipeline - 1
    changes = (stage for stage in range(1, last) if counts[stage] != counts[stage - 1])
    return tuple(sorted({0, *changes, last}))
