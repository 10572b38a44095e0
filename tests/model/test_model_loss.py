"""The chunked cross-entropy against torch's own, which has all logits at once."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.model import loss as room
from penstock.model.loss import summed_cross_entropy


def plain(x: Tensor, head: Tensor, targets: Tensor, counted: Tensor | None) -> Tensor:
    each = F.cross_entropy((x @ head.T).flatten(0, 1), targets.flatten(), reduction="none")
    return (each if counted is None else each * counted.flatten()).sum()


def drawn(batch: int, sequence: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(batch * 1000 + sequence)
    x = torch.randn(batch, sequence, 12, generator=draw, dtype=torch.float64)
    head = torch.randn(vocab, 12, generator=draw, dtype=torch.float64)
    targets = torch.randint(vocab, (batch, sequence), generator=draw)
    counted = torch.rand(batch, sequence, generator=draw) < 0.4
    return x.to(dtype).requires_grad_(), head.to(dtype).requires_grad_(), targets, counted


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 4),
    sequence=st.integers(1, 200),
    vocab=st.integers(2, 40),
    some=st.booleans(),
)
def test_it_is_cross_entropy_in_any_number_of_chunks(
    batch: int, sequence: int, vocab: int, some: bool
) -> None:
    x, head, targets, counted = drawn(batch, sequence, vocab, torch.float64)
    chosen = counted if some else None
    before, room.CHUNK_ELEMENTS = room.CHUNK_ELEMENTS, 128 * vocab  # chunks of 128 tokens
    try:
        loss = summed_cross_entropy(x, head, targets, chosen)
        found = torch.autograd.grad(loss / 7, (x, head))
    finally:
        room.CHUNK_ELEMENTS = before
    expected = plain(x, head, targets, chosen)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    for one, other in zip(found, torch.autograd.grad(expected / 7, (x, head)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_numbers_are_reckoned_in_fp32(dtype: torch.dtype) -> None:
    x, head, targets, counted = drawn(3, 150, 30, dtype)
    loss = summed_cross_entropy(x, head, targets, counted)
    assert loss.dtype == torch.float32
    found = torch.autograd.grad(loss * 0.3, (x, head))
    wide = [t.detach().double().requires_grad_() for t in (x, head)]
    expected = torch.autograd.grad(plain(*wide, targets, counted) * 0.3, wide)
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert (one.double() - other).norm() < bound * other.norm()


def test_the_factor_of_a_bf16_gradient_is_not_rounded() -> None:
    """1 / 3 in bf16 is off by 0.2 %: every gradient of a batch of 3 tokens would be."""
    x, head, targets, _ = drawn(2, 64, 30, torch.bfloat16)
    thirds, whole = (
        torch.autograd.grad(summed_cross_entropy(x, head, targets) * f, head)[0].double()
        for f in (1 / 3, 1.0)
    )
    assert (thirds.norm() / whole.norm()).item() == pytest.approx(1 / 3, rel=5e-4)


def test_what_is_frozen_gets_no_gradient_and_nothing_is_kept_without() -> None:
    x, head, targets, counted = drawn(2, 50, 30, torch.float64)
    frozen = summed_cross_entropy(x, head.detach(), targets, counted)
    expected = torch.autograd.grad(plain(x, head, targets, counted), x)[0]
    torch.testing.assert_close(torch.autograd.grad(frozen, x)[0], expected)
    with torch.no_grad():
        read = summed_cross_entropy(x, head, targets, counted)
    assert not read.requires_grad
    assert read == frozen.detach()
