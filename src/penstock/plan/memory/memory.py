"""The memory of the fullest rank at its fullest moment, by part: does the job fit, with what
margin.

Three figures, each larger than the one before: what torch has allocated, what its allocator has
reserved, and what the device shows as used.
"""

from functools import lru_cache

from penstock.catalog.shapes import ModelShape
from penstock.plan.job import partition
from penstock.plan.job.constants import StrandedMemory, memory_band, stranded
from penstock.plan.job.job import Job
from penstock.plan.job.outcome import Band, PeakMemory
from penstock.plan.memory.moments import LayerBytes, MemoryMoment, layer_bytes, moments

# Outside the allocator: CUDA's context with its kernels and one communicator. Measured on an H200
# with torch 2.11 as what the driver counts beyond what torch reserved: 0.82 GiB.
CONTEXT_BYTES = 0.82 * 2**30
# A communicator of NCCL: 24 channels, each with a buffer of 4 MiB and those of the two low-latency
# protocols (about 1 MiB) to the rank before and to the one after.
COMMUNICATOR_BYTES = 24 * 2 * 5.2 * 2**20
# Share of the nominal memory that the driver leaves: 39.4 of 40 GiB on A100 (torch's error
# messages), 139.8 of 141 on H200 (measured).
USABLE_SHARE = 0.985
# Reserved over allocated, less one, of our own trainer: measured on an H200 in seven settings
# (`benchmarks/plan_memory.py`), 0.2 to 5.3 %. Other programs leave more.
OWN_CACHED = 0.023
# Measured over predicted, of our own trainer.
OWN_BAND = Band(0.95, 1.05)


def predict(job: Job, holes: StrandedMemory | None = None) -> PeakMemory:
    """Predict the fullest stage; stages differ in layers, in microbatches under way, in tables
    and loss.

    `holes` are the allocator's constants, where they are not those of all plans.
    """
    have = layer_bytes(job)
    lay = job.layout
    candidates = _candidates(job.shape, lay.pipeline, lay.interleave)
    found = [_of_stage(job, stage, have, holes) for stage in candidates]
    return max(found, key=lambda memory: memory.peak_bytes)


def of_stage(job: Job, stage: int, holes: StrandedMemory | None = None) -> PeakMemory:
    """Predict one rank of a pipeline stage at its fullest moment."""
    return _of_stage(job, stage, layer_bytes(job), holes)


def band(job: Job) -> Band:
    """Return the error band of a prediction."""
    return OWN_BAND if job.software.name == "penstock" else Band(*memory_band())


def as_metric(memory: PeakMemory, metric: str) -> float:
    """Return the bytes as a tool would report them: the allocator's peak, what it reserved, or
    nvidia-smi.
    """
    metric = metric.lower()
    if "smi" in metric or "used" in metric:
        return memory.peak_bytes
    return memory.reserved_bytes if "reserved" in metric else memory.allocated_bytes


def _of_stage(job: Job, stage: int, have: LayerBytes, holes: StrandedMemory | None) -> PeakMemory:
    found = moments(job, stage, have)
    fullest = max((moment for moment, _ in found), key=sum)
    parts = fullest._asdict()
    on_host = job.machine.kind == "cpu"
    if on_host:
        parts |= {"cached": 0.0, "context": 0.0}
    elif job.software.name == "penstock":
        parts |= {"cached": OWN_CACHED * sum(fullest), "context": context_bytes(job)}
    else:
        holes = holes or stranded()
        reserved = max(
            sum(moment) + later + holes.of(_fleeting(job, moment, later)) for moment, later in found
        )
        parts |= {"cached": reserved - sum(fullest), "context": context_bytes(job)}
    room = job.machine.memory_bytes * USABLE_SHARE
    return PeakMemory(parts, stage, room, 1.0 if on_host else band(job).high)


def _fleeting(job: Job, moment: MemoryMoment, later: float) -> float:
    """Count what comes and goes within a step: only that leaves holes behind."""
    made_anew = 0.0 if job.software.grad_buffers else moment.gradients + later
    return moment.activations + moment.logits + moment.buffers + made_anew


def context_bytes(job: Job) -> float:
    """Count what is outside the allocator: the context, and a communicator for each dimension."""
    lay = job.layout
    dimensions = (lay.replicate * lay.shard, lay.tensor, lay.pipeline, lay.context, lay.expert)
    more = max(0, sum(ways > 1 for ways in dimensions) - 1)
    return (job.software.context_bytes or CONTEXT_BYTES) + more * COMMUNICATOR_BYTES


@lru_cache(maxsize=4096)
def _candidates(shape: ModelShape, pipeline: int, interleave: int) -> tuple[int, ...]:
    """Return the stages that can be the fullest.

    Among neighbours with the same layers that is the first: it has more microbatches under way,
    and only the first and the last stage have tables.
    """
    counts = partition.stage_layers(shape, pipeline, interleave)
    last = pipeline - 1
    changes = (stage for stage in range(1, last) if counts[stage] != counts[stage - 1])
    return tuple(sorted({0, *changes, last}))
