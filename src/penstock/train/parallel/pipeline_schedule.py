"""torch's schedules over the stages of a pipeline.

torch calls a piece of the model a stage. Here a stage is a rank's index in the pipeline, and holds
one piece or, interleaved, several.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    get_schedule_class,
)

from penstock.model.decoder import Decoder
from penstock.plan.job.layout import Layout
from penstock.train.world.world import World

Schedule: TypeAlias = PipelineScheduleSingle | PipelineScheduleMulti
# By torch's names. A zero-bubble schedule will be one more of them: "InterleavedZeroBubble" takes
# pieces that are placed as here.
SCHEDULES = {
    "fill and drain": "GPipe",
    "one forward, one backward": "1F1B",
    "interleaved": "Interleaved1F1B",
}


@dataclass(frozen=True)
class ScheduleSpec:
    """All that a schedule must know beforehand about the microbatches it will run."""

    purpose: str  # "train", "evaluate", "logits"
    micros: int
    rows: int  # of a microbatch
    sequence: int


def schedule_name(layout: Layout, micros: int, training: bool) -> str:
    """Return the schedule to use. Without backward passes, or with fewer microbatches than stages,
    there is nothing to alternate.
    """
    if layout.interleave > 1:
        return "interleaved"
    turns = training and micros >= layout.pipeline
    return "one forward, one backward" if turns else "fill and drain"


def padded_micro_count(layout: Layout, micros: int) -> int:
    """Return the number of microbatches with fillers: interleaved ones need equal rounds."""
    if layout.interleave == 1:
        return micros
    while micros % max(1, micros // layout.pipeline):
        micros += 1
    return micros


def build_schedule(
    pieces: list[Decoder], flow: ScheduleSpec, layout: Layout, world: World, dtype: torch.dtype
) -> Schedule:
    """Build torch's schedule for this rank's pieces; `dtype` is the type of the hidden states.

    All shapes are given beforehand: torch would run the model once more to find them. Each
    tensor-parallel rank has its part of the sequence of hidden states.
    """
    count, place = layout.pipeline * layout.interleave, world.index("pipeline")
    shape, rows, sequence = pieces[0].shape, flow.rows, flow.sequence
    with torch.device("meta"):
        tokens_bs = torch.empty(rows, sequence, dtype=torch.int64)
        size = (rows, sequence // layout.tensor, shape.hidden)
        hidden_bsd = torch.empty(size, dtype=dtype, requires_grad=True)
        loss = torch.empty((), dtype=torch.promote_types(dtype, torch.float32))
        logits_bsv = torch.empty(rows, sequence, shape.vocab, dtype=dtype)
    at_last = logits_bsv if flow.purpose == "logits" else loss
    stages = [
        BufferSharingStage(
            piece,
            index,
            count,
            world.device,
            input_args=hidden_bsd if index else tokens_bs,
            output_args=hidden_bsd if index < count - 1 else at_last,
            group=world.group("pipeline"),
        )
        for index, piece in zip(range(place, count, layout.pipeline), pieces, strict=True)
    ]
    name = schedule_name(layout, flow.micros, flow.purpose == "train")
    kind = get_schedule_class(SCHEDULES[name])
    # scale_grads=False: torch would divide by the number of microbatches; the loss is a sum over
    # tokens, divided by those of the global batch.
    made = kind(
        stages if issubclass(kind, PipelineScheduleMulti) else stages[0],
        flow.micros,
        loss_fn=None if flow.purpose == "logits" else weighted_loss,
        scale_grads=False,
    )
    for stage in stages:
        stage.under_way = buffers_needed(made, stage.stage_index, flow, layout)
    return made


class BufferSharingStage(PipelineStage):
    """A stage whose microbatches share receive buffers; torch keeps two buffers for each
    microbatch.

    torch asks for the buffers by these two methods, the same in all versions since 2.8.
    """

    buffers_needed = (
        1  # microbatches that wait here at most, between their arrival and their backward
    )

    def _prepare_forward_infra(self, num_microbatches: int, *args: Any, **options: Any) -> Any:
        made = super()._prepare_forward_infra(self.under_way, *args, **options)
        for micro in range(num_microbatches):
            self.args_recv_info[micro] = self.args_recv_info[micro % self.under_way]
        return made

    def _prepare_backward_infra(self, num_microbatches: int, *args: Any, **options: Any) -> Any:
        made = super()._prepare_backward_infra(self.under_way, *args, **options)
        self.chunks = num_microbatches
        for micro in range(num_microbatches):
            self.grad_recv_info[micro] = self.grad_recv_info[micro % self.under_way]
        return made


def buffers_needed(made: Schedule, piece: int, flow: ScheduleSpec, layout: Layout) -> int:
    """Return the most microbatches that a piece holds at once: received and not done with.

    They come and go in the same order, so this many buffers, used in turn, are enough.
    """
    training = flow.purpose == "train"
    if isinstance(made, PipelineScheduleSingle):
        if not training:
            return 1
        turns = flow.micros >= layout.pipeline  # else all go forward before one goes back
        return layout.pipeline - piece if turns else flow.micros
    waiting = {"F": 0, "B": 0}
    most = 1
    for action in made.pipeline_order_with_comms[made.rank]:
        if action.stage_index != piece:
            continue
        kind = action.computation_type.value
        if kind in ("RECV_F", "RECV_B"):
            waiting[kind[-1]] += 1
        elif kind == ("B" if training else "F"):
            waiting = {way: count - 1 for way, count in waiting.items()}
        most = max(most, *waiting.values())
    return most


def weighted_loss(loss: Tensor, weight_1: Tensor) -> Tensor:
    """Return loss × weight. The weight is on the host: nothing waits for the device."""
    return loss * weight_1.item()


@contextmanager
def raise_original_error() -> Iterator[None]:
    """Raise the error of a piece as it was: torch wraps it, and an out-of-memory error must be
    recognised.
    """
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None
