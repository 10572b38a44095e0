"""The parts of one optimizer step. `train/loop.py` puts them in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from penstock.guard.detect.pulse import Pulse
from penstock.meter.clock import StepClock
from penstock.train.optim.optimizer import Optimizer
from penstock.train.parallel.batch import Micro
from penstock.train.parallel.expert import Balancer
from penstock.train.parallel.gradients import Gradients, Grads
from penstock.train.parallel.runner import Runner
from penstock.train.replicas.reduce import Replicas, Vote, squared_norm


@dataclass
class Stepper:
    """Forward, backward, reduce, vote and update of one rank.

    Until the update a step can be discarded without a trace: gradients are summed out of place, and
    buffers that a forward pass changes (loads of experts, running statistics) are kept aside.
    """

    runner: Runner
    gradients: Gradients
    optimizer: Optimizer
    replicas: Replicas
    clip: float
    shares: Mapping[str, float]  # of a gradient's squared norm that this rank counts
    balancer: Balancer  # evens out the experts of a mixture
    # The tensors that a forward pass may change.
    buffers: Callable[[], Sequence[Tensor]] = field(default=tuple)
    pulse: Pulse | None = None  # tells the supervisor where in a step the rank is
    _buffers_before: list[Tensor] = field(default_factory=list)  # their values before the step

    def forward_backward(
        self, batch: list[Micro], tokens: int, clock: StepClock
    ) -> tuple[Tensor, Grads]:
        """Compute the loss and the gradients of this replica.

        `tokens` counts in the global batch; the loss is a sum over them, divided by it.
        """
        with clock.part("compute"):
            self._at("forward")
            self.begin()
            loss = self.runner.backward(batch, tokens)
            grads = self.gradients.collect()
            self.runner.settle(grads)
        return loss, grads

    def reduce(self, grads: Grads, clock: StepClock) -> Grads:
        """Sum the gradients over the replicas, out of place."""
        with clock.part("exchange"):
            self._at("reduce")
            summed = self.replicas.reduce(grads)
            self.balancer.exchange()
        return summed

    def vote(
        self, loss: Tensor, summed: Grads, requests: dict[str, bool], clock: StepClock
    ) -> Vote:
        """Agree with all ranks on the loss, the gradient norm and what to do after the step."""
        with clock.part("compute"):
            squares = squared_norm(summed, self.shares)
        self.runner.drain(clock)
        with clock.part("exchange"):
            self._at("vote")
            vote = self.replicas.vote(loss, squares, requests)
        self._at("voted")
        return vote

    def update(self, summed: Grads, grad_norm: float, rate: float, clock: StepClock) -> None:
        """Clip the gradients and change the weights. There is no way back from here."""
        with clock.part("compute"):
            self._at("update")
            too_long = 0 < self.clip < grad_norm
            self.replicas.commit()
            self.optimizer.step(summed, rate, self.clip / grad_norm if too_long else 1.0)
            self.gradients.clear()
            self.balancer.apply()
        self._buffers_before = []
        self._at("updated")

    def begin(self) -> None:
        """Keep the buffers aside before the first forward pass of a step, or of a trial of one."""
        self._buffers_before = [buffer.clone() for buffer in self.buffers()]

    def discard(self) -> None:
        """Remove every trace of the step that was begun last, unless it has updated weights."""
        self.gradients.clear()
        if self._buffers_before:
            for buffer, value in zip(self.buffers(), self._buffers_before, strict=True):
                buffer.copy_(value)
        self._buffers_before = []

    def warm_up(self, batch: list[Micro]) -> None:
        """Run the first kernels and allocations before the first step's clock starts."""
        self.begin()
        self.runner.backward(batch, 1)
        grads = self.gradients.collect()
        squared_norm(grads, self.shares)
        self.optimizer.warm_up(grads)
        self.discard()

    def _at(self, phase: str) -> None:
        if self.pulse:
            self.pulse.at(phase)


def unguarded_step(
    stepper: Stepper, batch: list[Micro], tokens: int, rate: float, clock: StepClock
) -> Vote:
    """Do a whole step that only its vote can refuse. Benchmarks and tests compare such steps."""
    loss, grads = stepper.forward_backward(batch, tokens, clock)
    summed = stepper.reduce(grads, clock)
    vote = stepper.vote(loss, summed, {}, clock)
    if vote.good:
        stepper.update(summed, vote.grad_norm, rate, clock)
    else:
        stepper.discard()
    return vote
