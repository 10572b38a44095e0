"""What a stage of a pipeline holds: which layers, and which weights that another stage has too."""

from torch.distributed.fsdp import FSDPModule

from penstock.catalog.shapes import ModelShape
from penstock.model.decoder import Decoder
from penstock.plan.job.layout import Layout
from penstock.plan.job.partition import pieces

TABLE = "embed.weight"  # a tied head has it on the last stage too


def layers_on(stage: int, layout: Layout, shape: ModelShape) -> list[range]:
    """Pieces go to stages in turn: a stage holds one, or with interleaving several."""
    return pieces(shape.layers, layout.pipeline * layout.interleave)[stage :: layout.pipeline]


def copies_on(stage: int, layout: Layout, shape: ModelShape) -> set[str]:
    """What another stage answers for: of a tied embedding, the last stage has a copy."""
    last = 0 < stage == layout.pipeline - 1
    return {TABLE} if last and shape.tied else set()


def keep_gathered(piece: Decoder) -> None:
    """FSDP2 gathers the weights of a stage once a step, not for every microbatch.

    torch's schedules reduce gradients once a step as well, when all microbatches are through.
    """
    if isinstance(piece, FSDPModule):
        piece.set_reshard_after_forward(False)
