"""The trained tensors of one rank, in the order of the decoder's parameters.

A message between replicas has as many bytes as the sizes of these tensors say, each of them padded
to whole blocks. The first rank of a replica is meant: FSDP2 shards by rows, and the first shard is
never smaller than the others.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

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


def published_tensors(job: Job) -> tuple[int, ...]:
    """Return the elements of each tensor in what a rank gives to the other replicas: its own part
    of the model, or the whole model where it publishes for all ranks of a site.
    """
    return rank_tensors(replace(job, layout=Layout()) if job.sync.sites else job)


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


class Tensor(NamedTuple):
    """A tensor of one tensor-parallel rank. Shards have rows of it."""

    rows: int
    columns: int = 1
    routed: bool = False  # of the routed experts


@lru_cache(maxsize=256)
def _decoder_tensors(shape: ModelShape, lay: Layout) -> tuple[int, ...]:
    shards, routed_shards = shard_ways(lay)
    return tuple(
        -(-one.rows // (routed_shards if one.routed else shards)) * one.columns
        for one in _decoder(shape, lay)
        if one.rows * one.columns
    )


def _decoder(shape: ModelShape, lay: Layout) -> Iterator[Tensor]:
    """Yield the parameters of the first stage, in the order of `model/decoder.py`."""
    table = Tensor(shape.vocab // lay.tensor, shape.hidden)
    yield table
    for piece in stage_pieces(shape.layers, lay.pipeline, lay.interleave, 0):
        for layer in piece:
            yield from _layer(shape, lay, sparse=shape.moe and layer >= shape.dense_layers)
    if lay.pipeline == 1:
        yield Tensor(shape.hidden)
        if not shape.tied:
            yield table


def _layer(shape: ModelShape, lay: Layout, sparse: bool) -> Iterator[Tensor]:
    norm = Tensor(shape.hidden)
    before, after = shape.norms in ("before", "both"), shape.norms in ("after", "both")
    yield from [norm] * before
    yield from _attention(shape, lay)
    yield from [norm] * (after + before)
    if sparse:
        yield from _experts(shape, lay)
    else:
        yield from (_cut(m, lay) for m in feed_forward_matrices(shape, shape.ffn))
    yield from [norm] * after


def _attention(shape: ModelShape, lay: Layout) -> Iterator[Tensor]:
    yield Tensor(shape.heads // lay.tensor if shape.sinks else 0)
    for matrix in attention_matrices(shape):
        yield _cut(matrix, lay)
        if matrix.name == "q_down":
            yield Tensor(shape.q_rank)
        elif matrix.name == "kv_down":
            yield Tensor(shape.kv_rank)
        elif shape.out_bias if matrix.name == "out" else shape.attention_bias:
            cut = matrix.ways(lay.tensor) if matrix.cut == "outputs" else 1
            yield Tensor(matrix.outputs // cut)
    if shape.qk_norm_params():
        heads = (shape.heads, shape.kv_heads) if shape.qk_norm_whole else (1, 1)
        yield from (Tensor(count * shape.head_width) for count in heads)


def _experts(shape: ModelShape, lay: Layout) -> Iterator[Tensor]:
    yield Tensor(shape.experts, shape.hidden)
    yield Tensor(shape.expert_bias_params(0))
    held = shape.experts // (lay.expert * lay.expert_tensor)
    for matrix in feed_forward_matrices(shape, shape.expert_ffn):
        yield Tensor(held, matrix.params, routed=True)
    if shape.expert_bias:
        for width in (shape.expert_ffn, shape.expert_ffn, shape.hidden):
            yield Tensor(held, width, routed=True)
    shared = feed_forward_matrices(shape, shape.shared_experts * shape.expert_ffn)
    yield from (_cut(matrix, lay) for matrix in shared)


def _cut(matrix: Matrix, lay: Layout) -> Tensor:
    """Return a rank's part of a matrix; linear layers have a row for each output."""
    ways = matrix.ways(lay.tensor)
    if matrix.cut == "outputs":
        return Tensor(matrix.outputs // ways, matrix.inputs)
    return Tensor(matrix.outputs, matrix.inputs // ways)
