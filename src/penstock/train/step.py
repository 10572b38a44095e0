"""One optimizer step, and one pass over the held-out samples."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.meter.clock import StepClock
from penstock.model.build import logits_in, summed_loss, takes_targets, tensors_in
from penstock.train.batch import Micro
from penstock.train.replicas import Replicas, Vote, squared_norm

LossSum = Callable[..., Tensor]  # of (inputs, targets), and for some batches (counted, starts)
NO_TARGET = -100  # what torch's losses leave out of sums and means unless told otherwise


class Stepper:
    """Forward, backward, exchange, vote, update. Holds no state of its own."""

    def __init__(
        self,
        loss_sum: LossSum,
        optimizer: torch.optim.Optimizer,
        replicas: Replicas,
        clip: float,
    ) -> None:
        self.loss_sum, self.optimizer, self.replicas, self.clip = (
            loss_sum,
            optimizer,
            replicas,
            clip,
        )

    def step(
        self,
        batch: list[Micro],
        tokens: int,
        rate: float,
        wishes: dict[str, bool],
        clock: StepClock,
    ) -> Vote:
        """`tokens` counts in the global batch; the loss is a sum over them, divided by it."""
        with clock.part("compute"):
            loss = self.backward(batch, tokens)
        with clock.part("exchange"):
            summed = self.replicas.reduce()
        with clock.part("compute"):
            squares = squared_norm(summed)
        with clock.part("exchange"):
            vote = self.replicas.vote(loss, squares, wishes)
        if vote.good:
            with clock.part("compute"):
                self.update(summed, vote.grad_norm, rate)
        return vote

    def backward(self, batch: list[Micro], tokens: int) -> Tensor:
        """Accumulate gradients of the mean loss over the global batch; this rank's part of it."""
        total = torch.zeros((), device=batch[0].inputs_bs.device, dtype=torch.float64)
        for micro in batch:
            loss = _sum(self.loss_sum, micro) * (micro.weight / tokens)
            loss.backward()
            total += loss.detach()
        return total

    def update(self, summed: list[Tensor], grad_norm: float, rate: float) -> None:
        too_long = 0 < self.clip < grad_norm
        self.replicas.commit(summed, self.clip / grad_norm if too_long else 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()

    def warm_up(self, batch: list[Micro]) -> None:
        """Run the first kernels and allocations before the first step's clock starts."""
        self.backward(batch, 1)
        self.optimizer.zero_grad()


@torch.no_grad()
def summed_over(model: nn.Module, loss_sum: LossSum, batch: list[Micro]) -> Tensor:
    """This rank's part of a loss, without gradients."""
    total = torch.zeros((), device=batch[0].inputs_bs.device, dtype=torch.float64)
    model.eval()
    for micro in batch:
        total += _sum(loss_sum, micro) * micro.weight
    model.train()
    return total


def _sum(loss_sum: LossSum, micro: Micro) -> Tensor:
    if micro.counted_bs is None and micro.starts_bs is None:
        return loss_sum(micro.inputs_bs, micro.targets_bs)
    return loss_sum(micro.inputs_bs, micro.targets_bs, micro.counted_bs, micro.starts_bs)


def counting_loss(model: nn.Module) -> LossSum:
    """The loss of a microbatch as a sum over its targets, or over those that are `counted`.

    With `starts`, where documents begin, no document sees another. Where neither is given it is
    `summed_loss`, to the bit.
    """
    plain, wants = summed_loss(model), takes_targets(model)

    def of(
        inputs_bs: Tensor,
        targets_bs: Tensor,
        counted_bs: Tensor | None = None,
        starts_bs: Tensor | None = None,
    ) -> Tensor:
        if counted_bs is None and starts_bs is None:
            return plain(inputs_bs, targets_bs)
        count: Tensor | int = targets_bs.numel()
        if counted_bs is not None:
            count = counted_bs.sum()
            if wants:  # a mean over nothing is not a number: where nothing counts, any loss × 0 is
                counted_bs = counted_bs | (count == 0)
            targets_bs = targets_bs.masked_fill(~counted_bs, NO_TARGET)
        inputs = (inputs_bs,) if starts_bs is None else (inputs_bs, starts_bs)
        given = tensors_in(model(inputs_bs, targets_bs) if wants else model(*inputs))
        for loss in given:
            if loss.dim() == 0:
                return loss * count
        logits = logits_in(given, inputs_bs)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        flat = targets_bs.flatten()
        return F.cross_entropy(wide.flatten(0, 1), flat, ignore_index=NO_TARGET, reduction="sum")

    return of
