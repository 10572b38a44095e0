"""torch.compile of the layers, one by one: they are alike, so that one compilation serves all.

Operations between matmuls and attention become a few kernels. The rest of the decoder has its own
kernels (`model/loss.py`) or is small.
"""

import torch
import torch._functorch.config as partition

from penstock.model.decoder import Decoder
from penstock.model.moe import MoE
from penstock.plan.job.layout import Layout
from penstock.train.world.world import World


def compiles(asked: str, layout: Layout, world: World) -> bool:
    """Return whether layers are compiled; "auto": on CUDA, if no layer waits for other ranks in its
    middle.
    """
    if asked == "auto":
        return world.cuda and layout.tensor == layout.context == 1
    return asked == "on"


def compile_layers(decoder: Decoder) -> None:
    """Compile the layers in place.

    Compiles `forward`, not the layer: the layer's hooks (FSDP2's) do not belong in a graph.
    """
    # What is cheap to compute again (norms, silu × up) is not kept for the backward pass even where
    # a matmul needs it: a fifth of the memory of 1.5B parameters, for half a percent of the time.
    partition.ban_recompute_materialized_backward = False
    for layer in decoder.layers.values():
        # Where experts' rows end is known on the device only, which a graph cannot say.
        part = layer.attention if isinstance(layer.ffn, MoE) else layer
        part.forward = torch.compile(part.forward)
