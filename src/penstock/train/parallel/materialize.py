"""A model with weights in memory, laid out over the ranks of a replica."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from penstock.catalog.open.folder import model_folder
from penstock.model.adapter.lora import adapt, fill_adapted, freeze_in
from penstock.model.build import decoder_on_meta, fill, refuse_untrainable, user_module
from penstock.model.open.fill import fill_open
from penstock.model.open.weights import OpenWeights
from penstock.plan.job.layout import Layout
from penstock.plan.job.partition import stage_pieces
from penstock.run.schema.run import Run
from penstock.train.parallel.apply import lay_out
from penstock.train.parallel.parts import Parts
from penstock.train.parallel.precision import COMPUTE, MASTER, kept, lowered
from penstock.train.parallel.shard import shard
from penstock.train.parallel.stages import copies_on, keep_gathered
from penstock.train.world.world import World


@dataclass(frozen=True)
class Materialized:
    parts: Parts
    masters: dict[str, Tensor]  # full-precision weights by name, where parameters are narrower


def materialize(run: Run, layout: Layout, vocab: int, world: World) -> Materialized:
    parts = _decoder(run, layout, vocab, world) if run.model.module is None else _own(run, world)
    masters = {} if world.sharded else lowered(parts, COMPUTE[run.train.precision])
    return Materialized(parts, masters)


def _decoder(run: Run, layout: Layout, vocab: int, world: World) -> Parts:
    """All layers, or the pieces of this rank's stage of a pipeline."""
    shape, stage = run.model.shape(vocab), world.place("pipeline")
    weights = OpenWeights(model_folder(run.model.from_)) if run.model.from_ else None
    modules: list[nn.Module] = []
    for layers in stage_pieces(shape.layers, layout.pipeline, layout.interleave, stage):
        decoder = decoder_on_meta(shape, layers).to(kept(run.train))
        if run.model.adapter:
            adapt(decoder, run.model.adapter)
            freeze_in(decoder, COMPUTE[run.train.precision])
        lay_out(decoder, run, layout, world)
        if layout.pipeline > 1:
            keep_gathered(decoder)
        if weights is None:
            fill(decoder, world.device, run.train.seed)
        elif run.model.adapter:
            fill_adapted(decoder, weights, world.device, run.train.seed)
        else:
            fill_open(decoder, weights, world.device)
        modules.append(decoder)
    return Parts(modules, copies_on(stage, layout, shape))


def _own(run: Run, world: World) -> Parts:
    """The user's module. Only replicas and shards know how to lay it out."""
    assert run.model.module is not None
    model = user_module(run.model.module, run.train.seed)
    refuse_untrainable(model, run.model.module)
    # Parts that the code has put out of training would be back in it after the first evaluation.
    model = model.to(world.device, MASTER[run.train.precision]).train()
    for param in model.parameters():  # not the buffers: they may be sums of small numbers
        if param.is_floating_point():
            param.data = param.data.to(kept(run.train))
    if world.ranks > 1:  # the user's code may draw from anywhere: rank 0's weights are the run's
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, src=0)
    if world.sharded:
        shard(model, world, run.train.precision)
    return Parts([model], keeps_frozen=True)


def for_reading(run: Run, vocab: int, device: torch.device) -> nn.Module:
    """The same model in one process without sharding, to be loaded and looked at."""
    dtype = MASTER[run.train.precision]
    if run.model.module is not None:
        return user_module(run.model.module, run.train.seed).to(device, dtype)
    decoder = decoder_on_meta(run.model.shape(vocab)).to(dtype)
    if run.model.adapter is None:
        return decoder.to_empty(device=device)
    # What the run froze is not in its checkpoints.
    assert run.model.from_
    adapt(decoder, run.model.adapter)
    fill_adapted(decoder, OpenWeights(model_folder(run.model.from_)), device, run.train.seed)
    return decoder
