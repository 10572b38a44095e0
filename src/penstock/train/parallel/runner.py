"""Runners, which pass microbatches through the model; here the plain one, for ranks that hold all
layers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from penstock.meter.clock import StepClock
from penstock.model.decoder import Decoder
from penstock.model.open.module import TransformersModel
from penstock.model.user_loss import TokenLoss
from penstock.model.user_module import call_for_logits, summed_loss
from penstock.run.schema.code import UserCode
from penstock.train.parallel.microbatch import Microbatch
from penstock.train.parallel.parts import Grads, ModelParts
from penstock.train.parallel.reshard import StepResharding

NO_FIGURES = torch.empty(0, dtype=torch.float64)
KeepGoing = Callable[[], bool]


def always() -> bool:
    return True


class Runner(Protocol):
    """A way to run microbatches. The returned values add up over all ranks to that of the global
    batch.
    """

    def backward(self, batch: list[Microbatch], tokens: int) -> Tensor:
        """Accumulate gradients of the mean loss over the global batch; return this rank's part of
        the loss.
        """

    def add_shared_gradients(self, grads: Grads) -> None:
        """Add up gradients that several ranks of a replica share, after all microbatches."""

    def wait_for_stages(self, clock: StepClock) -> None:
        """Wait until all stages of a pipeline are done; the first stage is the last to finish."""

    def evaluate(self, batch: list[Microbatch], keep_going: KeepGoing = always) -> Tensor | None:
        """Return this rank's part of a summed loss, without gradients.

        `keep_going` is asked now and then, on all ranks at the same point; if it says no, the
        result is None.
        """

    def figures(self) -> Tensor:
        """Return what else the last batch gave, as sums that add up as its loss does; the vote
        carries them. Empty for most objectives.
        """

    def logits(self, tokens_bs: Tensor) -> Tensor:
        """Return the logits, the same on every rank; all ranks must call this."""


@dataclass
class PlainRunner:
    """A runner for ranks that hold all layers."""

    parts: ModelParts
    same_loss_ranks: int = 1  # ranks that come to the same loss together
    slice_micro: Callable[[Microbatch], Microbatch] | None = (
        None  # this rank's pieces of the sequences
    )
    join_logits: Callable[[Tensor], Tensor] | None = None  # the pieces of all ranks, in order
    user_loss: TokenLoss | None = None  # for the user's own module; a decoder has it inside

    code: UserCode | None = None  # of that module, for messages
    resharding: StepResharding | None = None  # what stays whole inside a step; None: nothing

    def __post_init__(self) -> None:
        self.loss_sum = microbatch_loss(self.parts.single_module, self.user_loss, self.code)

    def backward(self, batch: list[Microbatch], tokens: int) -> Tensor:
        total = torch.zeros((), device=batch[0].inputs_bs.device, dtype=torch.float64)
        for number, micro in enumerate(batch, 1):
            self._before_pass(last=number == len(batch))
            loss = self.loss_sum(self._local(micro)) * (micro.weight / tokens)
            loss.backward()
            total += loss.detach()
        return total / self.same_loss_ranks

    def add_shared_gradients(self, grads: Grads) -> None:
        pass

    def wait_for_stages(self, clock: StepClock) -> None:
        pass

    def figures(self) -> Tensor:
        return NO_FIGURES

    @torch.no_grad()
    def evaluate(self, batch: list[Microbatch], keep_going: KeepGoing = always) -> Tensor | None:
        total = torch.zeros((), device=batch[0].inputs_bs.device, dtype=torch.float64)
        with self.parts.evaluating():
            for micro in batch:
                if not keep_going():
                    return None
                total += self.loss_sum(self._local(micro)) * micro.weight
        return total / self.same_loss_ranks

    @torch.no_grad()
    def logits(self, tokens_bs: Tensor) -> Tensor:
        inputs_bs = self._local(Microbatch(tokens_bs, tokens_bs, 0.0)).inputs_bs
        logits_bsv = call_for_logits(self.parts.single_module, inputs_bs)
        return self.join_logits(logits_bsv) if self.join_logits else logits_bsv

    def _local(self, micro: Microbatch) -> Microbatch:
        return self.slice_micro(micro) if self.slice_micro else micro

    def _before_pass(self, last: bool) -> None:
        if self.resharding:
            self.resharding.before_pass(last)


def microbatch_loss(
    model: nn.Module, user_loss: TokenLoss | None = None, code: UserCode | None = None
) -> Callable[[Microbatch], Tensor]:
    """Return a function from a microbatch to its loss, summed over the targets that count."""
    if isinstance(model, Decoder | TransformersModel):
        return lambda micro: model(
            micro.inputs_bs, micro.starts_bs, micro.targets_bs, micro.counted_bs
        )
    own = summed_loss(model, user_loss, code)
    return lambda micro: own(micro.inputs_bs, micro.targets_bs, micro.counted_bs)
