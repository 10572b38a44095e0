"""The parts of one optimizer step. `train/loop.py` puts them in order."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from penstock.guard.detect.pulse import Pulse
from penstock.meter.clock import StepClock
from penstock.run.schema.train import TrainSection
from penstock.train.optim.optimizer import Optimizer
from penstock.train.parallel.expert import ExpertBalancer
from penstock.train.parallel.microbatch import Microbatch
from penstock.train.parallel.parts import Gradients, Grads
from penstock.train.parallel.runner import Runner
from penstock.train.replicas.reduce import ReplicaReducer, Vote, squared_norm


@dataclass(frozen=True)
class LearningRate:
    """The learning rate of every step: a linear warm-up, then cosine or hold-and-decay."""

    peak: float
    final: float  # at the end of the run
    schedule: str
    steps: int  # of the whole run
    warmup_steps: int
    decay_steps: int  # of the "wsd" schedule

    @classmethod
    def of(cls, train: TrainSection, peak: float, steps: int) -> "LearningRate":
        """Return the schedule of a run of so many steps."""
        warmup, decay = train.warmup.of(steps), max(1, train.decay.of(steps))
        return cls(peak, peak * train.final, train.schedule, steps, warmup, decay)

    def at(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.schedule == "cosine":
            done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
            return self.final + (self.peak - self.final) * 0.5 * (1 + math.cos(math.pi * done))
        left = self.steps - step
        if left > self.decay_steps:
            return self.peak
        return self.final + (self.peak - self.final) * left / self.decay_steps


@dataclass
class Stepper:
    """Forward, backward, reduce, vote and update of one rank.

    Until the update a step can be discarded without a trace: gradients are summed out of place, and
    buffers that a forward pass changes (loads of experts, running statistics) are kept aside.
    """

    runner: Runner
    gradients: Gradients
    optimizer: Optimizer
    replicas: ReplicaReducer
    clip: float
    shares: Mapping[str, float]  # of a gradient's squared norm that this rank counts
    balancer: ExpertBalancer | None  # evens out the experts of a mixture
    # The tensors that a forward pass may change.
    buffers: Callable[[], Sequence[Tensor]] = field(default=tuple)
    pulse: Pulse | None = None  # tells the supervisor where in a step the rank is
    _buffers_before: list[Tensor] = field(default_factory=list)  # their values before the step

    def forward_backward(
        self, batch: list[Microbatch], tokens: int, clock: StepClock
    ) -> tuple[Tensor, Grads]:
        """Compute the loss and the gradients of this replica.

        `tokens` counts in the global batch; the loss is a sum over them, divided by it.
        """
        with clock.part("compute"):
            self._at("forward")
            self.begin()
            loss = self.runner.backward(batch, tokens)
            grads = self.gradients.collect()
            self.runner.add_shared_gradients(grads)
        return loss, grads

    def reduce(self, grads: Grads, clock: StepClock) -> Grads:
        """Sum the gradients over the replicas, out of place."""
        with clock.part("exchange"):
            self._at("reduce")
            summed = self.replicas.reduce(grads)
            if self.balancer:
                self.balancer.exchange()
        return summed

    def vote(
        self, loss: Tensor, summed: Grads, requests: dict[str, bool], clock: StepClock
    ) -> Vote:
        """Agree with all ranks on the loss, the gradient norm and what to do after the step."""
        with clock.part("compute"):
            squares = squared_norm(summed, self.shares)
            # While the device is busy: after the vote it would wait for the host.
            self.optimizer.prepare(summed)
        self.runner.wait_for_stages(clock)
        with clock.part("exchange"):
            self._at("vote")
            vote = self.replicas.vote(loss, squares, requests, self.runner.figures())
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
            if self.balancer:
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

    def warm_up(self, batch: list[Microbatch]) -> None:
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


def seed_step(seed: int, step: int, data_rank: int) -> None:
    """Seed torch for the random numbers of one step (dropout).

    They follow from (seed, step, data rank) alone: nothing has to be saved, and another rank can
    draw the same.
    """
    drawn = xxh3_64_intdigest(f"{seed}:{step}:{data_rank}".encode()) >> 1
    # Not `torch.manual_seed`: where CUDA is not used it formats a traceback at every call.
    torch.default_generator.manual_seed(drawn)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(drawn)


def unguarded_step(
    stepper: Stepper, batch: list[Microbatch], tokens: int, rate: float, clock: StepClock
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
