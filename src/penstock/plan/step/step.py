"""The time of one optimizer step: operators, collectives, and how schedules overlap them.

Follows one rank of the slowest pipeline stage through its microbatches. Every second lands in one
part, and the parts add up to the step.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import log2
from typing import NamedTuple

from penstock.catalog.shapes import ModelShape
from penstock.data.format.manifest import BLOCK_BYTES, dtype_for
from penstock.data.read.samples import ORDER_BLOCK_BYTES
from penstock.plan.hardware import network
from penstock.plan.job.constants import Constants, fitted
from penstock.plan.job.job import Job
from penstock.plan.job.outcome import COMMUNICATE_PARTS, COMPUTE_PARTS, StepTime
from penstock.plan.job.partition import (
    RankParams,
    frozen_layer_bytes,
    rank_layer_params,
    rank_params,
    shard_ways,
    stage_contents,
)
from penstock.plan.step import operators, outer, probed
from penstock.plan.step.operators import DeviceRates, LayerSeconds

# A zero-bubble schedule fills all but about this share of the bubble (arXiv 2401.10241, ZB-H1).
ZERO_BUBBLE_LEFT = 1 / 3


class StageWork(NamedTuple):
    """The work of one pipeline stage, by what decides its time."""

    stage: int
    dense: int  # layers
    sparse: int  # layers with experts
    tables: int  # embedding tables whose gradients are reduced
    head: bool  # the last stage computes the logits and the loss

    @property
    def layers(self) -> int:
        return self.dense + self.sparse

    def covers(self, other: "StageWork") -> bool:
        """Tell whether this stage has at least as much of everything as `other`."""
        mine, theirs = self[1:], other[1:]
        return all(a >= b for a, b in zip(mine, theirs, strict=True))


@lru_cache(maxsize=65536)
def slowest_stages(shape: ModelShape, pipeline: int, interleave: int) -> tuple[StageWork, ...]:
    """Return the stages that can be the slowest: no other stage has as much of everything."""
    kinds: list[StageWork] = []
    for stage in range(pipeline):
        held = stage_contents(shape, pipeline, interleave, stage)
        work = StageWork(stage, held.dense, held.sparse, held.tables, held.last)
        if not any(kind.covers(work) for kind in kinds):
            kinds = [kind for kind in kinds if not work.covers(kind) or work.head]
            kinds.append(work)
    return tuple(kinds)


def predict(job: Job, constants: Constants | None = None) -> StepTime:
    """Predict the seconds of one optimizer step by part."""
    c = constants_of_program(constants or fitted(), job.software.measured)
    if _by_probe(job):
        parts = _of_probe(job, c)
        return _step_time(job, parts | outer.parts(job, sum(parts.values())))
    rates = operators.device_rates(job, c)
    layers = {
        moe: operators.layer_seconds(job, c, rates, moe)
        for moe in ((False, True) if job.shape.moe else (False,))
    }
    head = operators.head_seconds(job, rates)
    m, p, v = job.microbatches, job.layout.pipeline, job.layout.interleave
    candidates: list[dict[str, float]] = []
    usual_s = 0.0  # a pass of the slowest stage without the head
    for stage in slowest_stages(job.shape, p, v):
        one, free_s = _microbatch(job, c, layers, head, stage)
        if not stage.head:
            usual_s = max(usual_s, sum(one.values()))
        # With its reduction: what has less work has less to hide the reduction behind.
        parts = {name: seconds * m for name, seconds in one.items()}
        held = rank_params(job.shape, job.layout, stage.stage)
        parts["reduce"] = _reduce_s(job, c, held, free_s)
        parts["optimizer"] = _optimizer_s(job, held, rates)
        candidates.append(parts)
    parts = max(candidates, key=lambda found: sum(found.values()))
    bubble = (p - 1) * usual_s / v
    parts["bubble"] = bubble * (ZERO_BUBBLE_LEFT if job.layout.zero_bubble else 1.0)
    parts["pipeline"] = _pipeline_s(job, c)
    parts["data"] = _data_s(job, sum(parts.values()))
    parts["jitter"] = jitter_share(job, c) * sum(parts.values())
    return _step_time(job, parts | outer.parts(job, sum(parts.values())))


def mean_stage_s(job: Job, c: Constants) -> float:
    """Return the seconds that the stages of a pipeline compute on average in a step, without
    gathering: no way to spread the layers makes the slowest stage faster.
    """
    c = constants_of_program(c, job.software.measured)
    if _by_probe(job):
        return 0.0
    rates = operators.device_rates(job, c)
    layers = {moe: operators.layer_seconds(job, c, rates, moe) for moe in (False, True)}
    dense = job.shape.dense_layers
    whole = StageWork(0, dense, job.shape.layers - dense, 0, head=True)
    parts, _ = _microbatch(job, c, layers, operators.head_seconds(job, rates), whole)
    apart = ("gather", "recompute")
    used = sum(seconds for name, seconds in parts.items() if name not in apart)
    return used * job.microbatches / job.layout.pipeline


def jitter_share(job: Job, c: Constants) -> float:
    """Return the wait for the slowest rank, as a share of the rest of the step."""
    if _by_probe(job):
        return 0.0
    return constants_of_program(c, job.software.measured).jitter * log2(job.nodes_together)


@lru_cache(maxsize=64)
def constants_of_program(c: Constants, measured: tuple[tuple[str, float], ...]) -> Constants:
    """Return the constants, with those that were measured on the program itself."""
    return replace(c, **dict(measured)) if measured else c


def _by_probe(job: Job) -> bool:
    """Tell whether probe timings predict the step.

    Use them only for models that are neither split nor compiled on a GPU: the probe times whole
    models and single operations, which say nothing about compiled layers.
    """
    whole = job.layout.model_ways * job.layout.expert == 1
    compiled = job.software.fused and job.machine.kind != "cpu"
    return probed.is_probed(job.machine) and whole and not compiled


def _of_probe(job: Job, c: Constants) -> dict[str, float]:
    """Return the parts of a step from the readings of a probe: its curves replace the rooflines."""
    read = probed.step_compute_s(job)
    parts = {
        "matmul": read["matmul"],
        "attention": read["attention"],
        "elementwise": read["elementwise"] + read["memory"],
        "loss": read["loss"],
        "optimizer": read["optimizer"],
        "launch": read["shard"] + read["overhead"],
        "reduce": probed.exchange_s(job),
    }
    layer_s = sum(parts[name] for name in ("matmul", "attention", "elementwise"))
    if job.rows > 1:
        parts["loss"] *= 4 / 3
    if job.reference:  # an adapter's backward pass takes about as long as its forward pass
        parts["reference"] = layer_s / 2 + parts["loss"] / 4
    layer_s /= job.shape.layers * job.microbatches
    one = LayerSeconds(
        operators.PassSeconds(layer_s / 3, 2 * layer_s / 3), *[operators.PassSeconds()] * 3
    )
    gather, _ = _gather_s(job, c, one, 0.0, job.shape.moe, (0.0, 0.0))
    parts["gather"] = gather * job.shape.layers * job.microbatches
    parts["data"] = _data_s(job, sum(parts.values()))
    return parts


def _step_time(job: Job, parts: Mapping[str, float]) -> StepTime:
    causes = {
        "compute": sum(parts.get(name, 0.0) for name in COMPUTE_PARTS),
        "communicate": sum(parts.get(name, 0.0) for name in COMMUNICATE_PARTS),
        "bubble": parts.get("bubble", 0.0),
        "peer_wait": parts.get("jitter", 0.0),
        "data_wait": parts.get("data", 0.0),
    }
    return StepTime(
        parts=parts,
        causes=causes,
        step_s=sum(parts.values()),
        tokens=job.tokens,
        model_flops=job.shape.flops_per_token(job.sequence, bool(job.adapter)) * job.tokens,
    )


def _microbatch(
    job: Job,
    c: Constants,
    layers: Mapping[bool, LayerSeconds],
    head: operators.PassSeconds,
    stage: StageWork,
) -> tuple[dict[str, float], float]:
    """Predict the time of one forward and backward pass of a stage; also return its compute that
    can still hide transfers.
    """
    parts = dict.fromkeys(("matmul", "attention", "elementwise", "experts", "recompute"), 0.0)
    parts |= {"tensor": 0.0, "context": 0.0, "all-to-all": 0.0, "gather": 0.0}
    host_s = hidden_s = exchange_s = 0.0
    for moe, count in ((False, stage.dense), (True, stage.sparse)):
        if not count:
            continue
        one = layers[moe]
        again = operators.recompute_s(job, one)
        for name in ("matmul", "attention", "elementwise", "experts"):
            cost: operators.PassSeconds = getattr(one, name)
            parts[name] += count * (cost.forward + cost.backward)
        parts["recompute"] += count * again
        if job.reference:
            costs = (one.matmul, one.attention, one.elementwise, one.experts)
            parts["reference"] = parts.get("reference", 0.0) + count * sum(
                cost.forward for cost in costs
            )
        parts["tensor"] += count * _tensor_s(job, c)
        ring_s, behind = _context_s(job, c, one)
        parts["context"] += count * ring_s
        if moe:
            exchange_s += count * _experts_s(job, c)
        gather_s, more_s = _gather_s(job, c, one, again, moe, behind)
        parts["gather"] += count * gather_s
        hidden_s += count * (more_s + sum(behind))
        host_s += count * _host_s(job, c, moe)
    if stage.head:
        parts["loss"] = head.forward + head.backward
        if job.rows > 1:  # the loss of each sequence computes its logits in both passes
            parts["loss"] += head.forward
        if job.reference:
            parts["reference"] += head.forward
    if job.software.dual_pipe:  # the microbatch of the other direction computes meanwhile
        work_s = sum(parts.get(name, 0.0) for name in COMPUTE_PARTS)
        exchange_s, behind_s = _exposed(exchange_s, c.hidden_share * work_s - hidden_s, c)
        hidden_s += behind_s
    parts["all-to-all"] = exchange_s
    device_s = sum(parts.values())
    # The device waits for the host when its work is shorter than issuing it.
    parts["launch"] = (device_s**4 + host_s**4) ** 0.25 - device_s
    work_s = sum(parts.get(name, 0.0) for name in COMPUTE_PARTS)
    return parts, c.hidden_share * work_s - hidden_s


def _host_s(job: Job, c: Constants, moe: bool) -> float:
    if job.software.graphs or job.machine.kind == "cpu":
        return 0.0
    seconds = c.host_layer_s
    if moe:
        seconds += c.host_expert_s + (c.host_dropless_s if job.software.dropless else 0.0)
    if job.layout.recompute == "full":
        seconds *= 4 / 3
    return seconds


def _tensor_s(job: Job, c: Constants) -> float:
    """Predict the time of the gathers before attention and feed-forward, and the scatters after."""
    ways = job.layout.tensor
    if ways == 1:
        return 0.0
    size = job.rank_tokens * job.shape.hidden * 2.0
    # Two gathers and two scatters forward and backward; without sequence parallel the same bytes
    # travel as all-reduces. Full recompute does the forward ones again.
    times = 12.0 if job.layout.recompute == "full" else 8.0
    seconds = times * network.gather_s(network.group(job.machine, ways), size)
    return seconds * (c.tensor_exposed if job.software.overlap_tensor else 1.0)


def _context_s(job: Job, c: Constants, one: LayerSeconds) -> tuple[float, tuple[float, float]]:
    """Predict the time of the ring of keys and values behind attention; only what is longer than
    attention shows.

    Also what is hidden forward and backward, where nothing else can hide then.
    """
    ways = job.layout.context
    if ways == 1:
        return 0.0, (0.0, 0.0)
    shape = job.shape
    width = 2 * shape.kv_heads * shape.head_width / min(job.layout.tensor, shape.kv_heads)
    if shape.kv_rank:
        width = shape.heads * (shape.score_channels + shape.v_dim) / job.layout.tensor
    g = network.group(job.machine, ways, job.layout.tensor)
    size = job.layout.microbatch * job.rows * job.sequence * width * 2.0
    once = network.gather_s(g, size)
    if job.software.gathers_context:  # before attention, and their gradients after it
        return 2 * once, (0.0, 0.0)
    forward, before = _exposed(once, c.hidden_share * one.attention.forward, c)
    backward, after = _exposed(2 * once, c.hidden_share * one.attention.backward, c)
    return forward + backward, (before, after)


def _experts_s(job: Job, c: Constants) -> float:
    """Predict the time of the all-to-alls of tokens to their experts, forward and backward."""
    lay = job.layout
    if lay.expert == 1:
        return 0.0
    g = network.group(job.machine, lay.expert, lay.expert_tensor)
    width = job.shape.hidden * job.software.dispatch_bytes
    size = operators.expert_copies(job) * width * operators.imbalance(job)
    times = 6.0 if lay.recompute == "full" else 4.0
    spread = operators.dispatch_of(job)
    seconds = times * network.all_to_all_s(g, size, c.all_to_all, spread)
    return seconds * (c.tensor_exposed if job.software.overlap_experts else 1.0)


def _exposed(comm_s: float, room_s: float, c: Constants) -> tuple[float, float]:
    """Return the time that a collective with `room_s` to hide in adds, and the part that is hidden.

    It adds the part that does not fit, and slows the work that it hides behind. A second of work
    hides a collective once: rooms are handed on with what was used of them taken off, so that more
    work never makes a step shorter.
    """
    hidden = min(comm_s, max(0.0, room_s))
    return comm_s - hidden + c.contention * hidden, hidden


def expert_ways(job: Job) -> int:
    """Return the number of ranks that hold the same experts and sum their gradients, inside one
    pipeline stage and all replicas that step together.
    """
    lay = job.layout
    ranks = job.replicas_together * lay.shard * lay.context * lay.tensor
    return max(1, ranks // (lay.expert * lay.expert_tensor))


def _gather_s(
    job: Job,
    c: Constants,
    one: LayerSeconds,
    again: float,
    moe: bool,
    used: tuple[float, float],
) -> tuple[float, float]:
    """Predict the time of the gathers of sharded weights before a layer's work and the scatters of
    gradients after it.

    `used` is what already hides behind its forward and backward work; returned are the seconds that
    show and those that are hidden.
    """
    lay = job.layout
    ways = lay.shard * lay.context
    zero = job.zero_in_step
    if zero < 2 or ways == 1:
        return 0.0, 0.0
    held = rank_layer_params(job.shape, lay, moe)
    common_bytes, routed_bytes = _travelling_bytes(job, held, moe)
    grad_bytes = 0.0 if job.adapter else job.software.reduce_bytes
    spread = lay.expert * lay.expert_tensor
    gather = scatter = 0.0
    for params, weight_bytes, members, stride in (
        (held.common, common_bytes, ways, lay.tensor),
        (held.routed, routed_bytes, max(1, ways * lay.tensor // spread), spread),
    ):
        if params and members > 1:
            g = network.group(job.machine, members, stride)
            gather += network.gather_s(g, weight_bytes)
            if grad_bytes:
                scatter += network.gather_s(g, params * grad_bytes)
    before, after = (gather, gather) if zero == 3 else (gather / job.microbatches, 0.0)
    share = c.hidden_share
    forward, hidden = _exposed(before, share * one.forward - used[0], c)
    room = share * (one.backward + again) - used[1]
    backward, more = _exposed(after + scatter, room, c)
    return forward + backward, hidden + more


def _travelling_bytes(job: Job, held: RankParams, moe: bool) -> tuple[float, float]:
    """Return the bytes of one layer's gathered weights: common ones, and of routed experts."""
    if not job.adapter:
        return 2.0 * held.common, 2.0 * held.routed
    lay = job.layout
    layer = frozen_layer_bytes(job.shape, lay.tensor, job.adapter.bits)
    routed = layer.routed / (lay.expert * lay.expert_tensor)
    return (layer.sparse, routed) if moe else (layer.dense, 0.0)


def _reduce_s(job: Job, c: Constants, held: RankParams, free_s: float) -> float:
    """Predict the time of reducing gradients between replicas once a step, weights included.

    `held` is what the rank has before sharding. `free_s` is work of a microbatch behind which
    a transfer can still hide.
    """
    lay = job.layout
    if job.adapter:
        return 0.0
    common, routed = held.common, held.routed
    out = job.software.replica_bytes or job.software.reduce_bytes
    spread = lay.expert * lay.expert_tensor
    scatter = gather = 0.0
    inside = lay.shard * lay.context
    replicas = job.replicas_together
    between = network.group(job.machine, replicas, lay.tensor * inside)
    kept = common / inside + routed / max(1, inside * lay.tensor // spread)
    if job.zero_in_step >= 2 and inside > 1:  # inside a replica it was done layer by layer
        scatter = network.all_reduce_s(between, kept * out)
    elif job.software.fsdp and inside > 1:
        return _whole_once_s(job, c, held, free_s) + network.all_reduce_s(between, kept * out)
    else:
        back = job.software.replica_bytes or 2.0  # sums of gradients, or new weights
        for params, ways, stride in (
            (common, replicas * lay.shard * lay.context, lay.tensor),
            (routed, expert_ways(job), spread),
        ):
            if params and ways > 1:
                g = network.group(job.machine, ways, stride)
                scatter += network.gather_s(g, params * out)
                gather += network.gather_s(g, params * back)
    if not job.software.overlap_data:
        return scatter + gather
    if lay.interleave > 1:  # a piece is done while the stage still has p microbatches of others
        free_s *= min(lay.pipeline, job.microbatches)
    return _exposed(scatter, free_s * 2 / 3, c)[0] + _exposed(gather, free_s / 3, c)[0]


def _whole_once_s(job: Job, c: Constants, held: RankParams, free_s: float) -> float:
    """Predict the time of the gather of all weights and the scatter of all gradients inside a
    replica, where FSDP does them once a step.

    Weights are fetched ahead of the first forward pass. Gradients travel behind the last backward
    pass; a pipeline's schedule sends them after it.
    """
    lay = job.layout
    spread = lay.expert * lay.expert_tensor
    inside = lay.shard * lay.context
    scatter = gather = 0.0
    for params, members, stride in (
        (held.common, inside, lay.tensor),
        (held.routed, max(1, inside * lay.tensor // spread), spread),
    ):
        if params and members > 1:
            g = network.group(job.machine, members, stride)
            scatter += network.gather_s(g, params * job.software.reduce_bytes)
            gather += network.gather_s(g, params * 2.0)
    after = scatter if lay.pipeline > 1 else _exposed(scatter, free_s * 2 / 3, c)[0]
    return after + _exposed(gather, free_s / 3, c)[0]


def _pipeline_s(job: Job, c: Constants) -> float:
    """Predict the time of the sends of activations to the next stage and of gradients back."""
    lay = job.layout
    if lay.pipeline == 1:
        return 0.0
    split = lay.tensor if lay.sequence_parallel else 1
    size = job.rank_tokens * job.shape.hidden * 2.0 / split
    stride = lay.tensor * lay.context * lay.replicate * lay.shard
    one = 2 * network.send_s(job.machine, size, stride, lay.pipeline)
    shown = c.tensor_exposed if job.software.overlap_tensor else 1.0
    return one * lay.interleave * (job.microbatches * shown + lay.pipeline - 1)


def _optimizer_s(job: Job, held: RankParams, rates: DeviceRates) -> float:
    """Predict the time of the update of the optimizer state that a rank keeps."""
    if job.adapter or job.software.offload:
        return 0.0
    common_ways, routed_ways = shard_ways(job.layout)
    kept = held.common / common_ways + held.routed / routed_ways
    soft = job.software
    return operators.optimizer_s(kept, rates, not soft.fused, soft.update_bytes)


def _data_s(job: Job, step_s: float) -> float:
    """Return the wait for samples, when a node reads them slower than it trains on them."""
    read = job.machine.read_bytes_per_s
    if not read:
        return 0.0
    nodes = max(1, -(-job.layout.ranks // job.machine.per_node))
    ceiling = data_tokens_per_s(read, job.shape.vocab, job.sequence, nodes)
    return max(0.0, job.tokens / ceiling - step_s)


def data_tokens_per_s(read: float, vocab: int, sequence: int, nodes: int = 1) -> float:
    """Return the tokens per second of all nodes, when each can read this many bytes per second.

    From a disk or a remote store, a node reads whole blocks, and the order deals the samples of a
    block out to all nodes. So with few nodes each reads nearly all blocks; they share the reading
    only when they are more than a block has samples. The order jumps after `ORDER_BLOCK_BYTES`,
    and the last target of each piece lies in the block behind it.
    """
    token_bytes = int(dtype_for(vocab)[-1])
    samples = max(1.0, BLOCK_BYTES / (sequence * token_bytes))
    needed = 1.0 - (1.0 - 1.0 / nodes) ** samples  # share of the blocks that a node reads
    needed *= 1.0 + BLOCK_BYTES / ORDER_BLOCK_BYTES
    return read / (token_bytes * needed)
