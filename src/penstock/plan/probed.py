"""Seconds of one training step on a machine that was probed, from its readings.

The parts are those that the probe times alone (`meter/pieces.py`); here they are counted. It is
exact where a step has the sizes that were probed, and interpolates between them. It holds for the
trainer as it is: eager torch, FSDP2 around every layer, AdamW.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.plan.grid import Grid, grid
from penstock.plan.job import Job
from penstock.plan.machine import Machine

# Passes over the residual stream in one layer that are additions: two residuals forward; backward,
# gradients that meet at q, k and v, at gate and up, and at the two residuals.
ADDS = 7
# Bytes of eager torch per logit: bf16 and fp32 logits, their log-softmax, and three gradients.
LOGIT_BYTES = 20.0
# glibc gives larger pieces back at once, and keeps twice its largest smaller piece of freed memory.
LARGEST_KEPT_BYTES = 32 << 20
# Views, transposes and hooks of one layer, forward and backward, that no reading holds: counted
# in a profile of the decoder.
SMALL_OPS = 400
BUCKET_BYTES = 64 << 20  # of the exchange between replicas
RECOMPUTED = 1 / 3  # the forward share of a piece that was timed forward and backward


@dataclass(frozen=True)
class Linear:
    """A product in the forward pass; the backward pass has two of the same work."""

    rows: float
    inner: float
    columns: float
    count: float = 1.0


def is_probed(machine: Machine) -> bool:
    return bool(machine.curves)


def step_compute_s(job: Job) -> dict[str, float]:
    """Seconds of one rank in one optimizer step, by part; exchanges are not among them."""
    read = _Readings(job.machine, job.precision)
    layers = job.shape.layers / job.layout.pipeline
    once = _pass_s(job, read, layers)
    again = {"none": 0.0, "selective": 0.0, "full": 1.0}[job.layout.recompute]
    parts = {
        name: seconds * job.microbatches * (1 + (again * RECOMPUTED if name in _LAYERS else 0))
        for name, seconds in once.items()
    }
    parts["optimizer"] = read.seconds("update_s", _parameters(job) / job.layout.shard)
    return parts


_LAYERS = ("matmul", "attention", "elementwise")


def all_reduce_s(machine: Machine, size_bytes: float, ways: int) -> float:
    """Seconds to sum `size_bytes` over `ways` ranks, from the readings by message size.

    A ring over more or fewer ranks than were probed sends 2 (n − 1) / n of the bytes.
    """
    points = machine.curves.get("all_reduce_s")
    if ways < 2 or not points:
        return 0.0
    probed = max(2.0, machine.probed.get("ranks", 2.0))
    ring = ((ways - 1) / ways) / ((probed - 1) / probed)
    return grid(points, (1.0,)).seconds(max(1.0, size_bytes)) * ring


def exchange_s(job: Job) -> float:
    """Between replicas: gradients are copied into one buffer, summed, and the step is voted on."""
    ways = job.layout.replicate
    if ways < 2:
        return 0.0
    count = _parameters(job) / job.layout.shard
    read = _Readings(job.machine, "fp32")
    bucket = min(4 * count, BUCKET_BYTES)
    copied = read.seconds("add_s", count)
    if bucket > LARGEST_KEPT_BYTES:
        copied += read.fresh_s(4 * count, 0.0)
    vote = all_reduce_s(job.machine, 64, ways)
    return copied + 4 * count / bucket * all_reduce_s(job.machine, bucket, ways) + vote


def _pass_s(job: Job, read: "_Readings", layers: float) -> dict[str, float]:
    """One microbatch, forward and backward."""
    shape, layout = job.shape, job.layout
    rows = job.rank_tokens
    stream = rows * shape.hidden
    heads = shape.heads / layout.tensor
    width = shape.head_width
    kv = shape.kv_heads / layout.tensor
    last = 1.0 / layout.pipeline  # the head, spread over the stages
    logits = rows * shape.vocab / layout.tensor
    gates = sum(line.rows * line.columns * line.count for line in _gates(job))
    elementwise = layers * (
        2 * read.seconds("norm_s", stream)
        + ADDS * read.seconds("add_s", stream)
        + read.seconds("rotary_s", rows * heads * width)
        + read.seconds("rotary_s", rows * kv * width)
        + read.seconds("gate_s", gates)
    )
    embedding = shape.embedding_params() / layout.tensor
    elementwise += last * (
        read.seconds("norm_s", stream) + read.seconds("add_s", 2 * stream + embedding)
    )
    units = layers * read.seconds("shard_s", _parameters(job, layers_only=True) / layers)
    units += last * read.seconds("shard_s", max(1.0, _root_parameters(job)))
    return {
        "matmul": layers * sum(map(read.linear_s, _linears(job)))
        + last * read.linear_s(Linear(rows, shape.hidden, shape.vocab / layout.tensor)),
        "attention": layers * read.attention_s(job.sequence, width, heads * layout.microbatch),
        "elementwise": elementwise,
        "loss": last * read.seconds("loss_s", logits),
        "shard": units,
        "memory": last * read.fresh_s(LOGIT_BYTES * logits, max(logits, _parameters(job)) * 4),
        "overhead": (layers + last) * SMALL_OPS * read.op_s,
    }


def _gates(job: Job) -> Iterator[Linear]:
    """The products that open the feed-forward part of one layer, by expert where it has some."""
    shape, rows, ways = job.shape, job.rank_tokens, job.layout.tensor
    if shape.moe:
        visits = rows * shape.experts_active / shape.experts
        yield Linear(visits, shape.hidden, shape.expert_ffn / ways, shape.experts)
        if shape.shared_experts:
            yield Linear(rows, shape.hidden, shape.shared_experts * shape.expert_ffn / ways)
    else:
        yield Linear(rows, shape.hidden, shape.ffn / ways)


def _linears(job: Job) -> Iterator[Linear]:
    """The products of one layer."""
    shape, rows, ways = job.shape, job.rank_tokens, job.layout.tensor
    q, kv = shape.heads * shape.head_width / ways, shape.kv_heads * shape.head_width / ways
    yield Linear(rows, shape.hidden, q)
    yield Linear(rows, shape.hidden, kv, 2)
    yield Linear(rows, q, shape.hidden)
    for opening in _gates(job):
        yield Linear(opening.rows, opening.inner, opening.columns, 2 * opening.count)
        yield Linear(opening.rows, opening.columns, opening.inner, opening.count)


def _parameters(job: Job, layers_only: bool = False) -> float:
    """That one rank works with before sharding."""
    layers = job.shape.params() - _root_whole(job)
    ways = job.layout.tensor * job.layout.pipeline
    return (layers if layers_only else job.shape.params()) / ways


def _root_parameters(job: Job) -> float:
    return _root_whole(job) / job.layout.tensor


def _root_whole(job: Job) -> float:
    """Embedding, head and the last norm."""
    shape = job.shape
    return shape.embedding_params() * (1 if shape.tied else 2) + shape.hidden


class _Readings:
    """The curves of one precision."""

    def __init__(self, machine: Machine, precision: str) -> None:
        if not is_probed(machine):
            raise PenstockError(f"{machine.name}: not probed; run `penstock probe` on it")
        self.machine, self.precision = machine, precision
        # Narrow precisions change products only; what lies between them stays in bf16.
        self.wide = "fp32" if precision in ("fp32", "tf32") else "bf16"
        self.op_s = machine.probed.get("op_s", 0.0)

    def seconds(self, name: str, size: float) -> float:
        return self._grid(name, (1.0,)).seconds(max(1.0, size))

    def attention_s(self, sequence: float, width: float, heads: float) -> float:
        return heads * self._grid("attention_s", (2.0, 1.0)).seconds(sequence, width)

    def linear_s(self, line: Linear) -> float:
        """Forward, and the gradients of the input and of the weight."""
        a, b, c = (max(1.0, size) for size in (line.rows, line.inner, line.columns))
        products = self._products()
        return line.count * sum(
            products.seconds(*sizes) for sizes in ((a, b, c), (a, c, b), (c, a, b))
        )

    def fresh_s(self, alive_bytes: float, largest_bytes: float) -> float:
        """Memory that a CPU's allocator gave back after the last pass and has to find again.

        Only the few large tensors at the end of a pass are given back: smaller ones are kept.
        """
        rate = self.machine.probed.get("fresh_bytes_per_s")
        kept = 2 * min(LARGEST_KEPT_BYTES, largest_bytes)
        return max(0.0, alive_bytes - kept) / rate if rate else 0.0

    def _products(self) -> Grid:
        matmuls = self.machine.matmuls
        points = matmuls.get(self.precision) or matmuls.get(self.wide)
        if not points:
            raise PenstockError(
                f"{self.machine.name}: its probe has no {self.precision} products; probe again"
            )
        return _product_grid(points)

    def _grid(self, name: str, growth: tuple[float, ...]) -> Grid:
        curves = self.machine.curves
        points = curves.get(f"{name}.{self.wide}") or curves.get(name)
        if not points:
            raise PenstockError(
                f"{self.machine.name}: its probe has no reading `{name}`; probe again"
            )
        return grid(points, growth)


def _product_grid(points: tuple) -> Grid:
    return grid(
        tuple((p.m, p.k, p.n, 2.0 * p.m * p.k * p.n / p.flops) for p in points), (1.0, 1.0, 1.0)
    )
