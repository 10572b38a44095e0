"""Pipeline parallel: microbatches go through stages, each of which holds some of the layers.

All ranks of a pipeline read the same samples. The first stage takes the tokens, the last one the
targets, and hidden states travel between them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from penstock.meter.clock import StepClock
from penstock.model.decoder import Decoder
from penstock.plan.job.layout import Layout
from penstock.train.parallel.materialize import EMBEDDING
from penstock.train.parallel.microbatch import Microbatch
from penstock.train.parallel.parts import Grads, ModelParts
from penstock.train.parallel.pipeline_schedule import (
    Schedule,
    ScheduleSpec,
    build_schedule,
    padded_micro_count,
    raise_original_error,
)
from penstock.train.parallel.runner import NO_FIGURES, KeepGoing, always
from penstock.train.world.world import World

# Microbatches for each stage that are evaluated at a time: torch keeps what all of them gave.
ROUND = 4


@dataclass
class PipelineRunner:
    """A runner over the stages of a pipeline. Only the last stage has losses; the others add
    nothing to them.
    """

    parts: ModelParts
    layout: Layout
    world: World
    dtype: torch.dtype  # of the hidden states
    same_loss_ranks: int = 1  # ranks of one stage that come to the same loss together
    slice_micro: Callable[[Microbatch], Microbatch] | None = (
        None  # this rank's pieces of the sequences
    )
    join_logits: Callable[[Tensor], Tensor] | None = None  # the pieces of all ranks, in order
    _schedules: dict[ScheduleSpec, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pieces = [piece for piece in self.parts.modules if isinstance(piece, Decoder)]
        self.shape = self.pieces[0].shape
        self._token = torch.zeros(1, device=self.world.device)
        self.first = self.world.index("pipeline") == 0
        self.last = self.world.index("pipeline") == self.layout.pipeline - 1

    def backward(self, batch: list[Microbatch], tokens: int) -> Tensor:
        return self._losses("train", batch, 1 / tokens)

    @torch.no_grad()
    def evaluate(self, batch: list[Microbatch], keep_going: KeepGoing = always) -> Tensor | None:
        total = torch.zeros((), device=self.world.device, dtype=torch.float64)
        each = ROUND * self.layout.pipeline
        with self.parts.evaluating():
            for at in range(0, len(batch), each):
                if not keep_going():
                    return None
                total += self._losses("evaluate", batch[at : at + each], 1.0)
        return total

    def _losses(self, purpose: str, batch: list[Microbatch], scale: float) -> Tensor:
        """Return this rank's part of the sum of losses × weight × scale."""
        piled = stack_microbatches(
            [self._local(micro) for micro in batch], padded_micro_count(self.layout, len(batch))
        )
        flow = ScheduleSpec(purpose, len(piled.weights_n), piled.rows, piled.inputs_bs.shape[1])
        given = {"starts_bs": piled.starts_bs}
        if self.last:
            given |= {"targets_bs": piled.targets_bs, "counted_bs": piled.counted_bs}
        losses: list[Tensor] = []
        run = self._schedule(flow)
        with raise_original_error():
            (run.step if purpose == "train" else run.eval)(
                *([piled.inputs_bs] if self.first else []),
                target=piled.weights_n * scale if self.last else None,
                losses=losses,
                return_outputs=False,
                **{name: tensor for name, tensor in given.items() if tensor is not None},
            )
        total = torch.zeros((), device=self.world.device, dtype=torch.float64)
        for loss in losses:
            total += loss.detach()
        return total / self.same_loss_ranks

    @torch.no_grad()
    def logits(self, tokens_bs: Tensor) -> Tensor:
        inputs_bs = self._local(Microbatch(tokens_bs, tokens_bs, 0.0)).inputs_bs
        run = self._schedule(ScheduleSpec("logits", 1, *inputs_bs.shape))
        found = run.step(*([inputs_bs] if self.first else []))
        size = (*tokens_bs.shape, self.shape.vocab)
        logits_bsv = torch.empty(size, device=self.world.device, dtype=self.dtype)
        if self.last:
            logits_bsv.copy_(self.join_logits(found) if self.join_logits else found)
        group = self.world.group("pipeline")
        dist.broadcast(logits_bsv, group_src=self.layout.pipeline - 1, group=group)
        return logits_bsv

    def add_shared_gradients(self, grads: Grads) -> None:
        """Add up the gradients of a tied embedding, which the first and the last stage both use.

        Either order gives the same sum to the bit, so that the two copies stay equal.
        """
        if not (self.shape.tied and (self.first or self.last) and EMBEDDING in grads):
            return
        group, own = self.world.group("pipeline"), grads[EMBEDDING].contiguous()
        other = dist.get_global_rank(group, self.layout.pipeline - 1 if self.first else 0)
        theirs = torch.empty_like(own)
        sent = dist.P2POp(dist.isend, own, other, group)
        got = dist.P2POp(dist.irecv, theirs, other, group)
        for work in dist.batch_isend_irecv([sent, got]):
            work.wait()
        grads[EMBEDDING] = own + theirs

    def figures(self) -> Tensor:
        return NO_FIGURES

    def wait_for_stages(self, clock: StepClock) -> None:
        """Wait for all stages, so that the wait is recorded as a bubble."""
        with clock.part("bubble"):
            dist.all_reduce(self._token, group=self.world.group("pipeline"))

    def _schedule(self, flow: ScheduleSpec) -> Schedule:
        if flow not in self._schedules:
            made = build_schedule(self.pieces, flow, self.layout, self.world, self.dtype)
            self._schedules[flow] = made
        return self._schedules[flow]

    def _local(self, micro: Microbatch) -> Microbatch:
        return self.slice_micro(micro) if self.slice_micro else micro


@dataclass(frozen=True)
class StackedMicrobatches:
    """Microbatches of equal size in one tensor each, as torch's pipeline schedules take them.

    Filler rows and filler microbatches do not count in the loss. Shape suffixes: n microbatches, b
    rows of all of them, s sequence.
    """

    rows: int  # of each microbatch
    inputs_bs: Tensor
    targets_bs: Tensor
    counted_bs: Tensor | None  # None: all targets do
    starts_bs: Tensor | None  # of whole sequences, also where a rank has only part of them
    weights_n: Tensor  # on the host


def stack_microbatches(batch: list[Microbatch], count: int) -> StackedMicrobatches:
    """Return `count` microbatches, each as large as the largest of the batch."""
    rows = max(len(micro.inputs_bs) for micro in batch)
    all_count = all(m.counted_bs is None and len(m.inputs_bs) == rows for m in batch)
    starts = {i: m.starts_bs for i, m in enumerate(batch) if m.starts_bs is not None}
    weights = [micro.weight for micro in batch]
    return StackedMicrobatches(
        rows,
        _stack({i: micro.inputs_bs for i, micro in enumerate(batch)}, rows, count),
        _stack({i: micro.targets_bs for i, micro in enumerate(batch)}, rows, count),
        None if all_count else _stack(dict(enumerate(map(_counted, batch))), rows, count),
        _stack(starts, rows, count) if starts else None,
        torch.tensor(weights + [0.0] * (count - len(batch)), dtype=torch.float64),
    )


def _counted(micro: Microbatch) -> Tensor:
    if micro.counted_bs is None:
        return torch.ones_like(micro.targets_bs, dtype=torch.bool)
    return micro.counted_bs


def _stack(parts: dict[int, Tensor], rows: int, count: int) -> Tensor:
    """Put each part at the rows of its microbatch, with zeros elsewhere."""
    if len(parts) == count and all(len(part) == rows for part in parts.values()):
        return torch.cat(list(parts.values()))  # one kernel, and mostly so
    some = next(iter(parts.values()))
    whole = some.new_zeros(count * rows, some.shape[1])
    for i, part in parts.items():
        whole[i * rows : i * rows + len(part)] = part
    return whole
