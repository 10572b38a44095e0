"""Optimizers of one interface, and the schedules of the learning rate."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from penstock.run.schema.train import TrainSection
from penstock.train.optim.adamw import AdamW
from penstock.train.optim.muon import Muon
from penstock.train.parallel.parts import Grads


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

    def copy_masters(self) -> None:
        """Writes the masters into the parameters, after they have been loaded."""


def build_optimizer(
    params: Mapping[str, nn.Parameter], masters: Mapping[str, Tensor], train: TrainSection
) -> Optimizer:
    kind = Muon if train.optimizer == "muon" else AdamW
    return kind(params, masters, train)
