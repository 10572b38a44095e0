"""Faults of a drill that need a rank's own tensors, which `guard/detect/failpoints.py` lacks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import nan

import torch
from torch import Tensor

from penstock.guard.detect.failpoints import Failpoint
from penstock.train.parallel.batch import Micro
from penstock.train.parallel.parts import local

BIT = 20  # of a weight's 32: large enough to matter, small enough to stay a number


@dataclass
class Poison:
    """Makes the next batch one that nobody should train on."""

    factor: float = 1.0

    def taint(self, batch: list[Micro]) -> list[Micro]:
        if self.factor == 1.0:
            return batch
        tainted = [replace(micro, weight=micro.weight * self.factor) for micro in batch]
        self.factor = 1.0
        return tainted


def handlers(
    poison: Poison, weights: Callable[[], dict[str, Tensor]], trained: Callable[[], Tensor]
) -> dict[str, Callable]:
    """By the name of a trap's action. `weights` are the ones that updates are made to; `trained` is
    one that has gradients."""

    def poisoned(factor: float) -> Callable[[Failpoint], None]:
        def set_factor(trap: Failpoint) -> None:
            poison.factor = trap.ms or factor

        return set_factor

    def flip(trap: Failpoint) -> None:
        weight = local(next(iter(weights().values())))
        with torch.no_grad():
            weight.flatten()[:1].view(torch.int32).bitwise_xor_(1 << int(trap.ms or BIT))

    def wrong_gradient(trap: Failpoint) -> None:
        """In one backward pass, an element of a gradient is another."""

        def corrupt(grad: Tensor) -> Tensor:
            hook.remove()
            changed = grad.clone()
            local(changed).flatten()[:1] *= 2
            return changed

        hook = trained().register_hook(corrupt)

    def out_of_memory(trap: Failpoint) -> None:
        raise torch.OutOfMemoryError(f"drill: trap {trap.name}")

    return {
        "nan": poisoned(nan),
        "spike": poisoned(1e3),
        "flip": flip,
        "gradient": wrong_gradient,
        "oom": out_of_memory,
    }
