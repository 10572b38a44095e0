"""One optimizer step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from penstock.meter.clock import StepClock
from penstock.train.batch import Micro
from penstock.train.gradients import Gradients
from penstock.train.optimizer import Optimizer
from penstock.train.replicas import Replicas, Vote, squared_norm
from penstock.train.runner import Runner


@dataclass
class Stepper:
    """Forward, backward, exchange, vote, update. Holds no state of its own."""

    runner: Runner
    gradients: Gradients
    optimizer: Optimizer
    replicas: Replicas
    clip: float
    shares: Mapping[str, float]  # of a gradient's squared norm that this rank answers for
    balance: Callable[[], None]  # what evens out the experts of a mixture, after an update

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
            grads = self.gradients.collect()
            self.runner.settle(grads)
        with clock.part("exchange"):
            summed = self.replicas.reduce(grads)
        with clock.part("compute"):
            squares = squared_norm(summed, self.shares)
        with clock.part("exchange"):
            vote = self.replicas.vote(loss, squares, wishes)
        if vote.good:
            with clock.part("compute"):
                self.update(summed, vote.grad_norm, rate)
            with clock.part("exchange"):
                self.balance()
        return vote

    def backward(self, batch: list[Micro], tokens: int) -> Tensor:
        return self.runner.backward(batch, tokens)

    def update(self, summed: dict[str, Tensor], grad_norm: float, rate: float) -> None:
        too_long = 0 < self.clip < grad_norm
        self.replicas.commit()
        self.optimizer.step(summed, rate, self.clip / grad_norm if too_long else 1.0)
        self.gradients.clear()

    def warm_up(self, batch: list[Micro]) -> None:
        """Run the first kernels and allocations before the first step's clock starts."""
        self.backward(batch, 1)
        grads = self.gradients.collect()
        squared_norm(grads, self.shares)
        self.optimizer.warm_up(grads)
        self.gradients.clear()
