"""The partition of a model: the planner counts what the trainer really builds on each rank."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from penstock.catalog import models
from penstock.catalog.shapes import ModelShape
from penstock.model.adapter.lora import add_adapters, cast_frozen
from penstock.model.initialize import decoder_on_meta
from penstock.model.nf4 import quantize
from penstock.model.nf4_format import matrix_bytes
from penstock.plan.job import own, partition
from penstock.plan.job.job import Adapter
from penstock.plan.job.layout import Layout
from penstock.plan.job.partition import rank_params, split_layers, stage_contents, stage_pieces
from penstock.plan.job.tensors import adapter_params
from penstock.plan.memory.state import state_bytes
from penstock.plan.step.step import slowest_stages
from penstock.run.schema.adapter import AdapterSection
from penstock.train.parallel.materialize import duplicate_weights
from penstock.train.parallel.tensor import CUTS
from planned_jobs import job

DENSE = ModelShape(layers=5, hidden=64, heads=4, kv_heads=2, ffn=96, vocab=128)
SPARSE = replace(
    DENSE, experts=4, experts_active=2, expert_ffn=32, shared_experts=1, dense_layers=2
)


LATENT = replace(
    SPARSE, kv_heads=4, q_rank=24, kv_rank=16, rope_dim=8, nope_dim=12, v_dim=20, rope_pairs=True
)


BIASED = replace(
    SPARSE,
    shared_experts=0,
    dense_layers=0,
    attention_bias=True,
    out_bias=True,
    sinks=True,
    expert_bias=True,
    activation="clamped",
)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[ModelShape, int, int]:
    """A model that the trainer builds, a number of stages and of pieces of a stage."""
    shape = replace(
        draw(st.sampled_from([DENSE, SPARSE, LATENT, replace(LATENT, q_rank=0)])),
        layers=draw(st.integers(1, 17)),
        tied=draw(st.booleans()),
    )
    if not shape.kv_rank:
        shape = replace(shape, qk_norm=draw(st.booleans()), attention_bias=draw(st.booleans()))
    if draw(st.booleans()):
        shape = replace(BIASED, layers=shape.layers, tied=shape.tied)
    elif shape.moe:
        shape = replace(shape, dense_layers=draw(st.integers(0, shape.layers)))
    pipeline = draw(st.integers(1, shape.layers))
    most = shape.layers // pipeline if pipeline > 1 else 1
    return shape, pipeline, draw(st.integers(1, most))


def trained_stages(shape: ModelShape, layout: Layout) -> Iterator[list[nn.Module]]:
    """Build the modules of every stage as the trainer does, without memory."""
    for stage in range(layout.pipeline):
        pieces = stage_pieces(shape.layers, layout.pipeline, layout.interleave, stage)
        yield [decoder_on_meta(shape, layers) for layers in pieces]


def size(modules: list[nn.Module], tensor: int = 1) -> tuple[float, float]:
    """Count the parameters of one tensor rank: all but routed experts, and these."""
    common = routed = 0.0
    for module in modules:
        for name, param in module.named_parameters():
            owner, _, field = name.rpartition(".")
            if ".experts" in name:
                routed += param.numel()
            else:
                cut = CUTS.get(owner.rpartition(".")[2], {}).get(field)
                common += param.numel() / (tensor if cut else 1)
    return common, routed


@settings(max_examples=60, deadline=None)
@given(cuts())
def test_every_stage_holds_in_the_models_what_it_holds_in_the_trainer(
    cut: tuple[ModelShape, int, int],
) -> None:
    shape, pipeline, interleave = cut
    layout = Layout(pipeline=pipeline, interleave=interleave)
    for stage, modules in enumerate(trained_stages(shape, layout)):
        contents = stage_contents(shape, pipeline, interleave, stage)
        layers = [layer for module in modules for layer in module.layers]  # type: ignore[union-attr]
        assert contents.dense + contents.sparse == len(layers)
        assert contents.sparse == sum(shape.moe and int(i) >= shape.dense_layers for i in layers)
        held = rank_params(shape, layout, stage)
        assert (held.common, held.routed) == size(modules)
        assert held.tables == shape.vocab * shape.hidden * contents.tables


@settings(max_examples=60, deadline=None)
@given(cuts())
def test_the_stages_together_hold_the_model_once_and_a_copy_of_a_tied_table(
    cut: tuple[ModelShape, int, int],
) -> None:
    shape, pipeline, interleave = cut
    layout = Layout(pipeline=pipeline, interleave=interleave)
    held = sum(sum(rank_params(shape, layout, stage)[:2]) for stage in range(pipeline))
    copies = sum(len(duplicate_weights(stage, layout, shape)) for stage in range(pipeline))
    assert held == shape.params() + copies * shape.embedding_params()


@pytest.mark.parametrize("shape", [DENSE, SPARSE, LATENT, BIASED])
@pytest.mark.parametrize("tensor", [1, 2])
def test_a_tensor_rank_holds_in_the_models_what_it_holds_in_the_trainer(
    shape: ModelShape, tensor: int
) -> None:
    if not shape.kv_rank:
        shape = replace(shape, qk_norm=True, attention_bias=True)
    layout = Layout(tensor=tensor)
    (modules,) = trained_stages(shape, layout)
    common, routed, _ = rank_params(shape, layout, 0)
    assert (common, routed) == size(modules, tensor)


@settings(max_examples=60, deadline=None)
@given(cuts())
def test_the_slowest_stage_of_the_step_model_is_one_of_the_trainer(
    cut: tuple[ModelShape, int, int],
) -> None:
    shape, pipeline, interleave = cut
    lengths = [
        sum(map(len, stage_pieces(shape.layers, pipeline, interleave, stage)))
        for stage in range(pipeline)
    ]
    kinds = slowest_stages(shape, pipeline, interleave)
    assert max(kind.layers for kind in kinds) == max(lengths)
    assert all(kind.layers == lengths[kind.stage] for kind in kinds)


def test_ten_layers_on_four_stages() -> None:
    counts = partition.stage_layers(replace(DENSE, layers=10), 4, 1)
    assert [dense for dense, _ in counts] == [2, 3, 3, 2]


@given(count=st.integers(1, 12), more=st.integers(0, 60))
def test_pieces_are_even_and_the_ends_are_never_the_longest(count: int, more: int) -> None:
    layers = count + more
    pieces = split_layers(layers, count)
    sizes = [len(piece) for piece in pieces]
    assert [layer for piece in pieces for layer in piece] == list(range(layers))
    assert len(pieces) == count
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)
    if layers % count < count - 1:
        assert sizes[0] == min(sizes)


@given(outputs=st.integers(1, 9), inputs=st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_nf4_bytes_are_those_that_are_stored(outputs: int, inputs: int) -> None:
    assert quantize(torch.zeros(outputs, inputs)).nbytes == matrix_bytes(outputs, inputs)


@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("kind", ["lora", "qlora"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_frozen_model_takes_the_bytes_that_the_trainer_keeps(
    kind: Literal["lora", "qlora"], pipeline: int, bias: bool
) -> None:
    shape = replace(DENSE, hidden=80, heads=5, kv_heads=5, attention_bias=bias)  # rows are padded
    section = AdapterSection(kind=kind, rank=3, targets=("q", "down"))
    adapter = Adapter(section.rank, 4 if kind == "qlora" else 16, section.parts)
    layout = Layout(pipeline=pipeline)
    of = job(layout, shape, adapter=adapter)
    stages = trained_stages(shape, layout)
    for stage, modules in enumerate(stages):
        frozen = trained = 0
        for module in modules:
            add_adapters(module, section)
            cast_frozen(module, torch.bfloat16)
            for param in module.parameters():
                frozen += 0 if param.requires_grad else param.nbytes
                trained += param.numel() if param.requires_grad else 0
        assert state_bytes(of, stage).whole_weights == frozen
        assert adapter_params(of, stage) == trained
    whole = partition.frozen_model_bytes(shape, adapter.bits)
    assert whole == sum(state_bytes(of, stage).whole_weights for stage in range(pipeline))


@pytest.mark.parametrize("shape", [DENSE, SPARSE, LATENT], ids=["dense", "sparse", "latent"])
def test_an_adapter_has_the_parameters_that_the_run_file_says(shape: ModelShape) -> None:
    for targets in (("attention", "ffn"), ("q", "v"), ("kv_down", "kv"), ("down",)):
        section = AdapterSection(targets=targets)
        adapter = Adapter(section.rank, 16, section.parts)
        of = job(Layout(), shape, adapter=adapter)
        assert adapter_params(of, 0) == section.trained(shape)


@pytest.mark.parametrize("preset", ["llama-8b", "qwen3-4b", "mixtral-8x7b", "deepseek-v3"])
def test_one_rank_holds_the_whole_model(preset: str) -> None:
    shape = models.preset(preset)
    common, routed, _ = rank_params(shape, Layout(), 0)
    assert common + routed == shape.params()


def test_the_run_files_adapter_reaches_the_models() -> None:
    from penstock.run.schema.model import ModelSection
    from penstock.run.schema.run import Run

    model = ModelSection.model_validate(
        {"from": "models/x", "adapter": {"kind": "qlora", "rank": 8, "targets": ["q"]}}
    )
    run = Run.model_validate({"name": "x", "model": model, "train": {"tokens": 1}})
    assert own.adapter(run) == Adapter(8, 4, ("q",))
