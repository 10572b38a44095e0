"""Weights, gradients and optimizer state of one rank: how many parameters it holds, at what width.

What tensor parallelism leaves whole (norms, routers, the down-projections of latent attention) is
counted whole, and keys and values are copied when there are more tensor ranks than key heads.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from penstock.catalog.shapes import ModelShape
from penstock.plan.job.job import Bytes, Job

# 4 bits and one fp32 scale per 64 weights (bitsandbytes' default; arXiv 2305.14314, section 3).
NF4_BYTES = 4.5 / 8


class LayerParams(NamedTuple):
    """Parameters of one layer on one tensor rank."""

    attention: float  # with both norms
    dense: float  # the feed-forward part of a dense layer
    shared: float  # router and shared experts of a layer with experts
    routed: float  # all routed experts, not divided


class Held(NamedTuple):
    """Parameters of one rank, before sharding over data ranks."""

    common: float  # all but the routed experts
    routed: float
    tables: float  # part of `common`: input embedding and head of this stage


@dataclass(frozen=True)
class State:
    """Bytes of one rank."""

    weights: float
    gradients: float
    optimizer: float
    whole_weights: float  # before sharding: what a rank holds that loads first and shards later


@lru_cache(maxsize=4096)
def layer_params(shape: ModelShape, tensor: int) -> LayerParams:
    h, n, t = shape.hidden, shape.heads, tensor
    if shape.kv_rank:
        wide = shape.rope_dim + shape.nope_dim
        down = h * (shape.kv_rank + shape.rope_dim) + shape.kv_rank
        if shape.q_rank:
            down += h * shape.q_rank + shape.q_rank
        up = (shape.q_rank or h) * n * wide + shape.kv_rank * n * (shape.nope_dim + shape.v_dim)
        attention = down + (up + n * shape.v_dim * h) / t
    else:
        q = n * shape.head_width
        kv = shape.kv_heads * shape.head_width / min(t, shape.kv_heads)
        attention = 2 * h * q / t + 2 * h * kv
    matrices = 3 if shape.gated else 2
    expert = matrices * h * shape.expert_ffn
    return LayerParams(
        attention=attention + 2 * h,
        dense=matrices * h * shape.ffn / t,
        shared=expert * shape.shared_experts / t + h * shape.experts,
        routed=float(expert * shape.experts),
    )


@lru_cache(maxsize=4096)
def stage_layers(shape: ModelShape, pipeline: int, pieces: int, stage: int) -> tuple[int, int]:
    """Dense layers and layers with experts of a stage that holds every `pipeline`-th piece."""
    chunks = pipeline * pieces
    base, extra = divmod(shape.layers, chunks)
    dense_to = shape.dense_layers if shape.moe else shape.layers
    dense = total = 0
    for chunk in range(stage, chunks, pipeline):
        first = chunk * base + min(chunk, extra)
        count = base + (chunk < extra)
        total += count
        dense += max(0, min(first + count, dense_to) - first)
    return dense, total - dense


def held(job: Job, stage: int) -> Held:
    """What the rank's tensor, pipeline and expert place gives it."""
    lay, shape = job.layout, job.shape
    layer = layer_params(shape, lay.tensor)
    dense, sparse = stage_layers(shape, lay.pipeline, lay.interleave, stage)
    more_dense, more_sparse = ahead(job, stage)
    dense, sparse = dense + more_dense, sparse + more_sparse
    common = (dense + sparse) * layer.attention + dense * layer.dense + sparse * layer.shared
    routed = sparse * layer.routed / (lay.expert * lay.expert_tensor)
    kept = tables(job, stage) * shape.vocab * shape.hidden / lay.tensor
    return Held(common + kept, routed, kept)


def tables(job: Job, stage: int) -> int:
    """Embedding tables of a stage: the input's, the head's, and a copy for predicting ahead."""
    first, last = stage == 0, stage == job.layout.pipeline - 1
    if job.layout.pipeline == 1:
        return 1 if job.shape.tied else 2
    return first + last + (last and job.software.ahead_layers > 0)


def ahead(job: Job, stage: int) -> tuple[int, int]:
    """Dense layers and layers with experts that predict further tokens: on the last stage."""
    count = job.software.ahead_layers if stage == job.layout.pipeline - 1 else 0
    return (0, count) if job.shape.moe else (count, 0)


def shard_ways(job: Job) -> tuple[int, int]:
    """Ranks over which the common and the routed parameters' state is divided."""
    lay = job.layout
    if lay.zero == 0:
        return 1, 1
    common = lay.shard * lay.context
    return common, max(1, common * lay.tensor // (lay.expert * lay.expert_tensor))


def as_whole(job: Job) -> Bytes | None:
    """Bytes per parameter of a program that keeps weights otherwise when they are not sharded."""
    return job.software.whole if shard_ways(job)[0] == 1 else None


def weight_bytes(job: Job) -> float:
    unsharded = as_whole(job)
    return unsharded.weights if unsharded else job.software.weight_bytes


def grad_bytes(job: Job) -> float:
    """Of a gradient at the end of the backward pass."""
    unsharded = as_whole(job)
    if unsharded is None:
        return job.software.grad_bytes
    several = job.microbatches > 1 or job.layout.replicate > 1
    return unsharded.summed if several else unsharded.once


def state(job: Job, stage: int) -> State:
    """The rank's share of everything that lives from step to step."""
    lay, soft = job.layout, job.software
    have = held(job, stage)
    common_ways, routed_ways = shard_ways(job)
    sharded = have.common / common_ways + have.routed / routed_ways
    whole = have.common + have.routed
    if job.adapter:
        return _frozen(job, have, common_ways, routed_ways, stage)
    stored = weight_bytes(job)
    matrices = sharded - have.tables / common_ways
    kept = soft.optimizer_bytes * sharded - soft.matrix_saving_bytes * matrices
    if unsharded := as_whole(job):
        kept += unsharded.master * sharded
    return State(
        weights=stored * (sharded if lay.zero == 3 else whole),
        gradients=grad_bytes(job) * (sharded if lay.zero >= 2 else whole),
        optimizer=0.0 if soft.offload else kept,
        whole_weights=stored * whole,
    )


def _frozen(job: Job, have: Held, common_ways: int, routed_ways: int, stage: int) -> State:
    """Frozen weights as narrow as the adapter says, tables in 16 bits; and the adapter's state."""
    soft = job.software
    assert job.adapter
    bits = job.adapter.bits
    narrow = NF4_BYTES if bits == 4 else bits / 8
    here = 1.0 if soft.weight_bytes else 0.0  # else on the host
    common = here * ((have.common - have.tables) * narrow + have.tables * 2)
    routed = here * have.routed * narrow
    whole = common + routed
    kept = common / common_ways + routed / routed_ways if job.layout.zero == 3 else whole
    trained, unsharded = adapter_params(job, stage) / common_ways, as_whole(job)
    return State(
        weights=kept + trained * weight_bytes(job),
        gradients=trained * grad_bytes(job),
        optimizer=trained * (soft.optimizer_bytes + (unsharded.master if unsharded else 0.0)),
        whole_weights=whole,
    )


def adapter_params(job: Job, stage: int) -> float:
    """Two thin matrices beside every matrix of the stage's layers."""
    shape, lay = job.shape, job.layout
    assert job.adapter
    h, q, kv = shape.hidden, shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    inner = (shape.ffn or shape.expert_ffn) + h
    ends = 2 * (h + q) + 2 * (h + kv) + (3 if shape.gated else 2) * inner
    layers = sum(stage_layers(shape, lay.pipeline, lay.interleave, stage))
    return job.adapter.rank * ends * layers / lay.tensor


def unit_params(job: Job) -> float:
    """Parameters of the largest layer on one rank: what is gathered, and reduced, at once."""
    lay = job.layout
    layer = layer_params(job.shape, lay.tensor)
    if not job.shape.moe:
        return layer.attention + layer.dense
    routed = layer.routed / (lay.expert * lay.expert_tensor)
    sparse = layer.attention + layer.shared + routed
    return max(sparse, layer.attention + layer.dense) if job.shape.dense_layers else sparse
