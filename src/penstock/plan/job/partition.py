"""The partition of a model over ranks: which layers, parameters and bytes each of them holds.

The trainer builds its pipeline stages with `stage_pieces`, and the models of time and of memory
count with the rest of this file, so that a plan is about the run that will be trained. Published
runs of other programs are counted by the same rules.

Tensor parallel cuts q, k, v, gate, up and the tables by outputs, and out and down by inputs. Norms,
routers and the down-projections of latent attention are whole on every rank. Where there are more
tensor ranks than key heads (other programs allow it), keys and values are copied.
"""

from functools import lru_cache
from typing import NamedTuple

from penstock.catalog.shapes import ModelShape
from penstock.model.nf4_format import matrix_bytes as nf4_bytes
from penstock.plan.job.layout import Layout


def split_layers(layers: int, pieces: int) -> tuple[range, ...]:
    """Split the layers of a model into pieces that are as even as possible.

    Where the number does not divide, pieces in the middle get one layer more: the last piece also
    has the head and never gets more, the first has the embedding and gets more only if all others
    but the last did.
    """
    least, remainder = divmod(layers, pieces)
    longer = set([*range(1, pieces - 1), 0][:remainder])
    ranges, start = [], 0
    for piece in range(pieces):
        stop = start + least + (piece in longer)
        ranges.append(range(start, stop))
        start = stop
    return tuple(ranges)


def stage_pieces(layers: int, pipeline: int, interleave: int, stage: int) -> tuple[range, ...]:
    """Return the layers of a pipeline stage: one piece, or with interleaving several.

    Pieces go to stages in turn.
    """
    return split_layers(layers, pipeline * interleave)[stage::pipeline]


class StageLayers(NamedTuple):
    """Numbers of layers of one pipeline stage."""

    dense: int
    sparse: int  # layers with experts


@lru_cache(maxsize=4096)
def stage_layers(shape: ModelShape, pipeline: int, interleave: int) -> tuple[StageLayers, ...]:
    """Count the layers of every stage."""
    pieces = split_layers(shape.layers, pipeline * interleave)
    dense_to = shape.dense_layers if shape.moe else shape.layers
    counts = []
    for stage in range(pipeline):
        held = pieces[stage::pipeline]
        dense = sum(max(0, min(piece.stop, dense_to) - piece.start) for piece in held)
        counts.append(StageLayers(dense, sum(map(len, held)) - dense))
    return tuple(counts)


class StageContents(NamedTuple):
    """Everything of the model that one pipeline stage holds."""

    dense: int  # layers
    sparse: int  # layers with experts
    tables: int  # embedding tables: the input's, the head's, and one for predicting ahead
    last: bool  # with the last norm and the loss


@lru_cache(maxsize=65536)
def stage_contents(
    shape: ModelShape, pipeline: int, interleave: int, stage: int, ahead_layers: int = 0
) -> StageContents:
    """Return what a stage holds.

    `ahead_layers` predict further tokens (multi-token prediction of other programs): they stand on
    the last stage and need the input table there. A tied head is a copy of the input table.
    """
    dense, sparse = stage_layers(shape, pipeline, interleave)[stage]
    last = stage == pipeline - 1
    if last and shape.moe:
        sparse += ahead_layers
    elif last:
        dense += ahead_layers
    if pipeline == 1:
        tables = 1 if shape.tied else 2
    else:
        tables = (stage == 0) + last + (last and ahead_layers > 0)
    return StageContents(dense, sparse, tables, last)


class Matrix(NamedTuple):
    """One matrix of a layer, and how tensor parallel cuts it."""

    name: str  # as in the trainer, without the block it stands in
    inputs: int
    outputs: int
    cut: str = ""  # "outputs" or "inputs"; "": whole on every rank
    heads: int = 0  # key heads, which are not cut further; 0: any number of ways

    @property
    def params(self) -> int:
        return self.inputs * self.outputs

    def ways(self, tensor: int) -> int:
        """Return the number of tensor-parallel ranks that share the matrix."""
        if not self.cut:
            return 1
        return min(tensor, self.heads) if self.heads else tensor


@lru_cache(maxsize=1024)
def attention_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices of one layer's attention, ordinary or latent."""
    h, n = shape.hidden, shape.heads
    if not shape.kv_rank:
        q, kv = n * shape.head_width, shape.kv_heads * shape.head_width
        return (
            Matrix("q", h, q, "outputs"),
            Matrix("k", h, kv, "outputs", shape.kv_heads),
            Matrix("v", h, kv, "outputs", shape.kv_heads),
            Matrix("out", q, h, "inputs"),
        )
    wide = n * (shape.rope_dim + shape.nope_dim)
    query: tuple[Matrix, ...] = (Matrix("q", h, wide, "outputs"),)
    if shape.q_rank:
        query = (Matrix("q_down", h, shape.q_rank), Matrix("q", shape.q_rank, wide, "outputs"))
    return (
        *query,
        Matrix("kv_down", h, shape.kv_rank + shape.rope_dim),
        Matrix("kv", shape.kv_rank, n * (shape.nope_dim + shape.v_dim), "outputs"),
        Matrix("out", n * shape.v_dim, h, "inputs"),
    )


@lru_cache(maxsize=1024)
def feed_forward_matrices(shape: ModelShape, inner: int) -> tuple[Matrix, ...]:
    """Return the matrices of a feed-forward part, or of one expert, of this inner width."""
    gate = (Matrix("gate", shape.hidden, inner, "outputs"),) if shape.gated else ()
    up, down = (
        Matrix("up", shape.hidden, inner, "outputs"),
        Matrix("down", inner, shape.hidden, "inputs"),
    )
    return (*gate, up, down) if inner else ()


def layer_matrices(shape: ModelShape, sparse: bool) -> tuple[Matrix, ...]:
    """Return the matrices of a layer that all its tokens pass, without the router."""
    inner = shape.shared_experts * shape.expert_ffn if sparse else shape.ffn
    return (*attention_matrices(shape), *feed_forward_matrices(shape, inner))


def _vector_params(shape: ModelShape, tensor: int) -> float:
    """Count the norms and biases of one layer on one tensor rank."""
    norms: float = shape.block_norms * shape.hidden + shape.q_rank + shape.kv_rank
    if shape.kv_rank:
        return norms
    norms += shape.qk_norm_params() + (shape.hidden if shape.out_bias else 0)
    norms += shape.heads / tensor if shape.sinks else 0
    if not shape.attention_bias:
        return norms
    return norms + sum(m.outputs / m.ways(tensor) for m in attention_matrices(shape)[:3])


class LayerParams(NamedTuple):
    """Parameters of one layer on one tensor rank."""

    attention: float  # with the layer's norms
    dense: float  # the feed-forward part of a dense layer
    shared: float  # router and shared experts of a layer with experts
    routed: float  # all routed experts, not divided


@lru_cache(maxsize=4096)
def layer_params(shape: ModelShape, tensor: int) -> LayerParams:
    """Count the parameters of a layer on one of `tensor` ranks."""

    def held(matrices: tuple[Matrix, ...]) -> float:
        return sum(matrix.params / matrix.ways(tensor) for matrix in matrices)

    expert = sum(matrix.params for matrix in feed_forward_matrices(shape, shape.expert_ffn))
    shared = feed_forward_matrices(shape, shape.shared_experts * shape.expert_ffn)
    return LayerParams(
        attention=held(attention_matrices(shape)) + _vector_params(shape, tensor),
        dense=held(feed_forward_matrices(shape, shape.ffn)),
        shared=held(shared) + shape.hidden * shape.experts + shape.expert_bias_params(0),
        routed=float(expert * shape.experts + _routed_biases(shape)),
    )


def _routed_biases(shape: ModelShape) -> int:
    """Count the biases of all routed experts of a layer, without the router's."""
    return shape.expert_bias_params(shape.experts) - shape.expert_bias_params(0)


class RankParams(NamedTuple):
    """Parameters of one rank, before they are sharded over data ranks."""

    common: float  # all but the routed experts
    routed: float
    tables: float = 0.0  # part of `common`: input embedding and head


def rank_layer_params(shape: ModelShape, layout: Layout, sparse: bool) -> RankParams:
    """Count the parameters of one layer on one rank."""
    layer = layer_params(shape, layout.tensor)
    if not sparse:
        return RankParams(layer.attention + layer.dense, 0.0)
    spread = layout.expert * layout.expert_tensor
    return RankParams(layer.attention + layer.shared, layer.routed / spread)


def largest_layer_params(shape: ModelShape, layout: Layout) -> float:
    """Count the parameters that are gathered and reduced at once: the largest layer of a rank."""
    kinds = (False, True) if shape.moe and shape.dense_layers else (shape.moe,)
    return max(sum(rank_layer_params(shape, layout, sparse)[:2]) for sparse in kinds)


def rank_params(shape: ModelShape, layout: Layout, stage: int, ahead_layers: int = 0) -> RankParams:
    """Count the parameters that a rank's tensor, pipeline and expert place gives it."""
    spread = layout.expert * layout.expert_tensor
    return _rank_params(
        shape, layout.tensor, layout.pipeline, layout.interleave, spread, stage, ahead_layers
    )


@lru_cache(maxsize=65536)
def _rank_params(
    shape: ModelShape,
    tensor: int,
    pipeline: int,
    interleave: int,
    spread: int,
    stage: int,
    ahead_layers: int,
) -> RankParams:
    held = stage_contents(shape, pipeline, interleave, stage, ahead_layers)
    layout = Layout(tensor=tensor, expert=spread)
    dense, sparse = (rank_layer_params(shape, layout, kind) for kind in (False, True))
    tables = held.tables * shape.embedding_params() / tensor
    common = held.dense * dense.common + held.sparse * sparse.common + tables
    if held.last:
        common += shape.hidden  # the last norm
    return RankParams(common, held.sparse * sparse.routed, tables)


def shard_ways(layout: Layout) -> tuple[int, int]:
    """Return over how many ranks the state of common and of routed parameters is divided."""
    if layout.zero == 0:
        return 1, 1
    common = layout.shard * layout.context
    spread = layout.expert * layout.expert_tensor
    return common, max(1, common * layout.tensor // spread)


class FrozenBytes(NamedTuple):
    """Bytes of one frozen layer on one tensor rank."""

    dense: float  # a dense layer
    sparse: float  # a layer with experts, without the routed ones
    routed: float  # all routed experts, not divided


def wide_bytes(bits: int) -> float:
    """Return the bytes of a frozen parameter of a table or a norm: never less than 16 bits."""
    return max(16, bits) / 8


@lru_cache(maxsize=4096)
def frozen_layer_bytes(shape: ModelShape, tensor: int, bits: int) -> FrozenBytes:
    """Count the bytes of a layer whose weights are frozen; 4 bits are stored as NF4.

    Our trainer refuses 4-bit routed experts; they are counted for other programs.
    """

    def held(matrices: tuple[Matrix, ...]) -> float:
        return sum(frozen_bytes(m, bits) / m.ways(tensor) for m in matrices)

    vectors = _vector_params(shape, tensor) * wide_bytes(bits)
    router = (shape.hidden * shape.experts + shape.expert_bias_params(0)) * wide_bytes(bits)
    expert = sum(frozen_bytes(m, bits) for m in feed_forward_matrices(shape, shape.expert_ffn))
    return FrozenBytes(
        dense=held(layer_matrices(shape, sparse=False)) + vectors,
        sparse=held(layer_matrices(shape, sparse=True)) + vectors + router,
        routed=expert * shape.experts + _routed_biases(shape) * wide_bytes(bits),
    )


def frozen_bytes(matrix: Matrix, bits: int) -> float:
    """Return the bytes of one whole matrix of a layer."""
    if bits == 4:
        return nf4_bytes(matrix.outputs, matrix.inputs)
    return matrix.params * bits / 8


def frozen_model_bytes(shape: ModelShape, bits: int) -> float:
    """Count the bytes of a whole frozen model."""
    layer = frozen_layer_bytes(shape, 1, bits)
    dense, sparse = stage_layers(shape, 1, 1)[0]
    tables = (1 if shape.tied else 2) * shape.embedding_params() + shape.hidden
    layers = dense * layer.dense + sparse * (layer.sparse + layer.routed)
    return layers + tables * wide_bytes(bits)


@lru_cache(maxsize=4096)
def adapter_layer_params(
    shape: ModelShape, tensor: int, rank: int, targets: tuple[str, ...] | None, sparse: bool
) -> float:
    """Count the adapter beside one layer on one tensor rank: a [rank, in] and b [out, rank].

    One of the two is cut as the frozen matrix is, the other is whole. `targets` names the matrices
    that have one; None: all. Routed experts have none.
    """
    total = 0.0
    for matrix in layer_matrices(shape, sparse):
        if targets is None or matrix.name in targets:
            ways = matrix.ways(tensor)
            by_outputs = matrix.cut == "outputs"
            a = matrix.inputs / (1 if by_outputs else ways)
            b = matrix.outputs / (ways if by_outputs else 1)
            total += rank * (a + b)
    return total
