"""How microbatches go through the model: the plain way, when every rank holds all of its layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from penstock.meter.clock import StepClock
from penstock.model.build import logits_of, summed_loss
from penstock.model.decoder import Decoder
from penstock.model.own_loss import TokenLoss
from penstock.run.schema.code import UserCode
from penstock.train.parallel.batch import Micro
from penstock.train.parallel.parts import Grads, Parts

GoOn = Callable[[], bool]


def for_ever() -> bool:
    return True


class Runner(Protocol):
    """What ranks return adds up over all of them to the value of the global batch."""

    def backward(self, batch: list[Micro], tokens: int) -> Tensor:
        """Accumulate gradients of the mean loss over the global batch; this rank's part of it."""

    def settle(self, grads: Grads) -> None:
        """What is left to add up inside a replica once all microbatches are through."""

    def drain(self, clock: StepClock) -> None:
        """Wait until all stages of a pipeline are through; the first is the last to be."""

    def evaluate(self, batch: list[Micro], go_on: GoOn = for_ever) -> Tensor | None:
        """This rank's part of a summed loss, without gradients; None when `go_on`, which is asked
        now and then on all ranks at the same place, said no."""

    def logits(self, tokens_bs: Tensor) -> Tensor:
        """The same on every rank, all of which must ask."""


@dataclass
class Plain:
    parts: Parts
    ways: int = 1  # ranks that come to the same loss together
    cut: Callable[[Micro], Micro] | None = None  # this rank's pieces of the sequences
    joined: Callable[[Tensor], Tensor] | None = None  # the pieces of all ranks, in order
    own_loss: TokenLoss | None = None  # for the user's own module; a decoder has it inside

    code: UserCode | None = None  # of that module, for messages

    def __post_init__(self) -> None:
        self.loss_sum = loss_of(self.parts.whole, self.own_loss, self.code)

    def backward(self, batch: list[Micro], tokens: int) -> Tensor:
        total = torch.zeros((), device=batch[0].inputs_bs.device, dtype=torch.float64)
        for micro in batch:
            loss = self.loss_sum(self._own(micro)) * (micro.weight / tokens)
            loss.backward()
            total += loss.detach()
        return total / self.ways

    def settle(self, grads: Grads) -> None:
        pass

    def drain(self, clock: StepClock) -> None:
        pass

    @torch.no_grad()
    def evaluate(self, batch: list[Micro], go_on: GoOn = for_ever) -> Tensor | None:
        total = torch.zeros((), device=batch[0].inputs_bs.device, dtype=torch.float64)
        with self.parts.evaluating():
            for micro in batch:
                if not go_on():
                    return None
                total += self.loss_sum(self._own(micro)) * micro.weight
        return total / self.ways

    @torch.no_grad()
    def logits(self, tokens_bs: Tensor) -> Tensor:
        inputs_bs = self._own(Micro(tokens_bs, tokens_bs, 0.0)).inputs_bs
        logits_bsv = logits_of(self.parts.whole, inputs_bs)
        return self.joined(logits_bsv) if self.joined else logits_bsv

    def _own(self, micro: Micro) -> Micro:
        return self.cut(micro) if self.cut else micro


def loss_of(
    model: nn.Module, own_loss: TokenLoss | None = None, code: UserCode | None = None
) -> Callable[[Micro], Tensor]:
    """The loss of a microbatch as a sum over its targets that count."""
    if isinstance(model, Decoder):
        return lambda micro: model(
            micro.inputs_bs, micro.starts_bs, micro.targets_bs, micro.counted_bs
        )
    own = summed_loss(model, own_loss, code)
    return lambda micro: own(micro.inputs_bs, micro.targets_bs, micro.counted_bs)
