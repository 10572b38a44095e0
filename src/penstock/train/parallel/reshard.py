"""How long FSDP keeps gathered weights and whole gradients inside a step: `layout.reshard`.

After every layer ("layer") a rank has its shards only. With "backward" gathered weights stay until
the last backward pass of a step, and gradients are reduced in every one. With "step" gradients are
summed whole, in the master precision, and reduced behind the last backward pass.
"""

from dataclasses import dataclass

from torch.distributed.fsdp import FSDPModule

from penstock.plan.job.layout import Layout
from penstock.train.parallel.parts import ModelParts
from penstock.train.world.world import World


@dataclass(frozen=True)
class StepResharding:
    """The switch that tells FSDP before each pass whether it is the last of the step."""

    modules: tuple[FSDPModule, ...]
    whole_gradients: bool

    def before_pass(self, last: bool) -> None:
        """Keep weights for the next pass, and gradients if they are summed whole; shard both in the
        last pass, so that the update finds shards.
        """
        for module in self.modules:
            module.set_reshard_after_backward(last)
            if self.whole_gradients:
                module.set_requires_gradient_sync(last)


def step_resharding(parts: ModelParts, layout: Layout, world: World) -> StepResharding | None:
    """Let FSDP keep weights from the forward to the backward pass; None where it shards after every
    layer, or a pipeline's schedule decides.
    """
    if layout.zero == 3 or layout.pipeline > 1 or not world.sharded:
        return None
    roots = tuple(module for module in parts.modules if isinstance(module, FSDPModule))
    for root in roots:
        root.set_reshard_after_forward(False)
    return StepResharding(roots, whole_gradients=layout.zero == 1)
