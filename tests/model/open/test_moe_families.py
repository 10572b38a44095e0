"""Our mixture of experts computes what transformers' blocks of three families do.

Theirs score in float32 even in a float64 model, so that outputs agree to about seven digits.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from penstock.catalog.shapes import ModelShape
from penstock.model.moe import MoE

HIDDEN, EXPERTS, ACTIVE, WIDTH = 24, 8, 3, 12


def shape(**fields: Any) -> ModelShape:
    return ModelShape(
        layers=1,
        hidden=HIDDEN,
        heads=4,
        kv_heads=2,
        ffn=48,
        vocab=50,
        experts=EXPERTS,
        experts_active=ACTIVE,
        expert_ffn=WIDTH,
        **fields,
    )


def mixtral() -> tuple[nn.Module, ModelShape]:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        num_local_experts=EXPERTS,
        num_experts_per_tok=ACTIVE,
    )
    return MixtralSparseMoeBlock(config), shape()


def qwen(normalised: bool) -> tuple[nn.Module, ModelShape]:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import (
        Qwen3MoeConfig,
        Qwen3MoeSparseMoeBlock,
    )

    config = Qwen3MoeConfig(
        hidden_size=HIDDEN,
        moe_intermediate_size=WIDTH,
        num_experts=EXPERTS,
        num_experts_per_tok=ACTIVE,
        norm_topk_prob=normalised,
    )
    return Qwen3MoeSparseMoeBlock(config), shape(router_normalised=normalised)


def dots() -> tuple[nn.Module, ModelShape]:
    from transformers.models.dots1.modeling_dots1 import Dots1Config, Dots1MoE

    config = Dots1Config(
        hidden_size=HIDDEN,
        moe_intermediate_size=WIDTH,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=ACTIVE,
        n_shared_experts=2,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
    )
    return Dots1MoE(config), shape(shared_experts=2, router="sigmoid", routed_scale=2.5)


FAMILIES: dict[str, Callable[[], tuple[nn.Module, ModelShape]]] = {
    "mixtral": mixtral,
    "qwen3": lambda: qwen(normalised=True),
    "qwen3, weights as they are": lambda: qwen(normalised=False),
    "dots1": dots,
}


def ours(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their names and stacks in ours; the same for weights and for gradients."""
    gate_up, down = theirs["experts.gate_up_proj"], theirs["experts.down_proj"]
    out = {"router.weight": theirs["gate.weight"], "experts.down": down}
    out["experts.gate"], out["experts.up"] = gate_up.chunk(2, 1)
    for part in ("gate", "up", "down"):
        if f"shared_experts.{part}_proj.weight" in theirs:
            out[f"shared.{part}.weight"] = theirs[f"shared_experts.{part}_proj.weight"]
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_and_gradients_are_those_of(family: str) -> None:
    block, its_shape = FAMILIES[family]()
    draw = torch.Generator().manual_seed(0)
    block = block.double()
    balance = torch.zeros(EXPERTS)
    with torch.no_grad():
        for param in block.parameters():
            param.normal_(0.0, 0.4, generator=draw)
        if hasattr(block.gate, "e_score_correction_bias"):
            balance.normal_(0.0, 0.3, generator=draw)
            block.gate.e_score_correction_bias.copy_(balance)
    moe = MoE(its_shape).double()
    moe.load_state_dict(ours(dict(block.named_parameters())) | {"balance": balance})
    x_bsd = torch.randn(3, 7, HIDDEN, dtype=torch.float64, generator=draw)
    weigh_bsd = torch.randn(3, 7, HIDDEN, dtype=torch.float64, generator=draw)
    found, expected = moe(x_bsd), block(x_bsd)
    (found * weigh_bsd).sum().backward()
    (expected * weigh_bsd).sum().backward()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    right = ours({n: p.grad for n, p in block.named_parameters() if p.grad is not None})
    grads = {n: p.grad for n, p in moe.named_parameters()}
    assert grads.keys() == right.keys()
    for name, grad in right.items():
        torch.testing.assert_close(grads[name], grad, rtol=1e-4, atol=1e-5, msg=name)
        assert grad.any(), name
