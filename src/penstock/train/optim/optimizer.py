"""The interface of optimizers."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from penstock.run.schema.train import TrainSection
from penstock.train.optim.adamw import AdamW
from penstock.train.optim.muon import Muon
from penstock.train.parallel.parts import Grads


class Optimizer(Protocol):
    """An optimizer. `moments` is its state by parameter; the entry "master" is the fp32 weight.

    State and masters are laid out over the ranks as the parameters are.
    """

    moments: dict[str, dict[str, Tensor]]
    updates: int

    def prepare(self, grads: Grads) -> None:
        """Do the host's work for an update by these gradients; an update need not follow."""

    def step(self, grads: Grads, rate: float, scale: float) -> None:
        """Update the weights once, by `scale` × gradient (clipping)."""

    def warm_up(self, grads: Grads) -> None:
        """Prepare for gradients such as these, and change nothing."""

    def copy_masters(self) -> None:
        """Copy the masters into the parameters, after they have been loaded."""


_KINDS: dict[str, type[AdamW] | type[Muon]] = {"adamw": AdamW, "muon": Muon}


def build_optimizer(
    params: Mapping[str, nn.Parameter], masters: Mapping[str, Tensor], train: TrainSection
) -> Optimizer:
    """Build the optimizer that the run file names."""
    return _KINDS[train.optimizer](params, masters, train)
