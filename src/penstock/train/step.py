"""One optimizer step, and one pass over the held-out samples."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from penstock.meter.clock import StepClock
from penstock.train.batch import Micro
from penstock.train.replicas import Replicas, Vote, squared_norm


class Stepper:
    """Forward, backward, exchange, vote, update. Holds no state of its own."""

    def __init__(
        self,
        loss_sum: Callable[[Tensor, Tensor], Tensor],
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
        """`tokens` is the size of the global batch; the loss is a sum over it."""
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
            loss = self.loss_sum(micro.inputs_bs, micro.targets_bs) * (micro.weight / tokens)
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
def summed_over(
    model: nn.Module, loss_sum: Callable[[Tensor, Tensor], Tensor], batch: list[Micro]
) -> Tensor:
    """This rank's part of a loss, without gradients."""
    total = torch.zeros((), device=batch[0].inputs_bs.device, dtype=torch.float64)
    model.eval()
    for micro in batch:
        total += loss_sum(micro.inputs_bs, micro.targets_bs) * micro.weight
    model.train()
    return total
