"""The memory of the fullest rank at its fullest moment, by part: does the job fit, and how well."""

from penstock.plan.job.constants import FRAGMENTATION
from penstock.plan.job.job import Job
from penstock.plan.job.outcome import Memory
from penstock.plan.memory.moments import Pieces, moments, pieces

# Outside the allocator: CUDA's context with its kernels and one communicator. Measured on an H200
# with torch 2.11 as what the driver counts beyond what torch reserved: 0.82 GiB.
CONTEXT_BYTES = 0.82 * 2**30
# Of the nominal memory, what the driver leaves: 39.4 of 40 GiB on A100, as torch's errors say;
# measured, 139.8 of 141 on H200.
USABLE_SHARE = 0.985


def predict(job: Job) -> Memory:
    """The fullest stage; stages differ in layers, in microbatches under way, in tables and loss."""
    have = pieces(job)
    found = [_of_stage(job, stage, have) for stage in _candidates(job)]
    return max(found, key=lambda memory: memory.peak_bytes)


def of_stage(job: Job, stage: int) -> Memory:
    """One rank of a pipeline stage at its fullest moment."""
    return _of_stage(job, stage, pieces(job))


def as_metric(memory: Memory, metric: str) -> float:
    """Bytes as a tool would report them: the allocator's peak, what it reserved, or nvidia-smi."""
    in_use = memory.peak_bytes - memory.parts["overhead"]
    metric = metric.lower()
    if "reserved" in metric:
        return in_use * (1 + FRAGMENTATION)
    return memory.peak_bytes if "smi" in metric else in_use


def _of_stage(job: Job, stage: int, have: Pieces) -> Memory:
    fullest = max(moments(job, stage, have), key=sum)
    parts = fullest._asdict()
    on_host = job.machine.kind == "cpu"
    parts["overhead"] = 0.0 if on_host else sum(fullest) * FRAGMENTATION + CONTEXT_BYTES
    return Memory(parts, stage, job.machine.memory_bytes * USABLE_SHARE)


def _candidates(job: Job) -> set[int]:
    """The stages that can be the fullest.

    Between the first and the last, a later stage has no more layers and no more microbatches under
    way; only where dense layers give way to experts can it need more.
    """
    last = job.layout.pipeline - 1
    if last < 2:
        return {0, last}
    found = {0, 1, last}
    if job.shape.moe:
        turn = job.shape.dense_layers * job.layout.pipeline // job.shape.layers
        found |= {stage for stage in (turn, turn + 1) if stage < last}
    return found
