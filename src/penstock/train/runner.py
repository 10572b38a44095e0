"""How microbatches go through the model: the plain way, when every rank holds all of its layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.model.build import logits_in, summed_loss, takes_targets, tensors_in
from penstock.model.decoder import Decoder
from penstock.train.batch import Micro
from penstock.train.gradients import Grads
from penstock.train.parts import Parts

NO_TARGET = -100  # what torch's losses leave out of sums and means unless told otherwise


class Runner(Protocol):
    """What ranks return adds up over all of them to the value of the global batch."""

    def backward(self, batch: list[Micro], tokens: int) -> Tensor:
        """Accumulate gradients of the mean loss over the global batch; this rank's part of it."""

    def settle(self, grads: Grads) -> None:
        """What is left to add up inside a replica once all microbatches are through."""

    def evaluate(self, batch: list[Micro]) -> Tensor:
        """This rank's part of a summed loss, without gradients."""

    def logits(self, tokens_bs: Tensor) -> Tensor:
        """The same on every rank, all of which must ask."""


@dataclass
class Plain:
    parts: Parts
    ways: int = 1  # ranks that come to the same loss together
    cut: Callable[[Micro], Micro] | None = None  # this rank's pieces of the sequences
    joined: Callable[[Tensor], Tensor] | None = None  # the pieces of all ranks, in order

    def __post_init__(self) -> None:
        self.loss_sum = loss_of(self.parts.whole)

    def backward(self, batch: list[Micro], tokens: int) -> Tensor:
        total = torch.zeros((), device=batch[0].inputs_bs.device, dtype=torch.float64)
        for micro in batch:
            loss = self.loss_sum(self._own(micro)) * (micro.weight / tokens)
            loss.backward()
            total += loss.detach()
        return total / self.ways

    def settle(self, grads: Grads) -> None:
        pass

    @torch.no_grad()
    def evaluate(self, batch: list[Micro]) -> Tensor:
        total = torch.zeros((), device=batch[0].inputs_bs.device, dtype=torch.float64)
        self.parts.train(False)
        for micro in batch:
            total += self.loss_sum(self._own(micro)) * micro.weight
        self.parts.train()
        return total / self.ways

    @torch.no_grad()
    def logits(self, tokens_bs: Tensor) -> Tensor:
        inputs_bs = self._own(Micro(tokens_bs, tokens_bs, 0.0)).inputs_bs
        logits_bsv = logits_in(tensors_in(self.parts.whole(inputs_bs)), inputs_bs)
        return self.joined(logits_bsv) if self.joined else logits_bsv

    def _own(self, micro: Micro) -> Micro:
        return self.cut(micro) if self.cut else micro


def loss_of(model: nn.Module) -> Callable[[Micro], Tensor]:
    """The loss of a microbatch as a sum over its targets that count."""
    if isinstance(model, Decoder):
        return lambda micro: model(
            micro.inputs_bs, micro.starts_bs, micro.targets_bs, micro.counted_bs
        )
    plain, wants = summed_loss(model), takes_targets(model)

    def of(micro: Micro) -> Tensor:
        inputs_bs, targets_bs, counted_bs = micro.inputs_bs, micro.targets_bs, micro.counted_bs
        if counted_bs is None:
            return plain(inputs_bs, targets_bs)
        count = counted_bs.sum()
        if wants:  # a mean over nothing is not a number: where nothing counts, any loss × 0 is
            counted_bs = counted_bs | (count == 0)
        targets_bs = targets_bs.masked_fill(~counted_bs, NO_TARGET)
        given = tensors_in(model(inputs_bs, targets_bs) if wants else model(inputs_bs))
        for loss in given:
            if loss.dim() == 0:
                return loss * count
        logits = logits_in(given, inputs_bs)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        flat = targets_bs.flatten()
        return F.cross_entropy(wide.flatten(0, 1), flat, ignore_index=NO_TARGET, reduction="sum")

    return of
