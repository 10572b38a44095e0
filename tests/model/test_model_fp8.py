"""fp8 matmuls: near the exact product, whatever the scale, and only where they belong."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from penstock.catalog.shapes import ModelShape
from penstock.model.decoder import Decoder
from penstock.model.fp8 import (
    E4M3,
    E5M2,
    Fp8Linear,
    cast_scaled,
    convert_linears_to_fp8,
    fp8_linear,
)


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.fixture(scope="module", autouse=True)
def strict() -> Iterator[None]:
    """What a GPU takes: a CPU multiplies matrices of any size."""
    real = torch._scaled_mm

    def strict_mm(a: torch.Tensor, b: torch.Tensor, *rest: object, **more: object) -> torch.Tensor:
        assert a.shape[1] % 16 == b.shape[0] % 16 == b.shape[1] % 16 == 0
        assert a.is_contiguous()
        assert b.T.is_contiguous()
        return real(a, b, *rest, **more)

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
