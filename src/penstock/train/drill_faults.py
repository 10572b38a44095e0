"""Faults of a drill that need a rank's own tensors; the others are in `guard/detect`."""

from collections.abc import Callable
from math import nan

import torch
from torch import Tensor

from penstock.guard.detect.failpoints import Failpoint
from penstock.guard.detect.pulse import Pulse
from penstock.train.batches import Batches
from penstock.train.engine import Engine
from penstock.train.parallel.parts import local_tensor
from penstock.train.state import weight_tensors

BIT = 20  # of a weight's 32: large enough to matter, small enough to stay a number


def arm_drill_faults(pulse: Pulse, batches: Batches, engine: Engine) -> None:
    """Let the traps of a drill do what needs tensors, by the name of a trap's action."""
    if not pulse.failpoints:
        return

    def poisoned(factor: float) -> Callable[[Failpoint], None]:
        def set_factor(trap: Failpoint) -> None:
            batches.poison.factor = trap.ms or factor

        return set_factor

    def flip(trap: Failpoint) -> None:
        # The weights that updates are made to.
        weight = local_tensor(next(iter(weight_tensors(engine.parts, engine.optimizer).values())))
        with torch.no_grad():
            weight.flatten()[:1].view(torch.int32).bitwise_xor_(1 << int(trap.ms or BIT))

    def wrong_gradient(trap: Failpoint) -> None:
        """Corrupt one element of one gradient, in one backward pass."""

        def corrupt(grad: Tensor) -> Tensor:
            hook.remove()
            changed = grad.clone()
            local_tensor(changed).flatten()[:1] *= 2
            return changed

        hook = next(iter(engine.parts.trained().values())).register_hook(corrupt)

    def out_of_memory(trap: Failpoint) -> None:
        raise torch.OutOfMemoryError(f"drill: trap {trap.name}")

    pulse.failpoints.handlers |= {
        "nan": poisoned(nan),
        "spike": poisoned(1e3),
        "flip": flip,
        "gradient": wrong_gradient,
        "oom": out_of_memory,
    }
