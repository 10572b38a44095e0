"""The weights of a pipeline stage that another stage has too, and when a stage gathers its own."""

from torch.distributed.fsdp import FSDPModule

from penstock.catalog.shapes import ModelShape
from penstock.model.decoder import Decoder
from penstock.plan.job.layout import Layout

TABLE = "embed.weight"  # a tied head has it on the last stage too


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
