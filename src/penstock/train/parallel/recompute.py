"""Activation checkpointing: activations that are recomputed in the backward pass.

"full" keeps only a layer's input. "selective" also keeps the results of attention and of every
other matmul: about half of the matmuls, and norms and the like, are done twice.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from penstock.model.decoder import Decoder
from penstock.model.moe import RunExperts
from penstock.train.parallel.expert import moe_layers

aten = torch.ops.aten
MATMULS = {aten.mm.default, aten.addmm.default, aten._scaled_mm.default}
ATTENTION = {
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    torch.ops.higher_order.flex_attention,
}


def apply_recompute(decoder: Decoder, how: str) -> None:
    """Wrap the layers in place; before they are compiled, so that a graph knows what to keep."""
    if how == "selective":
        for moe in moe_layers([decoder]):
            moe.run_experts = hidden_from_checkpointing(moe.run_experts)
    for layer in decoder.layers.values():
        # Adapters may have dropout, which must throw the same dice again.
        dice = any(getattr(module, "dropout", 0) for module in layer.modules())
        layer.forward = checkpointed_forward(layer.forward, how, dice)


def checkpointed_forward(
    forward: Callable[..., Tensor], how: str, dice: bool
) -> Callable[..., Tensor]:
    """Return a forward that recomputes its activations. `dice`: it uses random numbers, which must
    be the same again.
    """
    extra = {"context_fn": selective_contexts} if how == "selective" else {}

    def checkpointed(*args: Any, **named: Any) -> Tensor:
        call = partial(forward, **named)
        return checkpoint(call, *args, use_reentrant=False, preserve_rng_state=dice, **extra)

    return checkpointed


def hidden_from_checkpointing(run_experts: RunExperts) -> RunExperts:
    """Hide experts from selective checkpointing: all of their work is recomputed.

    Experts that are spread over ranks are an FSDP2 unit of their own inside a layer. FSDP2's work
    around them (gathering, prefetching) differs between the two passes, and torch, which compares
    the passes operator by operator, would report that as an error.
    """

    def call(experts: nn.Module, rows_nd: Tensor, end_e: Tensor) -> Tensor:
        with _disable_current_modes():
            return run_experts(experts, rows_nd, end_e)

    return call


def selective_contexts() -> tuple[Any, Any]:
    """Return fresh contexts for one checkpointed call."""
    return create_selective_checkpoint_contexts(partial(selective_policy, [0, 0]))


def selective_policy(
    matmuls: list[int], context: Any, op: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    """Decide whether a result is kept. `matmuls` counts them in the first and second pass."""
    kept = op in ATTENTION
    if op in MATMULS:
        matmuls[context.is_recompute] += 1
        kept = matmuls[context.is_recompute] % 2 == 1
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
