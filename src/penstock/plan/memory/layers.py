"""The tensors that one layer keeps for the backward pass, in bytes per token.

After Korthikanti et al. (arXiv 2205.05198), extended to gated and latent attention blocks, routed
experts, attention that never stores scores, frozen weights, and to what eager torch keeps beside
what fused kernels keep. Nothing here is fitted.
"""

from functools import lru_cache
from typing import NamedTuple

from penstock.catalog.shapes import ModelShape
from penstock.plan.job.job import Job

WIDTH = {"fp32": 4, "tf32": 4, "fp64": 8}  # bytes of an activation; 2 for all other precisions
FP32 = 4


class SavedBytes(NamedTuple):
    """Bytes per token, by how tensor parallelism divides them."""

    stream: float  # between the parallel parts: divided only with sequence parallelism
    inner: float  # inside attention and feed-forward: always divided
    routed_stream: float = 0.0  # the copies of a token that go to experts
    routed_inner: float = 0.0  # inside the experts

    def plus(self, other: "SavedBytes") -> "SavedBytes":
        return SavedBytes(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: "SavedBytes") -> "SavedBytes":
        return SavedBytes(*(max(0.0, a - b) for a, b in zip(self, other, strict=True)))


class LayerTraits(NamedTuple):
    """The properties of a job that decide which tensors a layer keeps."""

    width: int
    fused: bool
    torch_layers: bool
    flash: bool
    dropout: bool
    frozen_bits: int  # 0: all weights are trained
    torch_checkpoints: bool
    keys: float  # tokens each query meets when scores are stored
    lean: bool = False  # norms' outputs and the gated product are made again
    inplace_gates: bool = False  # gradients of a gated part are written over what they need


class LayerKinds(NamedTuple):
    """A dense layer and a layer with experts."""

    dense: SavedBytes
    sparse: SavedBytes


def traits(job: Job) -> LayerTraits:
    soft = job.software
    return LayerTraits(
        width=WIDTH.get(job.precision, 2),
        fused=soft.fused,
        torch_layers=soft.torch_layers,
        flash=soft.flash,
        dropout=soft.dropout,
        frozen_bits=job.adapter.bits if job.adapter else 0,
        torch_checkpoints=soft.torch_checkpoints,
        keys=float(job.sequence),
        lean=soft.lean,
        inplace_gates=soft.inplace_gates,
    )


@lru_cache(maxsize=4096)
def saved(shape: ModelShape, how: LayerTraits, recompute: str) -> LayerKinds:
    """Count the tensors of one layer that stay until its backward pass."""
    if recompute == "full":
        entry = SavedBytes(how.width * shape.hidden, 0.0)
        return LayerKinds(entry, entry)
    if recompute == "selective" and how.torch_checkpoints:
        return LayerKinds(_matmuls(shape, how, shape.ffn), _matmuls(shape, how, 0, experts=True))
    keep_scores = recompute == "none"
    common = _norms(shape, how).plus(_attention(shape, how, keep_scores))
    return LayerKinds(
        common.plus(_feed_forward(shape, how, shape.ffn)), common.plus(_experts(shape, how))
    )


@lru_cache(maxsize=4096)
def working(shape: ModelShape, how: LayerTraits) -> LayerKinds:
    """Count the gradients alive at once while one layer goes backward, beyond the saved tensors
    they replace.

    In a gated part: those of the product, the gate and what is gated, when the product is gone.
    """
    w, h = how.width, shape.hidden
    widths = 2 if shape.gated and not how.inplace_gates else 1
    attention = w * (_queries(shape) + 2 * _values(shape))
    dense = SavedBytes(w * h, max(attention, w * widths * shape.ffn))
    k = shape.experts_active
    shared = w * widths * shape.shared_experts * shape.expert_ffn
    sparse = SavedBytes(
        w * h, max(attention, shared), k * w * h * 2.0, k * w * widths * shape.expert_ffn
    )
    return LayerKinds(dense, sparse if shape.moe else dense)


def _norms(shape: ModelShape, how: LayerTraits) -> SavedBytes:
    """Count a layer's norms: their saved inputs, and their outputs where a matmul needs them."""
    w, h = how.width, shape.hidden
    kept = w * h
    if not (how.fused or how.torch_layers):  # written by hand: an fp32 copy of the input,
        kept = FP32 * h
        if not how.frozen_bits:  # and the normalized input, for the norm's own weight
            kept += w * h
    # A frozen 16-bit matmul needs no input; an adapter beside the attention does.
    outputs = 0 if how.lean else 1 if how.frozen_bits == 16 else 2
    masks = 2 * h if how.dropout else 0
    return SavedBytes(shape.block_norms * kept + outputs * w * h + masks, 0.0)


def _queries(shape: ModelShape) -> float:
    """Return the elements of all queries of a token."""
    wide = shape.rope_dim + shape.nope_dim if shape.kv_rank else shape.head_width
    return shape.heads * wide


def _values(shape: ModelShape) -> float:
    if shape.kv_rank:
        return shape.heads * shape.v_dim
    return shape.kv_heads * shape.head_width


def _attention(shape: ModelShape, how: LayerTraits, keep_scores: bool) -> SavedBytes:
    w = how.width
    q, v = _queries(shape), _values(shape)
    if shape.kv_rank:
        # Compressed queries and keys and their norms; then queries and keys joined with their
        # rotary parts, values as a view into all of what the key up-projection made, the output.
        ranks = 2 * (shape.q_rank + shape.kv_rank) + shape.rope_dim
        stream = float(w * ranks)
        inner = w * (2.0 * q + shape.heads * (shape.nope_dim + shape.v_dim) + v)
    else:
        stream = 0.0
        inner = w * (q + 2 * v + q)  # and the output
        if shape.gated and not how.torch_layers:
            # A joined projection lives on through the view that is the values, beside the new
            # queries and keys that rotary positions make (older blocks have learned positions);
            # keys and values copied to as many heads as queries come to about the same.
            inner += w * (q + v)
        if shape.qk_norm:  # queries and keys before their norm
            inner += w * (q + v)
    if how.flash:
        inner += FP32 * shape.heads  # log-sum-exp of each row
    elif keep_scores:
        per_score = 2 * w + 1 if how.dropout else w
        inner += per_score * shape.heads * how.keys
    return SavedBytes(stream, inner)


def _widths(shape: ModelShape, how: LayerTraits) -> int:
    """Return how many tensors of the inner width a feed-forward part keeps."""
    if not shape.gated:
        return 1 if how.frozen_bits == 16 else 2
    if how.lean:
        return 2
    kept = 3 if how.fused else 4  # gate, up, their product; eager torch also the activated gate
    return kept - (how.frozen_bits == 16)


def _feed_forward(shape: ModelShape, how: LayerTraits, inner: int) -> SavedBytes:
    return SavedBytes(0.0, how.width * _widths(shape, how) * inner)


def _experts(shape: ModelShape, how: LayerTraits) -> SavedBytes:
    if not shape.moe:
        return _feed_forward(shape, how, shape.ffn)
    k, w = shape.experts_active, how.width
    shared = _feed_forward(shape, how, shape.shared_experts * shape.expert_ffn)
    return SavedBytes(
        stream=2 * FP32 * shape.experts,  # router logits and probabilities
        inner=shared.inner,
        routed_stream=k * w * shape.hidden,
        routed_inner=k * w * _widths(shape, how) * shape.expert_ffn,
    )


def _matmuls(shape: ModelShape, how: LayerTraits, inner: int, experts: bool = False) -> SavedBytes:
    """Count what PyTorch's selective checkpointing keeps: attention's output and every other
    matmul's.
    """
    w, h = how.width, shape.hidden
    q, v = _queries(shape), _values(shape)
    wide = 2 if shape.gated else 1
    stream = w * h + w * h  # the layer's input, and half of its two projections back
    kept = w * q + w * (q + 2 * v) / 2
    if not experts:
        return SavedBytes(stream, kept + w * wide * inner / 2)
    k = shape.experts_active if shape.moe else 0
    kept += w * wide * shape.shared_experts * shape.expert_ffn / 2
    return SavedBytes(stream, kept, k * w * h / 2, k * w * wide * shape.expert_ffn / 2)
