"""Seconds of one training step on a machine that was probed, from its readings.

The parts are those that the probe times alone (`meter/pieces.py`); here they are counted. It is
exact where a step has the sizes that were probed, and interpolates between them. It holds for the
trainer as it is: eager torch, FSDP2 around every layer, AdamW.

A GPU works while its host asks for more. There a small piece was timed at the pace of the host, so
its reading is split in two, and a step takes as long as the slower of device and host.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from penstock.errors import PenstockError
from penstock.plan.hardware import network
from penstock.plan.hardware.grid import Grid, grid
from penstock.plan.hardware.machine import Machine, MatmulPoint
from penstock.plan.job.job import Job
from penstock.plan.step import operators

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
GROWTH = {"attention_s": (2.0, 1.0), "matmul_s": (1.0, 1.0, 1.0)}  # beyond the largest reading


@dataclass(frozen=True)
class ProbedPiece:
    """A piece of work: `count` times what the probe timed as `reading`, at `sizes`."""

    part: str
    reading: str
    sizes: tuple[float, ...]
    count: float = 1.0


@dataclass(frozen=True)
class ProbedMatmul:
    """A product in the forward pass; the backward pass has two of the same work."""

    rows: float
    inner: float
    columns: float
    count: float = 1.0

    def pieces(self, times: float) -> Iterator[ProbedPiece]:
        a, b, c = self.rows, self.inner, self.columns
        for sizes in ((a, b, c), (a, c, b), (c, a, b)):
            yield ProbedPiece("matmul", "matmul_s", sizes, times * self.count)


def is_probed(machine: Machine) -> bool:
    return bool(machine.curves)


def step_compute_s(job: Job) -> dict[str, float]:
    """Return the seconds of one rank in one optimizer step, by part, without exchanges.

    Parts: matmul, attention, elementwise, loss, shard (the copies of FSDP2), optimizer, memory
    (pages found anew, CPU only) and overhead (asking for operations, where nothing hides it).
    """
    read = _Readings(job.machine, job.precision)
    passes, update = job.microbatches, _parameters(job) / job.layout.shard
    again = RECOMPUTED if job.layout.recompute == "full" else 0.0
    parts: dict[str, float] = {}
    host = passes * (job.shape.layers / job.layout.pipeline + 1) * SMALL_OPS * read.call_s
    for piece in (*_pass(job), ProbedPiece("optimizer", "update_s", (update,), 1 / passes)):
        layer = piece.part in ("matmul", "attention", "elementwise")
        times = passes * piece.count * (1 + again if layer else 1)
        parts[piece.part] = parts.get(piece.part, 0.0) + times * read.device_s(piece)
        host += times * read.host_s(piece)
    parts["memory"] = passes * _fresh_s(job, read)
    hidden = sum(parts.values()) if job.machine.kind == "cuda" else 0.0
    return parts | {"overhead": max(0.0, host - hidden)}


def all_reduce_s(machine: Machine, size_bytes: float, ways: int) -> float:
    """Return the seconds to sum `size_bytes` over `ways` ranks, from the readings by message size.

    A ring over more or fewer ranks than were probed sends 2 (n − 1) / n of the bytes.
    """
    points = machine.curves.get("all_reduce_s")
    if ways < 2 or not points:
        return 0.0
    probed = max(2.0, machine.probed.get("ranks", 2.0))
    ring = ((ways - 1) / ways) / ((probed - 1) / probed)
    return grid(points, (1.0,)).seconds(max(1.0, size_bytes)) * ring


def exchange_s(job: Job) -> float:
    """Predict the time of the exchange between replicas: gradients are copied into one buffer,
    summed, and the step is voted on.
    """
    ways = job.replicas_together
    if ways < 2:
        return 0.0
    count = _parameters(job) / job.layout.shard
    bucket = min(4 * count, BUCKET_BYTES)
    copied = add_s(job.machine, count)
    if bucket > LARGEST_KEPT_BYTES:
        copied += _Readings(job.machine, "fp32").fresh_s(4 * count, 0.0)
    sent = job.software.replica_bytes or 4.0
    g = network.group(job.machine, ways, job.layout.ranks // job.layout.replicate)
    if network.leaves_node(g):
        return copied + network.all_reduce_s(g, sent * count) + network.all_reduce_s(g, 64)
    vote = all_reduce_s(job.machine, 64, ways)
    times = 4 * count / bucket
    return copied + times * all_reduce_s(job.machine, bucket * sent / 4, ways) + vote


def add_s(machine: Machine, count: float) -> float:
    """Return the seconds to add two vectors in fp32, which moves 12 bytes for each element."""
    if is_probed(machine):
        return _Readings(machine, "fp32").device_s(ProbedPiece("", "add_s", (count,)))
    return 12 * count / machine.memory_bytes_per_s


def _pass(job: Job) -> Iterator[ProbedPiece]:
    """Yield one microbatch, forward and backward, on one rank."""
    shape, layout = job.shape, job.layout
    layers, last = shape.layers / layout.pipeline, 1.0 / layout.pipeline  # a stage's share
    rows = job.rank_tokens
    stream, columns = rows * shape.hidden, shape.vocab / layout.tensor
    for line in _linears(job):
        yield from line.pieces(layers)
    yield from ProbedMatmul(rows, shape.hidden, columns).pieces(last)
    heads = shape.heads / layout.tensor
    seen = shape.attended_tokens(job.sequence) / job.sequence
    each = layers * heads * layout.microbatch * job.rows / layout.context * seen
    qk, v = operators.attention_widths(shape)
    yield ProbedPiece("attention", "attention_s", (job.sequence, (qk + v) / 2 / shape.heads), each)
    yield ProbedPiece("elementwise", "norm_s", (stream,), shape.block_norms * layers + last)
    yield ProbedPiece("elementwise", "add_s", (stream,), ADDS * layers)
    turned = shape.rope_dim or shape.head_width
    for count in (heads, 1 if shape.kv_rank else shape.kv_heads / layout.tensor):
        yield ProbedPiece("elementwise", "rotary_s", (rows * count * turned,), layers)
    inner = sum(line.rows * line.columns * line.count for line in _gates(job))
    yield ProbedPiece("elementwise", "gate_s", (inner,), layers)
    looked_up = 2 * stream + shape.embedding_params() / layout.tensor
    yield ProbedPiece("elementwise", "add_s", (looked_up,), last)
    yield ProbedPiece("loss", "loss_s", (rows * columns,), last)
    root = _root_parameters(job)
    unit = (shape.params() - root) / shape.layers / layout.tensor
    yield ProbedPiece("shard", "shard_s", (unit,), layers)
    yield ProbedPiece("shard", "shard_s", (root / layout.tensor,), last)


def _gates(job: Job) -> Iterator[ProbedMatmul]:
    """Yield the products that open the feed-forward part of one layer, by expert where it has
    some.
    """
    shape, rows, ways = job.shape, job.rank_tokens, job.layout.tensor
    if shape.moe:
        visits = rows * shape.experts_active / shape.experts
        yield ProbedMatmul(visits, shape.hidden, shape.expert_ffn / ways, shape.experts)
        if shape.shared_experts:
            yield ProbedMatmul(rows, shape.hidden, shape.shared_experts * shape.expert_ffn / ways)
    else:
        yield ProbedMatmul(rows, shape.hidden, shape.ffn / ways)


def _linears(job: Job) -> Iterator[ProbedMatmul]:
    """Yield the products of one layer."""
    shape, rows, ways = job.shape, job.rank_tokens, job.layout.tensor
    if shape.kv_rank:
        for inputs, outputs in operators.attention_products(shape, ways):
            yield ProbedMatmul(rows, inputs, outputs)
    else:
        q, kv = shape.heads * shape.head_width / ways, shape.kv_heads * shape.head_width / ways
        yield ProbedMatmul(rows, shape.hidden, q)
        yield ProbedMatmul(rows, shape.hidden, kv, 2)
        yield ProbedMatmul(rows, q, shape.hidden)
    for opening in _gates(job):
        yield ProbedMatmul(opening.rows, opening.inner, opening.columns, 2 * opening.count)
        yield ProbedMatmul(opening.rows, opening.columns, opening.inner, opening.count)


def _parameters(job: Job) -> float:
    """Return the parameters that one rank works with before sharding."""
    return job.shape.params() / (job.layout.tensor * job.layout.pipeline)


def _root_parameters(job: Job) -> float:
    """Return the parameters of embedding, head and the last norm."""
    shape = job.shape
    return shape.embedding_params() * (1 if shape.tied else 2) + shape.hidden


def _fresh_s(job: Job, read: "_Readings") -> float:
    """Predict the time of the pages for logits, the large tensors of a pass; the last stage has
    them.
    """
    logits = job.rank_tokens * job.shape.vocab / job.layout.tensor / job.layout.pipeline
    return read.fresh_s(LOGIT_BYTES * logits, 4 * max(logits, _parameters(job)))


class _Readings:
    """The curves of one precision."""

    def __init__(self, machine: Machine, precision: str) -> None:
        if not is_probed(machine):
            raise PenstockError(f"{machine.name}: not probed; run `penstock probe` on it")
        self.machine, self.precision = machine, precision
        # Narrow precisions change products only; what lies between them stays in bf16.
        # A CPU on which bf16 is slow has only its products read; the rest is taken to be as fp32.
        narrow = "add_s.bf16" in machine.curves
        self.wide = "fp32" if precision in ("fp32", "tf32") or not narrow else "bf16"
        # Views launch nothing, and launching is most of what the reading says on CUDA.
        launched = 5.0 if machine.kind == "cuda" else 1.0
        self.call_s = machine.probed.get("op_s", 0.0) / launched

    def device_s(self, piece: ProbedPiece) -> float:
        """Return the seconds of one piece on the device; on a CPU that is all there is."""
        curve = self._grid(piece.reading)
        sizes = tuple(max(1.0, size) for size in piece.sizes)
        seconds = curve.seconds(*sizes)
        if self.machine.kind != "cuda":
            return seconds
        bound = math.sqrt(max(0.0, seconds**2 - curve.least**2))
        return max(bound, curve.at_best(*sizes))

    def host_s(self, piece: ProbedPiece) -> float:
        """Return the seconds to issue one piece; 0 on a CPU, where it is part of the reading."""
        if self.machine.kind != "cuda":
            return 0.0
        if piece.reading == "attention_s":  # read by the head, asked for once a layer: nothing
            return 0.0
        return self._grid(piece.reading).least

    def fresh_s(self, alive_bytes: float, largest_bytes: float) -> float:
        """Return the seconds to find memory again that a CPU's allocator gave back after the last
        pass.

        Only the few large tensors at the end of a pass are given back: smaller ones are kept.
        """
        rate = self.machine.probed.get("fresh_bytes_per_s")
        kept = 2 * min(LARGEST_KEPT_BYTES, largest_bytes)
        return max(0.0, alive_bytes - kept) / rate if rate else 0.0

    def _grid(self, name: str) -> Grid:
        points = self._products() if name == "matmul_s" else self._curve(name)
        if not points:
            raise PenstockError(
                f"{self.machine.name}: its probe has no reading `{name}` in {self.wide}; "
                "run `penstock probe` again"
            )
        return grid(points, GROWTH.get(name, (1.0,)))

    def _products(self) -> tuple[tuple[float, ...], ...]:
        matmuls = self.machine.matmuls
        return _as_points(matmuls.get(self.precision) or matmuls.get(self.wide) or ())

    def _curve(self, name: str) -> tuple[tuple[float, ...], ...]:
        curves = self.machine.curves
        return curves.get(f"{name}.{self.wide}") or curves.get(name) or ()


@lru_cache(maxsize=64)
def _as_points(matmuls: tuple[MatmulPoint, ...]) -> tuple[tuple[float, ...], ...]:
    return tuple((p.m, p.k, p.n, 2.0 * p.m * p.k * p.n / p.flops) for p in matmuls)
