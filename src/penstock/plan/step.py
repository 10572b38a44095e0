"""The time of one optimizer step: operators, collectives, and how schedules overlap them.

Follows one rank of the slowest pipeline stage through its microbatches. Every second lands in one
part, and the parts add up to the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log2

from penstock.catalog.shapes import ModelShape
from penstock.plan import network, operators
from penstock.plan.constants import Constants, fitted
from penstock.plan.job import Job
from penstock.plan.operators import LayerCost, Rates
from penstock.plan.outcome import StepTime

COMPUTE = (
    "matmul",
    "attention",
    "elementwise",
    "experts",
    "loss",
    "recompute",
    "optimizer",
    "launch",
)
COMMUNICATE = ("tensor", "context", "all-to-all", "gather", "reduce", "pipeline")
# A zero-bubble schedule fills all but about this share of the bubble (arXiv 2401.10241, ZB-H1).
ZERO_BUBBLE_LEFT = 1 / 3


@dataclass(frozen=True)
class Stage:
    """The slowest pipeline stage: whole layers, and the head where it is the last one."""

    dense: float  # layers
    moe: float
    head: float  # 1 or 0

    @property
    def layers(self) -> float:
        return self.dense + self.moe


@lru_cache(maxsize=65536)
def stages(shape: ModelShape, pipeline: int, interleave: int) -> tuple[Stage, ...]:
    """Kinds of stage that can be the slowest: a middle one, and the last with its head.

    Frameworks that cannot split the layers evenly give the first and last stage one less.
    """
    moe_layers = shape.layers - shape.dense_layers if shape.moe else 0
    share = moe_layers / shape.layers
    if pipeline == 1:
        return (Stage(shape.layers - moe_layers, moe_layers, 1.0),)
    pieces = pipeline * interleave
    per_stage = -(-shape.layers // pieces) * interleave
    even = shape.layers % pieces == 0
    last = per_stage if even else max(1, per_stage - 1)
    return (
        Stage(per_stage * (1 - share), per_stage * share, 0.0),
        Stage(last * (1 - share), last * share, 1.0),
    )


def predict(job: Job, constants: Constants | None = None) -> StepTime:
    """Seconds of one optimizer step by part."""
    c = constants or fitted()
    rates = operators.rates(job, c)
    layers = {
        moe: operators.layer(job, c, rates, moe)
        for moe in (False, True)
        if moe and job.shape.moe or not moe
    }
    head = operators.head(job, rates)
    micro = [
        _microbatch(job, c, layers, head, stage)
        for stage in stages(job.shape, job.layout.pipeline, job.layout.interleave)
    ]
    slowest = max(micro, key=lambda parts: sum(parts.values()))
    usual = micro[0]
    m, p, v = job.microbatches, job.layout.pipeline, job.layout.interleave
    parts = {name: seconds * m for name, seconds in slowest.items()}
    bubble = (p - 1) * sum(usual.values()) / v
    parts["bubble"] = bubble * (ZERO_BUBBLE_LEFT if job.layout.zero_bubble else 1.0)
    parts["pipeline"] = _pipeline_s(job, c)
    parts["reduce"] = _reduce_s(job, c, slowest)
    parts["optimizer"] = _optimizer_s(job, rates)
    nodes = max(1, -(-job.layout.ranks // job.machine.per_node))
    parts["jitter"] = c.jitter * log2(nodes) * sum(parts.values())
    return _step_time(job, parts)


def _step_time(job: Job, parts: Mapping[str, float]) -> StepTime:
    causes = {
        "compute": sum(parts.get(name, 0.0) for name in COMPUTE),
        "communicate": sum(parts.get(name, 0.0) for name in COMMUNICATE),
        "bubble": parts.get("bubble", 0.0),
        "peer_wait": parts.get("jitter", 0.0),
        "data_wait": parts.get("data", 0.0),
    }
    return StepTime(
        parts=parts,
        causes=causes,
        step_s=sum(parts.values()),
        tokens=job.tokens,
        model_flops=job.shape.flops_per_token(job.sequence) * job.tokens,
    )


def _microbatch(
    job: Job,
    c: Constants,
    layers: Mapping[bool, LayerCost],
    head: operators.Cost,
    stage: Stage,
) -> dict[str, float]:
    """One forward and backward pass of a stage."""
    parts = dict.fromkeys(("matmul", "attention", "elementwise", "experts", "recompute"), 0.0)
    parts |= {"tensor": 0.0, "context": 0.0, "all-to-all": 0.0, "gather": 0.0}
    host_s = 0.0
    for moe, count in ((False, stage.dense), (True, stage.moe)):
        if not count:
            continue
        one = layers[moe]
        again = operators.recompute(job, one)
        for name in ("matmul", "attention", "elementwise", "experts"):
            cost: operators.Cost = getattr(one, name)
            parts[name] += count * (cost.forward + cost.backward)
        parts["recompute"] += count * again
        parts["tensor"] += count * _tensor_s(job, c, one)
        parts["context"] += count * _context_s(job, c, one)
        if moe:
            parts["all-to-all"] += count * _experts_s(job, c)
        parts["gather"] += count * _gather_s(job, c, one, again, moe)
        host_s += count * _host_s(job, c, moe)
    if stage.head:
        parts["loss"] = head.forward + head.backward
    device_s = sum(parts.values())
    # The device waits for the host when its work is shorter than issuing it.
    parts["launch"] = (device_s**4 + host_s**4) ** 0.25 - device_s
    return parts


def _host_s(job: Job, c: Constants, moe: bool) -> float:
    if job.software.graphs or job.machine.kind == "cpu":
        return 0.0
    seconds = c.host_layer_s
    if moe:
        seconds += c.host_expert_s + (c.host_dropless_s if job.software.dropless else 0.0)
    if job.layout.recompute == "full":
        seconds *= 4 / 3
    return seconds


def _tensor_s(job: Job, c: Constants, one: LayerCost) -> float:
    """Gather and scatter of activations around attention and around the feed-forward part."""
    ways = job.layout.tensor
    if ways == 1:
        return 0.0
    g = network.group(job.machine, ways)
    size = job.rank_tokens * job.shape.hidden * 2.0
    # Forward: two gathers and two scatters; backward the same and the inputs once more.
    times = 8.0 if job.layout.sequence_parallel else 8.0
    if job.layout.recompute == "full":
        times += 4.0
    seconds = times * network.gather_s(g, size)
    return seconds * (c.tensor_exposed if job.software.overlap_tensor else 1.0)


def _context_s(job: Job, c: Constants, one: LayerCost) -> float:
    """Keys and values go around the ring behind attention; what is longer than it shows."""
    ways = job.layout.context
    if ways == 1:
        return 0.0
    shape = job.shape
    width = 2 * shape.kv_heads * shape.head_width / min(job.layout.tensor, shape.kv_heads)
    if shape.kv_rank:
        width = 2 * shape.heads * shape.v_dim / job.layout.tensor
    g = network.group(job.machine, ways, job.layout.tensor)
    size = job.layout.microbatch * job.sequence * width * 2.0
    once = network.gather_s(g, size)
    forward = _exposed(once, one.attention.forward, c)
    return forward + _exposed(2 * once, one.attention.backward, c)


def _experts_s(job: Job, c: Constants) -> float:
    """Tokens to their experts and back, forward and backward."""
    lay = job.layout
    if lay.expert == 1:
        return 0.0
    g = network.group(job.machine, lay.expert, lay.expert_tensor)
    size = operators.expert_copies(job) * job.shape.hidden * 2.0 * operators.imbalance(job)
    times = 6.0 if lay.recompute == "full" else 4.0
    seconds = times * network.all_to_all_s(
        g, size, c.all_to_all, job.shape.experts_active if job.software.dedupes else 1
    )
    return seconds * (c.tensor_exposed if job.software.overlap_experts else 1.0)


def _exposed(comm_s: float, compute_s: float, c: Constants) -> float:
    """What a collective behind `compute_s` adds: the part it cannot hide, and the slowing."""
    hidden = min(comm_s, c.hidden_share * compute_s)
    return comm_s - hidden + c.contention * hidden


def layer_params(job: Job, moe: bool) -> tuple[float, float]:
    """Parameters of one layer on one rank before sharding: shared by all ranks, and routed."""
    shape, lay = job.shape, job.layout
    total = shape.attention_params() + 2 * shape.hidden
    if not moe:
        return (
            total + shape.ffn_params(0 if shape.dense_layers or not shape.moe else 0)
        ) / lay.tensor, 0.0
    matrices = 3 if shape.gated else 2
    routed = matrices * shape.hidden * shape.expert_ffn * shape.experts
    shared = matrices * shape.hidden * shape.expert_ffn * shape.shared_experts
    return (
        (total + shared + shape.hidden * shape.experts) / lay.tensor,
        routed / (lay.expert * lay.expert_tensor),
    )


def _gather_s(job: Job, c: Constants, one: LayerCost, again: float, moe: bool) -> float:
    """Sharded weights gathered before a layer's work, gradients scattered after it."""
    lay = job.layout
    if lay.zero < 2 or lay.shard * lay.context == 1 or job.adapter:
        return 0.0
    common, routed = layer_params(job, moe)
    reduce_bytes = job.software.reduce_bytes
    gather = scatter = 0.0
    for params, ways, stride in (
        (common, lay.shard * lay.context, lay.tensor),
        (routed, max(1, lay.shard * lay.context * lay.tensor // lay.expert), lay.expert),
    ):
        if params and ways > 1:
            g = network.group(job.machine, ways, stride)
            gather += network.gather_s(g, params * 2.0)
            scatter += network.gather_s(g, params * reduce_bytes)
    if lay.zero == 2:
        gather_forward, gather_backward = gather / job.microbatches, 0.0
    else:
        gather_forward = gather_backward = gather
    forward = _exposed(gather_forward, one.forward, c)
    return forward + _exposed(gather_backward + scatter, one.backward + again, c)


def _reduce_s(job: Job, c: Constants, micro: Mapping[str, float]) -> float:
    """Gradients agreed between replicas once a step, behind the last backward pass."""
    lay = job.layout
    if job.adapter:
        return 0.0
    moe_share = (
        (job.shape.layers - job.shape.dense_layers) / job.shape.layers if job.shape.moe else 0.0
    )
    per_stage = job.shape.layers / lay.pipeline
    common = routed = 0.0
    for moe, share in ((False, 1 - moe_share), (True, moe_share)):
        if share:
            a, b = layer_params(job, moe)
            common, routed = common + a * per_stage * share, routed + b * per_stage * share
    common += job.shape.embedding_params() / lay.tensor
    out = job.software.reduce_bytes
    if lay.zero >= 2:  # inside a replica it was done layer by layer
        if lay.replicate == 1:
            return 0.0
        g = network.group(job.machine, lay.replicate, lay.tensor * lay.context * lay.shard)
        comm = network.all_reduce_s(g, (common + routed) * out / lay.shard)
        gather = 0.0
    else:
        ways, stride = lay.replicate * lay.shard * lay.context, lay.tensor
        g = network.group(job.machine, ways, stride)
        comm, gather = network.gather_s(g, common * out), network.gather_s(g, common * 2.0)
        few = max(1, ways * lay.tensor // (lay.expert * lay.expert_tensor))
        if routed and few > 1:
            far = network.group(job.machine, few, lay.expert * lay.expert_tensor)
            comm += network.gather_s(far, routed * out)
            gather += network.gather_s(far, routed * 2.0)
    if not job.software.overlap_data:
        return comm + gather
    compute = sum(micro.get(name, 0.0) for name in COMPUTE)
    if lay.interleave > 1:  # a piece is done while the stage still has p microbatches of others
        compute *= min(lay.pipeline, job.microbatches)
    return _exposed(comm, compute * 2 / 3, c) + _exposed(gather, compute / 3, c)


def _pipeline_s(job: Job, c: Constants) -> float:
    """Activations to the next stage and gradients back."""
    lay = job.layout
    if lay.pipeline == 1:
        return 0.0
    split = lay.tensor if lay.sequence_parallel else 1
    size = job.rank_tokens * job.shape.hidden * 2.0 / split
    one = 2 * network.send_s(
        job.machine, size, lay.tensor * lay.context * lay.replicate * lay.shard
    )
    shown = c.tensor_exposed if job.software.overlap_tensor else 1.0
    return one * lay.interleave * (job.microbatches * shown + lay.pipeline - 1)


def _optimizer_s(job: Job, rates: Rates) -> float:
    lay = job.layout
    if job.adapter:
        return 0.0
    params = job.shape.params() / (lay.tensor * lay.pipeline)
    if job.shape.moe:
        routed = (job.shape.params() - job.shape.params(active=True)) / lay.pipeline
        params = (
            job.shape.params(active=True) / lay.tensor + routed * lay.tensor / 1
        ) / lay.pipeline
        params = (
            job.shape.params() / lay.pipeline / lay.tensor
            if lay.expert == 1
            else job.shape.params() / (lay.pipeline * max(lay.tensor, lay.expert))
        )
    ways = lay.shard * lay.context
    if lay.shard > 1:
        params /= max(
            1, ways if not job.shape.moe else ways * lay.tensor / max(lay.tensor, lay.expert)
        )
    return operators.optimizer_s(params, rates, not job.software.fused)
