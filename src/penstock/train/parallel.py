"""A decoder laid out over the ranks of a replica: each parallelism is a file, in this order."""

from penstock.model.decoder import Decoder
from penstock.plan.layout import Layout
from penstock.run.file import Run
from penstock.train.expert import spread_experts
from penstock.train.shard import shard
from penstock.train.tensor import split
from penstock.train.world import World


def lay_out(decoder: Decoder, run: Run, layout: Layout, world: World) -> None:
    """In place; the decoder is still without memory."""
    if layout.tensor > 1:
        split(decoder, world)
    spread_experts(decoder, world)
    if world.sharded:
        shard(decoder, world, run.train.precision)
