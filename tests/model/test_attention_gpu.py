"""Latent attention and sinks on CUDA: the same loss and gradients as on a CPU in float64.

python -m pytest -m gpu tests/model/test_attention_gpu.py
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from penstock.catalog.rope import YarnScaling
from penstock.catalog.shapes import ModelShape
from penstock.model import layers
from penstock.model.decoder import Decoder

pytestmark = pytest.mark.gpu
BASE = ModelShape(layers=2, hidden=128, heads=4, kv_heads=4, ffn=256, vocab=500)
SHAPES = {
    "latent": replace(
        BASE,
        q_rank=64,
        kv_rank=48,
        rope_dim=64,
        nope_dim=128,
        v_dim=128,
        rope_pairs=True,
        rope_scaling=YarnScaling(4.0, 32.0, 1.0, 64, 1.1, 1.0, 0.7),
    ),
    "sinks": replace(
        BASE,
        kv_heads=2,
        head_dim=64,
        sinks=True,
        window=100,
        full_layers=(1,),
        attention_bias=True,
        out_bias=True,
        experts=8,
        experts_active=8,  # all, so that no near tie decides
        expert_ffn=64,
        expert_bias=True,
        activation="clamped",
    ),
}
# Angles are float32, as open models were trained, and devices differ in their last bits.
NEAR = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.1}


def loss_and_gradients(
    model: Decoder, tokens: Tensor, starts: Tensor | None
) -> tuple[float, dict[str, Tensor]]:
    targets = tokens[:, 1:]
    loss = model(tokens[:, :-1], starts, targets_bs=targets) / targets.numel()
    loss.backward()
    return loss.item(), {n: p.grad.double().cpu() for n, p in model.named_parameters()}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_a_gpu_computes_what_a_cpu_does(
    name: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = SHAPES[name]
    torch.manual_seed(0)
    expected = Decoder(shape).double()
    for part, param in expected.named_parameters():
        if part.endswith(("sinks", "bias")):
            torch.nn.init.normal_(param, std=0.5)
    tokens = torch.randint(0, 500, (2, 513))
    starts = torch.zeros(2, 512, dtype=torch.bool)
    starts[0, [0, 100, 300]] = starts[1, [0, 250]] = True
    loss, gradients = loss_and_gradients(expected, tokens, starts if packed else None)
    for dtype, how in (
        (torch.float64, "eager"),
        (torch.float32, "eager"),
        (torch.bfloat16, "eager"),
        (torch.bfloat16, "compiled"),
        (torch.bfloat16, "as before Hopper"),  # values padded for Flash
    ):
        if how == "as before Hopper":
            monkeypatch.setattr(layers, "_cudnn_has_two_widths", lambda q_bhse: False)
        model = Decoder(shape).to("cuda", dtype)
        model.load_state_dict(expected.state_dict())
        if how == "compiled":
            for layer in model.layers.values():
                layer.attention.forward = torch.compile(layer.attention.forward)
        given = starts.cuda() if packed else None
        found, grads = loss_and_gradients(model, tokens.cuda(), given)
        assert found == pytest.approx(loss, rel=NEAR[dtype] / 10), (dtype, how)
        for part, grad in grads.items():
            off = (grad - gradients[part]).norm() / gradients[part].norm()
            assert off < NEAR[dtype], (dtype, how, part)
