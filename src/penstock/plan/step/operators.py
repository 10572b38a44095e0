"""The work of one microbatch on one rank, operator by operator: a roofline for each.

A matmul costs its floating-point work at the sustained rate plus its traffic at the memory's
bandwidth, so small and thin ones are slow by themselves. All other work counts as traffic.
"""

from dataclasses import dataclass
from functools import lru_cache

from penstock.catalog.shapes import ModelShape
from penstock.plan.hardware.network import Dispatch
from penstock.plan.job.constants import Constants
from penstock.plan.job.job import Job

# Element-wise kernels reach this much of the printed bandwidth (STREAM-like figures on HBM parts).
STREAM_SHARE = 0.85
# Bytes per logit moved by the loss: written and read in 16 and in 32 bits, forward and backward.
LOSS_BYTES = {True: 12.0, False: 24.0}
# Bytes per parameter that an AdamW step moves: weight, gradient, two moments read and written.
OPTIMIZER_BYTES = 34.0
# PyTorch's selective checkpointing saves about every second matmul: the rest is this of a forward.
TORCH_SELECTIVE = 0.4
# Reads and writes of the routed copies of the tokens: to the experts' order and back, both ways.
PERMUTE_PASSES = 8.0
HOPPER_YEAR = 2022
# Energy of the same work on the node before: the foundry's own figure for 7 to 5 nm is 30 % less.
SEVEN_NM = 1 / 0.7


@dataclass(frozen=True)
class PassSeconds:
    """Seconds of forward and of backward work."""

    forward: float = 0.0
    backward: float = 0.0

    def __add__(self, other: "PassSeconds") -> "PassSeconds":
        return PassSeconds(self.forward + other.forward, self.backward + other.backward)

    def times(self, factor: float) -> "PassSeconds":
        return PassSeconds(self.forward * factor, self.backward * factor)


@dataclass(frozen=True)
class LayerSeconds:
    """Seconds of one layer by part."""

    matmul: PassSeconds
    attention: PassSeconds
    elementwise: PassSeconds
    experts: PassSeconds

    @property
    def forward(self) -> float:
        return (
            self.matmul.forward
            + self.attention.forward
            + self.elementwise.forward
            + self.experts.forward
        )

    @property
    def backward(self) -> float:
        return (
            self.matmul.backward
            + self.attention.backward
            + self.elementwise.backward
            + self.experts.backward
        )


@dataclass(frozen=True)
class DeviceRates:
    """The rates that one accelerator sustains in this job."""

    flops: float  # matmuls of the layers, FLOP/s
    wide_flops: float  # 16-bit matmuls
    attention_flops: float
    bytes_per_s: float
    operand_bytes: float
    reuse: float


def device_rates(job: Job, c: Constants) -> DeviceRates:
    machine, precision = job.machine, job.precision
    best = _wide(job)
    wide = sustained_flops(job, best, c.watt_16)
    flops, operand = wide, 2.0
    if precision in ("fp8", "mxfp8", "fp8-rowwise") and "fp8" in machine.matmul_flops:
        flops, operand = (
            sustained_flops(job, machine.matmul_flops["fp8"] * c.matmul_fp8, c.watt_8),
            1.0,
        )
        if precision == "fp8-rowwise":
            flops *= c.rowwise_scaling
    elif precision == "fp4" and "fp4" in machine.matmul_flops:
        flops, operand = (
            sustained_flops(job, machine.matmul_flops["fp4"] * c.matmul_fp8, c.watt_4),
            0.56,
        )
    elif precision in ("fp32", "tf32"):
        flops, operand = machine.matmul_flops.get(precision, best / 2), 4.0
        wide = best = flops
    tuned = job.software.attention == "chip" or (
        job.software.attention == "second" and (not machine.fact or machine.fact.year < HOPPER_YEAR)
    )
    return DeviceRates(
        flops=flops,
        wide_flops=wide,
        attention_flops=best * (c.attention if tuned else c.attention_portable),
        bytes_per_s=machine.memory_bytes_per_s * STREAM_SHARE,
        operand_bytes=operand,
        reuse=c.reuse,
    )


def sustained_flops(job: Job, flops: float, picojoule: float) -> float:
    """Return the rate that the power limit leaves of `flops`: a soft minimum of the two."""
    machine = job.machine
    if not machine.tdp_w or not machine.fact:
        return flops
    node = SEVEN_NM if machine.fact.year < HOPPER_YEAR else 1.0
    powered = machine.capped * machine.tdp_w / (picojoule * 1e-12 * node)
    return flops / (1 + (flops / powered) ** 24) ** (1 / 24)


def _wide(job: Job) -> float:
    """Return the sustained 16-bit rate; the 32-bit one where there is nothing else."""
    found = job.machine.matmul_flops
    for kind in ("fp16" if job.precision == "fp16" else "bf16", "bf16", "fp16", "tf32", "fp32"):
        if kind in found:
            return found[kind]
    raise KeyError(f"{job.machine.name} has no matmul rate")


def matmul_seconds(
    r: DeviceRates, m: float, k: float, n: float, frozen: bool, accumulate: float
) -> PassSeconds:
    """Predict the time of x (m × k) times W (k × n) and its two backward products; `frozen` weights
    have only one.
    """
    flops_s = 2.0 * m * k * n / r.flops
    x, w, y = m * k * r.operand_bytes, k * n * r.operand_bytes, m * n * r.operand_bytes
    traffic = r.reuse / r.bytes_per_s
    forward = flops_s + (x + w + 2.0 * m * n) * traffic
    backward = flops_s + (y + w + 2.0 * m * k) * traffic
    if not frozen:
        backward += flops_s + (x + y + accumulate * k * n) * traffic
    return PassSeconds(forward, backward)


@lru_cache(maxsize=4096)
def attention_widths(shape: ModelShape) -> tuple[float, float]:
    """Return the widths of the query-key and of the score-value product, over all heads."""
    if shape.kv_rank:
        return shape.heads * shape.score_channels, shape.heads * shape.v_dim
    return shape.heads * shape.head_width, shape.heads * shape.head_width


def layer_seconds(job: Job, c: Constants, r: DeviceRates, moe: bool) -> LayerSeconds:
    """Predict the time of one layer's forward and backward on one rank, for one microbatch."""
    shape, lay, software = job.shape, job.layout, job.software
    tokens, t = job.rank_tokens, lay.tensor
    frozen = job.adapter is not None
    accumulate = 8.0 if software.accumulates else 2.0
    products = attention_products(shape, t)
    if not moe:
        up = 2 if shape.gated else 1
        products += ((shape.hidden, up * shape.ffn / t), (shape.ffn / t, shape.hidden))
    elif shape.shared_experts:
        wide = shape.expert_ffn * shape.shared_experts
        up = 2 if shape.gated else 1
        products += ((shape.hidden, up * wide / t), (wide / t, shape.hidden))
    dense = PassSeconds()
    for k, n in products:
        dense = dense + matmul_seconds(r, tokens, k, n, frozen, accumulate)
    experts = _experts(job, c, r, frozen, accumulate) if moe else PassSeconds()
    return LayerSeconds(
        matmul=dense,
        attention=_attention(job, c, r),
        elementwise=_elementwise(job, c, r, products, moe),
        experts=experts,
    )


@lru_cache(maxsize=4096)
def attention_products(shape: ModelShape, t: int) -> tuple[tuple[float, float], ...]:
    """Return (k, n) of the projections around attention, on one of `t` tensor-parallel ranks."""
    h, heads = shape.hidden, shape.heads
    if shape.kv_rank:
        qk = shape.rope_dim + shape.nope_dim
        query: tuple[tuple[float, float], ...] = ((h, heads * qk / t),)
        if shape.q_rank:
            query = ((h, shape.q_rank), (shape.q_rank, heads * qk / t))
        return (
            *query,
            (h, shape.kv_rank + shape.rope_dim),
            (shape.kv_rank, heads * (shape.nope_dim + shape.v_dim) / t),
            (heads * shape.v_dim / t, h),
        )
    q = heads * shape.head_width
    kv = max(shape.kv_heads / t, 1) * shape.head_width
    return ((h, q / t + 2 * kv), (q / t, h))


def _attention(job: Job, c: Constants, r: DeviceRates) -> PassSeconds:
    """Predict the time of causal attention: fused kernels compute half of the square."""
    shape, lay = job.shape, job.layout
    qk, v = attention_widths(shape)
    tokens = job.rank_tokens
    keys = shape.attended_tokens(job.sequence)
    square = 2.0 * tokens * keys * (qk + v) / lay.tensor
    if job.software.flash:
        masked = job.software.gathers_context and lay.context > 1
        flops = square if masked else square / 2
        # Five products backward against two forward.
        return PassSeconds(flops / r.attention_flops, 2.5 * flops / r.attention_flops)
    scores = tokens * keys * shape.heads / lay.tensor * 2.0
    passes = scores * c.score_passes / r.bytes_per_s
    return PassSeconds(
        square / r.wide_flops + passes / 3, 2 * square / r.wide_flops + 2 * passes / 3
    )


def _elementwise(
    job: Job,
    c: Constants,
    r: DeviceRates,
    products: tuple[tuple[float, float], ...],
    moe: bool,
) -> PassSeconds:
    """Predict the time of norms, residuals, rotations and activations, which is traffic."""
    shape, lay = job.shape, job.layout
    split = lay.tensor if lay.sequence_parallel else 1
    inner = sum(n for _, n in products[:-1])
    width = 4.0 * shape.hidden / split + inner
    if shape.gated and not job.software.fused:
        # A rotation in 32 bits, and a gate that is one more kernel: what GPT-like blocks lack.
        width += 2.0 * products[0][1] + (0 if moe else shape.ffn / lay.tensor)
    if moe:
        width += shape.experts_active * shape.expert_ffn * 2 / lay.tensor
    passes = c.passes_fused if job.software.fused else c.passes_eager
    seconds = job.rank_tokens * width * 2.0 * passes / r.bytes_per_s
    if r.operand_bytes < 2:
        operands = sum(k + n for k, n in products)
        seconds += job.rank_tokens * operands * 2.0 * c.cast_passes / r.bytes_per_s
    return PassSeconds(seconds / 3, 2 * seconds / 3)


def _experts(
    job: Job, c: Constants, r: DeviceRates, frozen: bool, accumulate: float
) -> PassSeconds:
    """Predict the time of the routed experts of one rank: a product for each, and moving tokens to
    and from its order.
    """
    shape, lay = job.shape, job.layout
    copies = expert_copies(job)
    local = max(1.0, shape.experts / lay.expert)
    each = copies * imbalance(job) / local
    inner = shape.expert_ffn / lay.expert_tensor
    up = 2 if shape.gated else 1
    cost = matmul_seconds(r, each, shape.hidden, up * inner, frozen, accumulate)
    cost = cost + matmul_seconds(r, each, inner, shape.hidden, frozen, accumulate)
    moved = copies * shape.hidden * 2.0 * PERMUTE_PASSES / r.bytes_per_s
    if r.operand_bytes < 2:
        moved += copies * (shape.hidden + 3 * inner) * 2.0 * c.cast_passes / r.bytes_per_s
    return cost.times(local) + PassSeconds(moved / 2, moved / 2)


def expert_copies(job: Job) -> float:
    """Return the routed copies that one rank's experts compute for one microbatch, when balanced.

    With tensor parallel attention the tokens of a group are shared by its ranks.
    """
    share = job.layout.tensor / job.layout.expert_tensor
    return job.rank_tokens * job.shape.experts_active / share


def dispatch_of(job: Job) -> Dispatch:
    """Return where the copies of one token go."""
    shape = job.shape
    if not job.software.dedupes:
        return Dispatch()
    return Dispatch(shape.experts_active, shape.expert_groups, shape.groups_active)


# Usual load of the fullest expert over the mean, with a balancing loss (arXiv 2101.03961).
USUAL_IMBALANCE = 1.1


def imbalance(job: Job) -> float:
    return USUAL_IMBALANCE if job.imbalance is None else job.imbalance


def head_seconds(job: Job, r: DeviceRates) -> PassSeconds:
    """Predict the time of the output projection and the loss, on the last stage."""
    shape, lay = job.shape, job.layout
    tokens, vocab = job.rank_tokens, shape.vocab / lay.tensor
    wide = DeviceRates(r.wide_flops, r.wide_flops, r.attention_flops, r.bytes_per_s, 2.0, r.reuse)
    cost = matmul_seconds(wide, tokens, shape.hidden, vocab, job.adapter is not None, 8.0)
    each = job.software.loss_bytes or LOSS_BYTES[job.software.fused]
    moved = tokens * vocab * each / r.bytes_per_s
    return cost + PassSeconds(moved / 2, moved / 2)


def recompute_s(job: Job, one: LayerSeconds) -> float:
    """Return the seconds of forward work that a layer does again in its backward pass."""
    if job.layout.recompute == "full":
        return one.forward
    if job.layout.recompute == "selective":
        if not job.software.flash:
            return one.attention.forward
        if job.software.torch_checkpoints:
            return TORCH_SELECTIVE * one.forward
        return one.elementwise.forward
    return 0.0


def optimizer_s(params: float, r: DeviceRates, eager: bool, moved_bytes: float = 0.0) -> float:
    """Predict the time of AdamW over the parameters of a rank, and of the gradient norm."""
    usual = OPTIMIZER_BYTES * (1.3 if eager else 1.0)
    return params * (moved_bytes or usual) / r.bytes_per_s
