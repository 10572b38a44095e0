"""One optimizer step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from penstock.guard.detect.pulse import Pulse
from penstock.meter.clock import StepClock
from penstock.train.optim.optimizer import Optimizer
from penstock.train.parallel.batch import Micro
from penstock.train.parallel.expert import Balancer
from penstock.train.parallel.gradients import Gradients
from penstock.train.parallel.runner import Runner
from penstock.train.replicas.reduce import Replicas, Vote, squared_norm


@dataclass
class Stepper:
    """Forward, backward, exchange, vote, update. Holds no state of its own."""

    runner: Runner
    gradients: Gradients
    optimizer: Optimizer
    replicas: Replicas
    clip: float
    shares: Mapping[str, float]  # of a gradient's squared norm that this rank answers for
    balancer: Balancer  # evens out the experts of a mixture
    pulse: Pulse | None = None  # says where in a step the rank is
    # Asked before weights change: what is still being copied of them must be through.
    before_update: Callable[[], None] = field(default=lambda: None)
    # What a forward pass may change: loads of experts, running statistics.
    buffers: Callable[[], Sequence[Tensor]] = field(default=tuple)
    _before: list[Tensor] = field(default_factory=list)  # their values at the start of a step

    def step(
        self,
        batch: list[Micro],
        tokens: int,
        rate: float,
        wishes: dict[str, bool],
        clock: StepClock,
        accept: Callable[[Vote], bool] = lambda vote: vote.good,
    ) -> Vote:
        """`tokens` counts in the global batch; the loss is a sum over them, divided by it.

        `accept` looks at what all ranks agreed on and says whether weights may change by it.
        """
        with clock.part("compute"):
            self._at("forward")
            self.begin()
            loss = self.backward(batch, tokens)
            grads = self.gradients.collect()
            self.runner.settle(grads)
        with clock.part("exchange"):
            self._at("reduce")
            summed = self.replicas.reduce(grads)
            self.balancer.exchange()
        with clock.part("compute"):
            squares = squared_norm(summed, self.shares)
        self.runner.drain(clock)
        with clock.part("exchange"):
            self._at("vote")
            vote = self.replicas.vote(loss, squares, wishes)
        self._at("voted")
        if accept(vote):
            with clock.part("held"):
                self.before_update()
            with clock.part("compute"):
                self._at("update")
                self.update(summed, vote.grad_norm, rate)
                self.balancer.apply()
            self._before = []  # there is no way back from here
            self._at("updated")
        else:
            self.take_back()
        return vote

    def begin(self) -> None:
        """Before the first forward pass of a step, or of a trial of one."""
        self._before = [buffer.clone() for buffer in self.buffers()]

    def take_back(self) -> None:
        """Leaves no trace of the step that was begun last, unless it was taken."""
        self.gradients.clear()
        if self._before:
            for buffer, value in zip(self.buffers(), self._before, strict=True):
                buffer.copy_(value)
        self._before = []

    def _at(self, phase: str) -> None:
        if self.pulse:
            self.pulse.at(phase)

    def backward(self, batch: list[Micro], tokens: int) -> Tensor:
        return self.runner.backward(batch, tokens)

    def update(self, summed: dict[str, Tensor], grad_norm: float, rate: float) -> None:
        too_long = 0 < self.clip < grad_norm
        self.replicas.commit()
        self.optimizer.step(summed, rate, self.clip / grad_norm if too_long else 1.0)
        self.gradients.clear()

    def warm_up(self, batch: list[Micro]) -> None:
        """Run the first kernels and allocations before the first step's clock starts."""
        self.begin()
        self.backward(batch, 1)
        grads = self.gradients.collect()
        squared_norm(grads, self.shares)
        self.optimizer.warm_up(grads)
        self.take_back()
