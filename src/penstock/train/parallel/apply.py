"""A decoder laid out over the ranks of a replica: each parallelism is a file, in this order."""

from penstock.model.decoder import Decoder
from penstock.model.fp8 import to_fp8
from penstock.plan.job.layout import Layout
from penstock.run.schema.run import Run
from penstock.train.parallel.compile import compile_layers, wanted
from penstock.train.parallel.context import spread
from penstock.train.parallel.expert import spread_experts
from penstock.train.parallel.recompute import recompute
from penstock.train.parallel.shard import shard
from penstock.train.parallel.tensor import split
from penstock.train.world.world import World


def lay_out(decoder: Decoder, run: Run, layout: Layout, world: World) -> None:
    """In place; the decoder is still without memory."""
    if run.train.precision == "fp8":
        to_fp8(decoder.layers, layout.tensor)
    if layout.context > 1:
        spread(decoder, world)
    if layout.tensor > 1:
        split(decoder, world)
    spread_experts(decoder, world)
    if layout.recompute != "none":
        recompute(decoder, layout.recompute)
    if wanted(run.train.compile, layout, world):
        compile_layers(decoder)
    if world.sharded:
        shard(decoder, world, run.train.precision)
