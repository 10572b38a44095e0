"""Optimizers of one interface, and the schedules of the learning rate."""

import math
from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from penstock.run.schema.train import TrainSection
from penstock.train.optim.adamw import AdamW
from penstock.train.optim.muon import Muon
from penstock.train.parallel.gradients import Grads


class Optimizer(Protocol):
    """`moments` is its state by parameter; "master" in it are the weights in full precision.

    Both are laid out over the ranks as the parameters are.
    """

    moments: dict[str, dict[str, Tensor]]
    updates: int

    def step(self, grads: Grads, rate: float, scale: float) -> None:
        """One update by `scale` × gradient (clipping)."""

    def warm_up(self, grads: Grads) -> None:
        """Gets ready for gradients such as these, and changes nothing."""

    def lower(self) -> None:
        """Writes the masters into the parameters, after they have been loaded."""


def optimizer(
    params: Mapping[str, nn.Parameter], masters: Mapping[str, Tensor], train: TrainSection
) -> Optimizer:
    kind = Muon if train.optimizer == "muon" else AdamW
    return kind(params, masters, train)


def learning_rate(step: int, steps: int, peak: float, train: TrainSection) -> float:
    """The rate of `step` (0-based) of `steps`: a linear warm-up, then cosine or hold-and-decay."""
    warmup = train.warmup.of(steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    last = peak * train.final
    if train.schedule == "cosine":
        done = (step - warmup) / max(1, steps - warmup)
        return last + (peak - last) * 0.5 * (1 + math.cos(math.pi * done))
    decay = max(1, train.decay.of(steps))
    left = steps - step
    return peak if left > decay else last + (peak - last) * left / decay
