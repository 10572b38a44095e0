"""The bytes of weights, gradients and optimizer state that one rank keeps from step to step."""

from dataclasses import dataclass

from penstock.plan.job import partition
from penstock.plan.job.codecs import codec_size
from penstock.plan.job.job import Job, UnshardedBytes
from penstock.plan.job.tensors import adapter_params, published_tensors

BUCKET_VALUES = 1 << 24  # of the whole model that the ranks of a site work on at once
# Buckets in fp32 at once: its values, what a codec makes of them on the way, and their mean. By the
# peak of a process whose rank holds a half or a quarter of the model (400 to 450 MiB).
OF_A_BUCKET = 7
WIDE_BYTES = 4.0  # of a master weight, an anchor or an outer momentum
COMPUTE_BYTES = 2  # gathered weights and the gradients of one layer; 16-bit in all mixed precisions


@dataclass(frozen=True)
class StateBytes:
    """Bytes of one rank."""

    weights: float
    gradients: float
    optimizer: float
    whole_weights: float  # before sharding: what a rank holds that loads first and shards later
    flat: float = 0.0  # flat copies of gradients that the update makes
    gathered: float = 0.0  # 16-bit weights that stay whole inside a step


def state_bytes(job: Job, stage: int) -> StateBytes:
    """Count the rank's share of everything that lives from step to step."""
    if job.adapter:
        return _frozen(job, stage)
    lay, software = job.layout, job.software
    held = partition.rank_params(job.shape, lay, stage, software.ahead_layers)
    common_ways, routed_ways = partition.shard_ways(lay)
    sharded = held.common / common_ways + held.routed / routed_ways
    whole = held.common + held.routed
    stored = weight_bytes(job)
    matrices = sharded - held.tables / common_ways
    optimizer = software.optimizer_bytes * sharded - software.matrix_saving_bytes * matrices
    if unsharded := unsharded_bytes(job):
        optimizer += unsharded.master * sharded
    shards_only = lay.zero == 3 or software.fsdp
    return StateBytes(
        weights=stored * (sharded if shards_only else whole),
        gradients=grad_bytes(job) * (sharded if job.zero_in_step >= 2 else whole),
        optimizer=0.0 if software.offload else optimizer,
        whole_weights=stored * whole,
        flat=0.0 if software.offload or lay.zero == 3 else software.flat_bytes * sharded,
        gathered=COMPUTE_BYTES * whole if stays_gathered(job) else 0.0,
    )


def stays_gathered(job: Job) -> bool:
    """Tell whether sharded weights stay whole from the first to the last microbatch of a step."""
    return (
        job.software.fsdp and 0 < job.zero_in_step < 3 and partition.shard_ways(job.layout)[0] > 1
    )


def _frozen(job: Job, stage: int) -> StateBytes:
    """Count frozen weights as narrow as the adapter says, and the adapter's own state."""
    lay, shape, software = job.layout, job.shape, job.software
    assert job.adapter
    held = partition.stage_contents(
        shape, lay.pipeline, lay.interleave, stage, software.ahead_layers
    )
    layer = partition.frozen_layer_bytes(shape, lay.tensor, job.adapter.bits)
    wide = held.tables * shape.embedding_params() / lay.tensor + held.last * shape.hidden
    common = held.dense * layer.dense + held.sparse * layer.sparse
    common += wide * partition.wide_bytes(job.adapter.bits)
    routed = held.sparse * layer.routed / (lay.expert * lay.expert_tensor)
    if not software.weight_bytes:  # they are on the host
        common = routed = 0.0
    common_ways, routed_ways = partition.shard_ways(lay)
    whole = common + routed
    sharded = lay.zero == 3 or software.fsdp
    kept = common / common_ways + routed / routed_ways if sharded else whole
    trained, unsharded = adapter_params(job, stage) / common_ways, unsharded_bytes(job)
    return StateBytes(
        weights=kept + trained * weight_bytes(job),
        gradients=trained * grad_bytes(job),
        optimizer=trained * (software.optimizer_bytes + (unsharded.master if unsharded else 0.0)),
        whole_weights=whole,
        gathered=whole if stays_gathered(job) else 0.0,
    )


@dataclass(frozen=True)
class OuterBytes:
    """Bytes of one rank of a replica that takes local steps."""

    kept: float  # from round to round, and what is on its way while training goes on
    passing: float  # more, while a difference is sent and applied


def outer_bytes(job: Job, stage: int) -> OuterBytes:
    """Count anchor and outer momentum, in fp32, and what the codec owes.

    While a part is exchanged there are also copies of its weights and of their difference, its sum
    with what is owed and what the codec makes of it, and the messages of all replicas. The ranks of
    a site work through the whole model one bucket at a time.
    """
    if not job.apart:
        return OuterBytes(0.0, 0.0)
    wide = max(WIDE_BYTES, job.software.weight_bytes)
    codec, parts = codec_size(job.sync.codec), job.sync.parts
    held = _trained(job, stage)
    copies = 2 if codec.exact else 3
    if job.sync.sites:  # messages are on the host
        bucket = wide * min(BUCKET_VALUES, sum(published_tensors(job)))
        return OuterBytes(kept=copies * wide * held, passing=OF_A_BUCKET * bucket)
    coded = 0 if codec.exact else 2
    messages = (job.agreeing + 1) * codec.value_bytes * held / parts
    late = wide * held / parts + messages if parts > 1 else 0.0
    return OuterBytes(
        kept=copies * wide * held + late,
        passing=(copies + coded) * wide * held / parts + messages,
    )


def _trained(job: Job, stage: int) -> float:
    """Count the parameters that a rank of a stage updates."""
    ways, routed_ways = partition.shard_ways(job.layout)
    if job.adapter:
        return adapter_params(job, stage) / ways
    held = partition.rank_params(job.shape, job.layout, stage, job.software.ahead_layers)
    return held.common / ways + held.routed / routed_ways


def unsharded_bytes(job: Job) -> UnshardedBytes | None:
    """Return the bytes per parameter of a program that keeps unsharded weights another way.

    None: the weights are sharded, or the program does not do that.
    """
    return job.software.whole if partition.shard_ways(job.layout)[0] == 1 else None


def weight_bytes(job: Job) -> float:
    """Return the bytes of a stored weight."""
    unsharded = unsharded_bytes(job)
    return unsharded.weights if unsharded else job.software.weight_bytes


def grad_bytes(job: Job) -> float:
    """Return the bytes of a gradient at the end of the backward pass."""
    unsharded = unsharded_bytes(job)
    if unsharded is None:
        return job.software.grad_bytes
    several = job.microbatches > 1 or job.replicas_together > 1
    return unsharded.summed if several else unsharded.once
