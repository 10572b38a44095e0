"""torch.compile of the layers, one by one: they are alike, so that one compilation serves all.

Operations between matmuls and attention become a few kernels. The rest of the decoder has its own
kernels (`model/loss.py`) or is small.
"""

from collections.abc import Callable
from functools import wraps

import torch
import torch._functorch.config as partition
from torch import Tensor

from penstock.model.decoder import Attention, Decoder
from penstock.model.joint import JointWeights
from penstock.model.layers import SwiGLU
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
    # Cheap operations (norms, silu × up) are computed again in the backward pass even where a
    # matmul needs them: saves a fifth of the memory of 1.5B parameters for half a percent of time.
    partition.ban_recompute_materialized_backward = False
    for layer in decoder.layers.values():
        # Where experts' rows end is known on the device only, which a graph cannot say.
        part = layer.attention if isinstance(layer.ffn, MoE) else layer
        part.forward = shared_graph(torch.compile(part.forward))


def join_projections(decoder: Decoder) -> None:
    """Let the compiled layers compute projections of one input together, in place.

    The weights must have their memory and number format already. Outside of `torch.compile` it
    would be no faster.
    """
    for layer in decoder.layers.values():
        found: list[JointWeights] = []
        for part in (layer.attention, layer.ffn):
            if isinstance(part, Attention | SwiGLU):
                found += part.join()
        if found:
            part = layer.attention if isinstance(layer.ffn, MoE) else layer
            part.forward = _joined(part.forward, found)


def _joined(forward: Callable[..., Tensor], found: list[JointWeights]) -> Callable[..., Tensor]:
    """Look at the memory of the parameters before each pass: one that was given other memory would
    be trained without effect.
    """

    @wraps(forward)
    def checked(*given: object) -> Tensor:
        assert all(joint.in_place for joint in found), "a joint weight was given other memory"
        return forward(*given)

    return checked


def shared_graph(compiled: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let evaluation run the graph of training, where its inputs have a shape of training.

    Without gradients the layer would be compiled a second time, and the first evaluation would wait
    for that. Tensors that the graph keeps for a backward pass are freed with the layer's output.
    """
    trained: set[torch.Size] = set()

    @wraps(compiled)
    def forward(x_bsd: Tensor, *others: object) -> Tensor:
        if torch.is_grad_enabled():
            trained.add(x_bsd.shape)
        elif x_bsd.shape in trained:
            with torch.enable_grad():  # an input of training has a gradient
                return compiled(x_bsd.detach().requires_grad_(), *others).detach()
        return compiled(x_bsd, *others)

    return forward
