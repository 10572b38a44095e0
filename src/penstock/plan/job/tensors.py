"""The trained tensors of one rank, in the order of the decoder's parameters.

A message between replicas has as many bytes as the sizes of these tensors say, each of them padded
to whole blocks. The first rank of a replica is meant: FSDP2 shards by rows, and the first shard is
never smaller than the others.
"""

from collections.abc import Iterator
from functools import lru_cache

from penstock.catalog.shapes import ModelShape
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.job.partition import (
    Matrix,
    adapter_layer_params,
    attention_matrices,
    feed_forward_matrices,
    rank_params,
    shard_ways,
    stage_layers,
    stage_pieces,
)


def rank_tensors(job: Job) -> tuple[int, ...]:
    """Return the elements of each tensor that the first rank of a replica trains."""
    if job.adapter or job.shape.generic:
        return (round(_held(job)),)
    return _decoder_tensors(job.shape, job.layout)


def _held(job: Job) -> float:
    """Return the parameters of a rank where their tensors are not known one by one."""
    ways = shard_ways(job.layout)[0]
    if job.adapter:
        return adapter_params(job, 0) / ways
    return sum(rank_params(job.shape, job.layout, 0)[:2]) / ways


def adapter_params(job: Job, stage: int) -> float:
    """Count the adapter's parameters beside the layers of a stage, on one tensor rank."""
    lay, adapter = job.layout, job.adapter
    assert adapter
    counts = stage_layers(job.shape, lay.pipeline, lay.interleave)[stage]
    return sum(
        count * adapter_layer_params(job.shape, lay.tensor, adapter.rank, adapter.targets, sparse)
        for sparse, count in ((False, counts.dense), (True, counts.sparse))
        if count
    )


@lru_cache(maxsize=256)
def _decoder_tensors(shape: ModelShape, lay: Layout) -> tuple[int, ...]:
    shards, routed_shards = shard_ways(lay)
    found: list[int] = []

    def keep(rows: int, columns: int = 1, ways: int = 1) -> None:
        """Keep a tensor of which this rank has one in `ways`, by rows."""
        found.append(-(-rows // ways) * columns)

    def cut(matrix: Matrix) -> None:
        ways = matrix.ways(lay.tensor)
        by_rows = matrix.cut == "outputs"
        keep(
            matrix.outputs // ways if by_rows else matrix.outputs,
            matrix.inputs if by_rows else matrix.inputs // ways,
            shards,
        )

    pieces = [n for piece in stage_pieces(shape.layers, lay.pipeline, lay.interleave, 0)
              for n in piece]  # fmt: skip
    table = shape.embedding_params() // shape.hidden // lay.tensor
    keep(table, shape.hidden, shards)
    for layer in pieces:
        sparse = shape.moe and layer >= shape.dense_layers
        vectors, matrices = _attention(shape, lay)
        for width in vectors:
            keep(width, 1, shards)
        for matrix in matrices:
            cut(matrix)
        for matrix in feed_forward_matrices(
            shape, shape.shared_experts * shape.expert_ffn if sparse else shape.ffn
        ):
            cut(matrix)
        if sparse:
            keep(shape.experts, shape.hidden, shards)
            keep(shape.expert_bias_params(0), 1, shards)
            held = shape.experts // (lay.expert * lay.expert_tensor)
            for matrix in feed_forward_matrices(shape, shape.expert_ffn):
                keep(held, matrix.params, routed_shards)
            for width in _expert_vectors(shape):
                keep(held, width, routed_shards)
    if lay.pipeline == 1:
        keep(shape.hidden, 1, shards)
        if not shape.tied:
            keep(table, shape.hidden, shards)
    return tuple(count for count in found if count)


def _attention(shape: ModelShape, lay: Layout) -> tuple[list[int], tuple[Matrix, ...]]:
    """Return the vectors of a layer and the matrices of its attention."""
    vectors = [shape.hidden] * shape.block_norms
    if shape.kv_rank:
        vectors += [width for width in (shape.q_rank, shape.kv_rank) if width]
    else:
        vectors += list(_head_vectors(shape, lay))
    return vectors, attention_matrices(shape)


def _head_vectors(shape: ModelShape, lay: Layout) -> Iterator[int]:
    if shape.qk_norm_params():
        heads = (shape.heads, shape.kv_heads) if shape.qk_norm_whole else (1, 1)
        yield from (count * shape.head_width for count in heads)
    if shape.attention_bias:
        for matrix in attention_matrices(shape)[:3]:
            yield matrix.outputs // matrix.ways(lay.tensor)
    if shape.out_bias:
        yield shape.hidden
    if shape.sinks:
        yield shape.heads // lay.tensor


def _expert_vectors(shape: ModelShape) -> Iterator[int]:
    """Yield the widths of the biases of one expert."""
    if shape.expert_bias:
        yield from (shape.expert_ffn, shape.expert_ffn, shape.hidden)
