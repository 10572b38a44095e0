"""A model with weights in memory, sharded over the ranks of a replica."""

import torch
import torch.distributed as dist
from torch import nn

from penstock.model.build import decoder_on_meta, fill, user_module
from penstock.run.file import Run
from penstock.train.shard import MASTER, shard
from penstock.train.world import World


def materialize(run: Run, vocab: int, world: World) -> nn.Module:
    dtype = MASTER[run.train.precision]
    if run.model.module is None:
        decoder = decoder_on_meta(run.model.shape(vocab)).to(dtype)
        shard(decoder, world, run.train.precision)
        fill(decoder, world.device, run.train.seed)
        return decoder
    model = user_module(run.model.module, run.train.seed).to(world.device, dtype)
    if world.ranks > 1:  # the user's code may draw from anywhere: rank 0's weights are the run's
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, src=0)
    shard(model, world, run.train.precision)
    return model


def for_reading(run: Run, vocab: int, device: torch.device) -> nn.Module:
    """The same model in one process without sharding, to be loaded and looked at."""
    dtype = MASTER[run.train.precision]
    if run.model.module is not None:
        return user_module(run.model.module, run.train.seed).to(device, dtype)
    return decoder_on_meta(run.model.shape(vocab)).to(dtype).to_empty(device=device)
