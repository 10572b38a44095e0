"""The outer optimizer of local steps: SGD with Nesterov momentum on the mean difference.

Its gradient is how far the replicas have moved away from the anchor, the weights that they last
agreed on: anchor minus weights. With rate 1 and momentum 0 the anchor becomes the replicas' mean.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Nesterov:
    """Rate and momentum of the outer steps."""

    rate: float = 1.0
    momentum: float = 0.3

    @torch.no_grad()
    def step(self, anchor: Tensor, velocity: Tensor, difference: Tensor) -> None:
        """Move the anchor by the mean difference, in place; `velocity` is the running sum."""
        velocity.mul_(self.momentum).add_(difference)
        anchor.add_(difference, alpha=-self.rate)
        if self.momentum:
            anchor.add_(velocity, alpha=-self.rate * self.momentum)
