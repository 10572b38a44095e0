"""A model with weights in memory, laid out over the ranks of a replica."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from penstock.catalog.open.folder import model_folder
from penstock.catalog.shapes import ModelShape
from penstock.model.adapter.lora import (
    FP8_KINDS,
    A,
    B,
    add_adapters,
    add_module_adapters,
    cast_frozen,
    draw_adapters,
    load_base_and_adapters,
)
from penstock.model.decoder import Decoder
from penstock.model.fp8 import convert_linears_to_fp8
from penstock.model.initialize import decoder_on_meta, initialize
from penstock.model.open.module import (
    TransformersModel,
    allocate,
    build_module,
    find_plain_head,
    refuse_seen_documents,
)
from penstock.model.open.module_weights import ModuleWeights, load_module_weights
from penstock.model.open.weights import OpenWeights, load_open_weights
from penstock.model.user_module import build_user_module, refuse_untrainable
from penstock.plan.job.layout import Layout
from penstock.plan.job.partition import stage_pieces
from penstock.run.schema.run import Run
from penstock.train.parallel.compile import compile_layers, compiles, join_projections
from penstock.train.parallel.context import apply_context_parallel
from penstock.train.parallel.expert import apply_expert_parallel
from penstock.train.parallel.parts import ModelParts
from penstock.train.parallel.precision import COMPUTE, MASTER, lower_weights, stored_dtype
from penstock.train.parallel.recompute import apply_recompute, checkpointed_forward
from penstock.train.parallel.shard import apply_fsdp, fsdp_units
from penstock.train.parallel.tensor import apply_tensor_parallel
from penstock.train.world.world import World

EMBEDDING = "embed.weight"  # a tied head has it on the last stage too


@dataclass(frozen=True)
class Materialized:
    """A rank's part of the model, and the master weights of its 16-bit parameters."""

    parts: ModelParts
    masters: dict[str, Tensor]  # full-precision weights by name, where parameters are narrower


def materialize(run: Run, layout: Layout, vocab: int, world: World) -> Materialized:
    """Build this rank's part of the run's model, laid out over ranks, with its first or loaded
    weights.
    """
    if run.model.module is not None:
        parts = _user_module_parts(run, world)
    elif run.model.shape(vocab).generic:
        parts = _transformers_parts(run, layout, world)
    else:
        parts = _decoder_parts(run, layout, vocab, world)
    masters = {} if world.sharded else lower_weights(parts, COMPUTE[run.train.precision])
    if joins_projections(run, layout, world):
        for module in parts.modules:
            if isinstance(module, Decoder):
                join_projections(module)
    _measure_module(parts, run, world)  # as it will compute: in the number format of the matmuls
    return Materialized(parts, masters)


def _decoder_parts(run: Run, layout: Layout, vocab: int, world: World) -> ModelParts:
    """Build all layers of the decoder, or the pieces of this rank's pipeline stage."""
    shape, stage = run.model.shape(vocab), world.index("pipeline")
    weights = OpenWeights(model_folder(run.model.from_)) if run.model.from_ else None
    modules: list[nn.Module] = []
    for layers in stage_pieces(shape.layers, layout.pipeline, layout.interleave, stage):
        decoder = decoder_on_meta(shape, layers).to(stored_dtype(run.train))
        if run.model.adapter:
            add_adapters(decoder, run.model.adapter)
            cast_frozen(decoder, COMPUTE[run.train.precision])
        apply_layout(decoder, run, layout, world)
        if layout.pipeline > 1:
            keep_weights_gathered(decoder)
        if weights is None:
            initialize(decoder, world.device, run.train.seed)
        elif run.model.adapter:
            load_base_and_adapters(decoder, weights, world.device, run.train.seed)
        else:
            load_open_weights(decoder, weights, world.device)
        modules.append(decoder)
    return ModelParts(modules, duplicate_weights(stage, layout, shape))


def _user_module_parts(run: Run, world: World) -> ModelParts:
    """Build the user's module. It can be replicated and sharded, nothing else."""
    assert run.model.module is not None
    model = build_user_module(run.model.module, run.train.seed)
    refuse_untrainable(model, run.model.module)
    # Parts that the code has put out of training would be back in it after the first evaluation.
    model = model.to(world.device, MASTER[run.train.precision]).train()
    for param in model.parameters():  # not the buffers: they may be sums of small numbers
        if param.is_floating_point():
            param.data = param.data.to(stored_dtype(run.train))
    if world.ranks > 1:  # the user's code may draw from anywhere: rank 0's weights are the run's
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, src=0)
    if world.sharded:
        apply_fsdp(model, world, run.train.precision)
    return ModelParts([model], keeps_frozen=True)


def _transformers_parts(run: Run, layout: Layout, world: World) -> ModelParts:
    """Build the module of transformers. It can be replicated and sharded by its layers."""
    model, weights = build_transformers_model(run, stored_dtype(run.train))
    layers = list(dict.fromkeys(fsdp_units(model)))
    if run.model.adapter:
        cast_frozen(model, COMPUTE[run.train.precision])
    if layout.recompute != "none":
        for layer in layers:  # which may have dropout under any name
            layer.forward = checkpointed_forward(layer.forward, layout.recompute, dice=True)
    if compiles(run.train.compile, layout, world):
        for layer in layers:
            layer.forward = torch.compile(layer.forward)
    if world.sharded:
        apply_fsdp(model, world, run.train.precision)
    fill_transformers_model(model, weights, world.device, run.train.seed)
    other = {name: stored for name, stored in weights.stored.items() if name != stored}
    return ModelParts([model.train()], stored_names=other)


def _measure_module(parts: ModelParts, run: Run, world: World) -> None:
    """Measure what no config says of a module of transformers: its head, and how it masks."""
    model = parts.modules[0]
    if isinstance(model, TransformersModel):
        find_plain_head(model, world.device)
        if not run.data.across_documents:
            refuse_seen_documents(model, world.device)
        parts.train()


def build_transformers_model(run: Run, dtype: torch.dtype) -> tuple[nn.Module, ModuleWeights]:
    """Build the module of `model.from` without memory, with its adapters, and find its weights."""
    assert run.model.from_
    folder = model_folder(run.model.from_)
    model = build_module(folder, dtype)
    weights = ModuleWeights(folder, model)
    if run.model.adapter:
        add_module_adapters(model, fsdp_units(model), run.model.adapter)
    return model, weights


def fill_transformers_model(
    model: nn.Module, weights: ModuleWeights, device: torch.device, seed: int
) -> None:
    """Allocate the module, load its weights and draw its adapters."""
    allocate(model, device)
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    load_module_weights(named, weights, device)
    draw_adapters({n: t for n, t in named.items() if n.endswith((A, B))}, device, seed)


def materialize_unsharded(run: Run, vocab: int, device: torch.device) -> nn.Module:
    """Build the run's model in one process, for export and generation; most weights are loaded
    later.
    """
    dtype = MASTER[run.train.precision]
    if run.model.module is not None:
        return build_user_module(run.model.module, run.train.seed).to(device, dtype)
    if run.model.shape(vocab).generic:
        model, weights = build_transformers_model(run, dtype)
        fill_transformers_model(model, weights, device, run.train.seed)
        return model
    decoder = decoder_on_meta(run.model.shape(vocab)).to(dtype)
    if run.model.adapter is None:
        return decoder.to_empty(device=device)
    # Checkpoints of the run do not hold the weights that it froze.
    assert run.model.from_
    add_adapters(decoder, run.model.adapter)
    load_base_and_adapters(
        decoder, OpenWeights(model_folder(run.model.from_)), device, run.train.seed
    )
    return decoder


def apply_layout(decoder: Decoder, run: Run, layout: Layout, world: World) -> None:
    """Lay a decoder without memory out over the ranks of a replica, in place; each parallelism is a
    file, in this order.
    """
    if run.train.precision == "fp8":
        convert_linears_to_fp8(decoder.layers, layout.tensor, FP8_KINDS)
    if layout.context > 1:
        apply_context_parallel(decoder, world)
    if layout.tensor > 1:
        apply_tensor_parallel(decoder, world)
    apply_expert_parallel(decoder, world)
    if layout.recompute != "none":
        apply_recompute(decoder, layout.recompute)
    if compiles(run.train.compile, layout, world):
        compile_layers(decoder)
    if world.sharded:
        apply_fsdp(decoder, world, run.train.precision)


def joins_projections(run: Run, layout: Layout, world: World) -> bool:
    """Return whether projections of one input are computed together: where layers are compiled and
    whole. Recomputation decides matmul by matmul, so it keeps them apart.
    """
    whole = not world.sharded and layout.tensor == layout.context == 1
    return whole and layout.recompute == "none" and compiles(run.train.compile, layout, world)


def duplicate_weights(stage: int, layout: Layout, shape: ModelShape) -> set[str]:
    """Return the weights of a stage that another stage counts and saves: the last stage's copy of a
    tied embedding.
    """
    last = 0 < stage == layout.pipeline - 1
    return {EMBEDDING} if last and shape.tied else set()


def keep_weights_gathered(piece: Decoder) -> None:
    """Let FSDP2 gather the weights of a stage once a step, not for every microbatch.

    torch's schedules also reduce gradients once a step, after all microbatches.
    """
    if isinstance(piece, FSDPModule):
        piece.set_reshard_after_forward(False)
