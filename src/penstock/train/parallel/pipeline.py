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
from penstock.train.parallel.batch import Micro
from penstock.train.parallel.parts import Grads, Parts
from penstock.train.parallel.pile import pile
from penstock.train.parallel.pipeline_schedule import (
    Flow,
    Schedule,
    as_it_was_raised,
    enough,
    schedule,
)
from penstock.train.parallel.runner import GoOn, for_ever
from penstock.train.parallel.stages import TABLE
from penstock.train.world.world import World

# Microbatches for each stage that are evaluated at a time: torch keeps what all of them gave.
ROUND = 4


@dataclass
class Pipelined:
    """Losses are those of the last stage; the other stages have nothing to add to them."""

    parts: Parts
    layout: Layout
    world: World
    dtype: torch.dtype  # of the hidden states
    ways: int = 1  # ranks of one stage that come to the same loss together
    cut: Callable[[Micro], Micro] | None = None  # this rank's pieces of the sequences
    joined: Callable[[Tensor], Tensor] | None = None  # the pieces of all ranks, in order
    _schedules: dict[Flow, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pieces = [piece for piece in self.parts.modules if isinstance(piece, Decoder)]
        self.shape = self.pieces[0].shape
        self._token = torch.zeros(1, device=self.world.device)
        self.first = self.world.place("pipeline") == 0
        self.last = self.world.place("pipeline") == self.layout.pipeline - 1

    def backward(self, batch: list[Micro], tokens: int) -> Tensor:
        return self._losses("train", batch, 1 / tokens)

    @torch.no_grad()
    def evaluate(self, batch: list[Micro], go_on: GoOn = for_ever) -> Tensor | None:
        total = torch.zeros((), device=self.world.device, dtype=torch.float64)
        each = ROUND * self.layout.pipeline
        with self.parts.evaluating():
            for at in range(0, len(batch), each):
                if not go_on():
                    return None
                total += self._losses("evaluate", batch[at : at + each], 1.0)
        return total

    def _losses(self, purpose: str, batch: list[Micro], scale: float) -> Tensor:
        """This rank's part of the sum of losses × weight × scale."""
        piled = pile([self._own(micro) for micro in batch], enough(self.layout, len(batch)))
        flow = Flow(purpose, len(piled.weights_n), piled.rows, piled.inputs_bs.shape[1])
        given = {"starts_bs": piled.starts_bs}
        if self.last:
            given |= {"targets_bs": piled.targets_bs, "counted_bs": piled.counted_bs}
        losses: list[Tensor] = []
        run = self._schedule(flow)
        with as_it_was_raised():
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
        return total / self.ways

    @torch.no_grad()
    def logits(self, tokens_bs: Tensor) -> Tensor:
        inputs_bs = self._own(Micro(tokens_bs, tokens_bs, 0.0)).inputs_bs
        run = self._schedule(Flow("logits", 1, *inputs_bs.shape))
        found = run.step(*([inputs_bs] if self.first else []))
        size = (*tokens_bs.shape, self.shape.vocab)
        logits_bsv = torch.empty(size, device=self.world.device, dtype=self.dtype)
        if self.last:
            logits_bsv.copy_(self.joined(found) if self.joined else found)
        group = self.world.group("pipeline")
        dist.broadcast(logits_bsv, group_src=self.layout.pipeline - 1, group=group)
        return logits_bsv

    def settle(self, grads: Grads) -> None:
        """A tied embedding is used on the first and on the last stage: both need both gradients.

        Either order gives the same sum to the bit, so that the two copies stay equal.
        """
        if not (self.shape.tied and (self.first or self.last) and TABLE in grads):
            return
        group, own = self.world.group("pipeline"), grads[TABLE].contiguous()
        other = dist.get_global_rank(group, self.layout.pipeline - 1 if self.first else 0)
        theirs = torch.empty_like(own)
        sent = dist.P2POp(dist.isend, own, other, group)
        got = dist.P2POp(dist.irecv, theirs, other, group)
        for work in dist.batch_isend_irecv([sent, got]):
            work.wait()
        grads[TABLE] = own + theirs

    def drain(self, clock: StepClock) -> None:
        """So that the wait at the end of the schedule is known for what it is, a bubble."""
        with clock.part("bubble"):
            dist.all_reduce(self._token, group=self.world.group("pipeline"))

    def _schedule(self, flow: Flow) -> Schedule:
        if flow not in self._schedules:
            made = schedule(self.pieces, flow, self.layout, self.world, self.dtype)
            self._schedules[flow] = made
        return self._schedules[flow]

    def _own(self, micro: Micro) -> Micro:
        return self.cut(micro) if self.cut else micro
