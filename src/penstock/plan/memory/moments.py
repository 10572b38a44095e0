"""The moments of a step at which a rank can be fullest, and the bytes in memory at each of them.

The loss, when every activation and the logits are there; the first layer to go backward, when its
gradients join all activations; the end of the backward pass, when all gradients are there; and, for
programs that load before they shard, the start.
"""

from typing import NamedTuple

from penstock.plan.job import partition
from penstock.plan.job.job import Job
from penstock.plan.memory import layers as memory_layers
from penstock.plan.memory import state as memory_state
from penstock.plan.memory.layers import LayerKinds, SavedBytes
from penstock.plan.memory.state import COMPUTE_BYTES

# PyTorch's loss over a split vocabulary makes, in fp32: logits, log-probabilities, their gradient,
# probabilities and the gradient of the logits.
SPLIT_LOGIT_BYTES = 20


class MemoryMoment(NamedTuple):
    """Bytes in use at one moment of the step; fields are parts of `PeakMemory`."""

    weights: float
    gradients: float
    optimizer: float
    outer: float
    activations: float
    logits: float
    buffers: float


class LayerBytes(NamedTuple):
    """Bytes of layers, tables and logits that are the same on every stage."""

    unit: float  # parameters of the largest layer
    table: float  # one embedding table in 16 bits
    dense: float  # kept by a dense layer for one microbatch
    sparse: float  # by a layer with experts
    backward: float  # more while a layer goes backward
    logits: float


def layer_bytes(job: Job) -> LayerBytes:
    how = memory_layers.traits(job)
    shape, lay = job.shape, job.layout
    kept = memory_layers.saved(shape, how, lay.recompute)
    joined = _joined(job, how.width)
    inside = joined if lay.recompute == "none" else 0.0
    return LayerBytes(
        unit=partition.largest_layer_params(shape, lay),
        table=shape.vocab * shape.hidden / lay.tensor * COMPUTE_BYTES,
        dense=_bytes(job, kept.dense) + inside,
        sparse=_bytes(job, kept.sparse) + inside,
        backward=_backward(job, how.width)
        + _larger(job, memory_layers.working(shape, how))
        + (0.0 if lay.recompute == "none" else joined + _rebuilt(job, kept)),
        logits=_logits(job),
    )


def moments(job: Job, stage: int, have: LayerBytes) -> list[tuple[MemoryMoment, float]]:
    """Return every moment that can be the fullest of one rank of a stage, each with the bytes that
    come later and yet need blocks of their own.

    Gradients that the first backward pass makes outlive it, and the blocks that activations leave
    have other sizes: the caching allocator fetches new ones, as if all gradients had been there
    before. It does so for the flat buffers of an update.
    """
    soft, lay = job.software, job.layout
    state = memory_state.state_bytes(job, stage)
    kept = kept_bytes(job, stage, have)
    contents = _contents(job, stage)
    tables = have.table * contents.tables
    buffers = state.gathered or _gathered(job, have, contents)
    if soft.gathers_context and lay.context > 1:  # the mask, and what attention makes of it
        buffers += job.sequence * job.sequence / lay.context * (1 + COMPUTE_BYTES)
    buffers += min(soft.bucket_params, have.unit * job.shape.layers) * COMPUTE_BYTES
    # Gradients of the only microbatch grow as activations shrink.
    waiting = soft.grad_buffers or job.microbatches > 1
    early = state.gradients if waiting else 0.0
    later = state.gradients - early + state.flat
    last = 0.0
    if job.zero_in_step >= 2 and not job.adapter and not memory_state.unsharded_bytes(job):
        last = tables  # their gradients, to be reduced
    if soft.sums_aside and job.replicas_together > 1:
        last += state.gradients
    turning = buffers + _layer_gradients(job, have) + have.backward
    weights, updated = state.weights, state.optimizer
    outer = memory_state.outer_bytes(job, stage)
    agreed, flat = outer.kept, updated + state.flat
    end = MemoryMoment(weights, state.gradients, flat, agreed, 0.0, 0.0, buffers + last)
    found = [(MemoryMoment(weights, early, updated, agreed, kept, 0.0, turning), later), (end, 0.0)]
    if job.apart:  # the exchange, after the update
        sending = MemoryMoment(weights, 0.0, updated, agreed, 0.0, 0.0, outer.passing)
        found.append((sending, 0.0))
    if stage == lay.pipeline - 1:
        head = 0.0 if job.adapter else have.table  # its gradient, before it is added or reduced
        loss = MemoryMoment(weights, early, updated, agreed, kept, have.logits, buffers + head)
        found.append((loss, later))
    if soft.shards_late and lay.shard > 1:  # the shard, and the flat copy that a unit is cut from
        cut = max(have.unit * COMPUTE_BYTES, tables)
        start = MemoryMoment(state.whole_weights, 0.0, 0.0, 0.0, 0.0, 0.0, weights + cut)
        found.append((start, 0.0))
    return found


def kept_bytes(job: Job, stage: int, have: LayerBytes) -> float:
    """Count the activations that wait for their backward pass, of all microbatches under way."""
    lay, passes = job.layout, passes_under_way(job, stage)
    counts = partition.stage_layers(job.shape, lay.pipeline, lay.interleave)[stage]
    contents = _contents(job, stage)  # with layers that predict ahead, for one microbatch
    dense = counts.dense * passes + contents.dense - counts.dense
    sparse = counts.sparse * passes + contents.sparse - counts.sparse
    layers = dense * have.dense + sparse * have.sparse
    if not job.software.pass_states or lay.pipeline == 1:
        return layers
    return layers + passes * job.software.pass_states * _hidden_state(job)


def _hidden_state(job: Job) -> float:
    """Count the hidden state of one microbatch on one rank, as stages send it."""
    lay = job.layout
    width = memory_layers.traits(job).width
    split = lay.tensor if lay.sequence_parallel else 1
    return width * job.shape.hidden * job.rank_tokens / split


def _contents(job: Job, stage: int) -> partition.StageContents:
    lay, ahead = job.layout, job.software.ahead_layers
    return partition.stage_contents(job.shape, lay.pipeline, lay.interleave, stage, ahead)


def passes_under_way(job: Job, stage: int) -> float:
    """Return the most forward passes of the whole stage whose backward pass has not come."""
    lay = job.layout
    if lay.pipeline == 1:
        return 1.0
    if lay.zero_bubble:  # delayed weight gradients hold on to what the schedule would free
        return float(min(job.microbatches, lay.pipeline))
    if lay.interleave == 1:
        return float(min(job.microbatches, lay.pipeline - stage))
    pieces_ahead = 2 * (lay.pipeline - stage - 1) + (lay.interleave - 1) * lay.pipeline + 1
    return min(pieces_ahead / lay.interleave, float(job.microbatches))


def _gathered(job: Job, have: LayerBytes, contents: partition.StageContents) -> float:
    """Count gathered weights: the layer at work, the one fetched ahead and the tables; DeepSpeed
    keeps a set number.
    """
    soft, kept = job.software, memory_state.weight_bytes(job)
    tables = have.table * contents.tables
    # FSDP also makes the narrow copy of wide weights layer by layer.
    wide = kept > COMPUTE_BYTES and job.precision not in ("fp32", "tf32")
    sharded = partition.shard_ways(job.layout)[0] > 1
    if job.layout.zero != 3 or not (sharded or wide):
        return 0.0
    layers = 2 * have.unit * COMPUTE_BYTES
    if job.adapter and job.adapter.bits == 4:
        layers = 2 * _largest_nf4_layer(job)
    live = min(soft.live_params, have.unit * job.shape.layers) * COMPUTE_BYTES
    return max(layers + (min(tables, have.table) if soft.tables_apart else tables), live)


def _largest_nf4_layer(job: Job) -> float:
    """Count the bytes of the largest frozen 4-bit layer on one rank."""
    lay = job.layout
    layer = partition.frozen_layer_bytes(job.shape, lay.tensor, 4)
    if not job.shape.moe:
        return layer.dense
    sparse = layer.sparse + layer.routed / (lay.expert * lay.expert_tensor)
    return max(sparse, layer.dense) if job.shape.dense_layers else sparse


def _layer_gradients(job: Job, have: LayerBytes) -> float:
    """Count one layer's weight gradients, before they are added to or reduced into those that
    stay.
    """
    if job.adapter:
        return 0.0
    travels = job.zero_in_step >= 2 and not memory_state.unsharded_bytes(job)
    reduced = job.software.grad_bytes if travels else 0.0  # copied to travel
    return have.unit * (COMPUTE_BYTES + reduced)


def _logits(job: Job) -> float:
    """Count logits, probabilities and their gradients on the last stage."""
    soft = job.software
    per_token = job.shape.vocab / job.layout.tensor
    if soft.chunk_logits:  # and the gradients of the head, in fp32, and of what goes into it
        chunk = min(job.rank_tokens * per_token, soft.chunk_logits) * soft.logit_bytes
        head = 0.0 if job.adapter else per_token * job.shape.hidden * 4
        return chunk + head + job.rank_tokens * job.shape.hidden * COMPUTE_BYTES
    if soft.chunked_loss:  # about as many chunks as the vocabulary is wider than the model
        per_token = min(per_token, job.shape.hidden)
    each = soft.logit_bytes
    if soft.torch_checkpoints and job.layout.tensor > 1:
        each = max(each, SPLIT_LOGIT_BYTES)
    return job.rank_tokens * per_token * each * (1 + soft.ahead_layers)


def _rebuilt(job: Job, kept: LayerKinds) -> float:
    """Count what recomputation brings back of one layer."""
    whole = memory_layers.saved(job.shape, memory_layers.traits(job), "none")
    return _larger(job, LayerKinds(whole.dense.minus(kept.dense), whole.sparse.minus(kept.sparse)))


def _joined(job: Job, width: int) -> float:
    """Count the joined inputs of a layer's two parallel parts, which PyTorch's tensor parallelism
    keeps.

    Megatron joins them again in the backward pass, and so does a fused collective and matmul.
    """
    soft = job.software
    return 0.0 if not soft.torch_checkpoints or soft.overlap_tensor else _backward(job, width)


def _backward(job: Job, width: int) -> float:
    """Count two whole hidden states, which tensor parallelism with a split stream has to join."""
    lay = job.layout
    split = lay.tensor > 1 and lay.sequence_parallel
    return 2 * width * job.shape.hidden * job.rank_tokens if split else 0.0


def _larger(job: Job, kinds: LayerKinds) -> float:
    if not job.shape.moe:
        return _bytes(job, kinds.dense)
    return max(_bytes(job, kinds.dense), _bytes(job, kinds.sparse))


def _bytes(job: Job, layer: SavedBytes) -> float:
    """Convert bytes per token to the bytes of one microbatch on one rank."""
    lay = job.layout
    per_token = (
        layer.stream / (lay.tensor if lay.sequence_parallel else 1)
        + layer.inner / lay.tensor
        + layer.routed_stream * lay.expert_tensor / lay.tensor
        + layer.routed_inner / lay.tensor
    )
    return per_token * job.rank_tokens
