"""fp8 matmuls: near the exact product, whatever the scale, and only where they belong."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from penstock.catalog.shapes import ModelShape
from penstock.model.adapter.lora import FP8_KINDS, Fp8LoraLinear, add_adapters
from penstock.model.decoder import Decoder
from penstock.model.fp8 import (
    E4M3,
    E5M2,
    Fp8Linear,
    cast_scaled,
    convert_linears_to_fp8,
    fp8_linear,
)
from penstock.run.schema.adapter import AdapterSection


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.fixture(scope="module", autouse=True)
def strict() -> Iterator[None]:
    """Refuse what a GPU refuses; multiply in fp32, which every CPU can.

    torch's own product on a CPU takes matrices of any size, and fails on Intel CPUs that oneDNN is
    held to AVX2 on. What a GPU multiplies is tested on one (test_speed_gpu.py).
    """

    def strict_mm(
        a: torch.Tensor,
        b: torch.Tensor,
        a_scale: torch.Tensor,
        b_scale: torch.Tensor,
        *,
        out_dtype: torch.dtype,
        use_fast_accum: bool,
    ) -> torch.Tensor:
        assert a.shape[1] % 16 == b.shape[0] % 16 == b.shape[1] % 16 == 0
        assert a.is_contiguous()
        assert b.T.is_contiguous()
        return ((a.float() @ b.float()) * (a_scale * b_scale)).to(out_dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_scaled_mm", strict_mm)
        yield


@settings(max_examples=15, deadline=None)
@given(scale=st.integers(-30, 30), tokens=st.sampled_from([1, 16, 100]), seed=st.integers(0, 99))
def test_products_and_gradients_are_near(scale: int, tokens: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = (torch.randn(tokens, 64, generator=draw) * 2.0**scale).bfloat16().requires_grad_()
    weight = torch.randn(32, 64, generator=draw).bfloat16().requires_grad_()
    given_back = (torch.randn(tokens, 32, generator=draw) * 2.0**-scale).bfloat16()
    y = fp8_linear(x, weight)
    found = torch.autograd.grad(y, (x, weight), given_back)
    assert off(y, x.double() @ weight.double().T) < 0.06
    assert off(found[0], given_back.double() @ weight.double()) < 0.09
    assert off(found[1], given_back.double().T @ x.double()) < 0.09


@pytest.mark.parametrize("kind", [E4M3, E5M2])
def test_the_largest_comes_to_the_end_of_the_range(kind: torch.dtype) -> None:
    x = torch.tensor([[3.0, -700.0, 0.0]])
    small, scale = cast_scaled(x, kind)
    assert small.float().abs().max() == torch.finfo(kind).max
    torch.testing.assert_close(small.float() * scale, x, rtol=0.13, atol=0.0)
    nothing, _ = cast_scaled(torch.zeros(2, 2), kind)
    assert nothing.float().eq(0).all()


def test_only_plain_matrices_of_the_layers_change() -> None:
    shape = ModelShape(layers=1, hidden=32, heads=2, kv_heads=2, ffn=40, vocab=64)
    decoder = Decoder(shape)
    convert_linears_to_fp8(decoder.layers)
    kinds = {n: type(m) for n, m in decoder.named_modules() if isinstance(m, nn.Linear)}
    assert kinds.pop("head") is nn.Linear
    # 40 is no multiple of 16.
    assert {name.rpartition(".")[2] for name, kind in kinds.items() if kind is Fp8Linear} == set(
        "qkv"
    ) | {"out"}


def test_an_adapter_beside_a_frozen_fp8_matrix_learns_as_beside_a_16_bit_one() -> None:
    shape = ModelShape(layers=2, hidden=32, heads=2, kv_heads=2, ffn=48, vocab=64)
    section = AdapterSection(rank=4)
    tokens = torch.arange(40).view(2, 20) % 64
    found: dict[bool, dict[str, torch.Tensor]] = {}
    for narrow in (False, True):
        torch.manual_seed(0)
        decoder = Decoder(shape).bfloat16()
        add_adapters(decoder, section)
        adapters = {n: p for n, p in decoder.named_parameters() if p.requires_grad}
        for param in adapters.values():
            nn.init.normal_(param, std=0.1)
        if narrow:
            convert_linears_to_fp8(decoder.layers, kinds=FP8_KINDS)
            kinds = {type(m) for m in decoder.layers.modules() if isinstance(m, nn.Linear)}
            assert kinds == {Fp8LoraLinear}
        loss = decoder(tokens[:, :-1], targets_bs=tokens[:, 1:])
        loss.backward()
        assert {n for n, p in decoder.named_parameters() if p.grad is not None} == adapters.keys()
        found[narrow] = {n: p.grad for n, p in adapters.items() if p.grad is not None}
        found[narrow]["loss"] = loss.detach()
    for name, gradient in found[False].items():
        assert off(found[True][name], gradient.double()) < 0.2, name


def test_a_frozen_fp8_matrix_keeps_no_input_for_the_backward_pass() -> None:
    kept: list[torch.Tensor] = []
    x = torch.randn(16, 64, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(32, 64, dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = fp8_linear(x, weight)
    assert [t.data_ptr() for t in kept] == [weight.data_ptr()]
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert off(dx, torch.ones_like(y).double() @ weight.double()) < 0.09
