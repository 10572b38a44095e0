"""The Triton kernels against plain formulas, on a CPU: Triton's interpreter runs them.

Run with `make test-kernels`, which puts Triton where Python finds it and sets TRITON_INTERPRET=1.
The same kernels as compiled for a GPU, and how fast they are: `tests/train/test_speed_gpu.py`.
"""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.model.layers import apply_rotary

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs Triton's interpreter: make test-kernels", allow_module_level=True)

from penstock.model.kernels import embedding, joint, loss, transpose
from penstock.train.optim import adamw_kernel
from penstock.train.optim.adamw_kernel import FusedAdamW

DTYPES = [torch.float32, torch.bfloat16]
LEAST = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


def off(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def drawn(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("some", [True, False])
def test_logits_become_the_gradient_of_cross_entropy(dtype: torch.dtype, some: bool) -> None:
    logits = drawn(6, 5003, dtype=dtype)
    targets = torch.tensor([0, 5002, 17, 17, 4096, 1])
    counted = torch.tensor([1, 0, 1, 1, 0, 1]) == 1 if some else None
    exact = logits.double().requires_grad_()
    each = F.cross_entropy(exact, targets, reduction="none")
    expected = each if counted is None else each * counted
    (gradient,) = torch.autograd.grad(expected.sum(), exact)
    found = loss.to_gradients_(logits, targets, counted)
    torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    assert off(logits, gradient) < LEAST[dtype]
    scaled = loss.scale_to(logits, torch.tensor(0.37), torch.float32)
    assert off(scaled, logits.double() * 0.37) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [40, 2100])
def test_rows_of_equal_words_are_summed(dtype: torch.dtype, width: int) -> None:
    tokens = torch.randint(9, (3, 20), generator=torch.Generator().manual_seed(0))
    tokens[:2, :15] = 7  # a word that comes often
    given = drawn(3, 20, width, dtype=dtype)
    expected = torch.zeros(12, width, dtype=torch.float64)
    expected.index_add_(0, tokens.flatten(), given.double().flatten(0, 1))
    found = embedding.table_gradient(given, tokens, 12)
    assert off(found, expected) < LEAST[dtype]
    assert not found[9:].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("back", [False, True])
def test_columns_are_rotated_in_place_of_a_wider_tensor(dtype: torch.dtype, back: bool) -> None:
    batch, sequence, heads, width, more = 2, 5, 3, 16, 24
    angle = drawn(sequence, width // 2)
    cos_sin = torch.stack((angle.cos(), angle.sin()))
    source = drawn(batch, sequence, heads * width + more, dtype=dtype)
    target = torch.zeros_like(source)
    joint.rotate(source, target, cos_sin, width, heads * width, back)
    used = torch.stack((angle.cos(), -angle.sin() if back else angle.sin())).double()
    turned = source[..., : heads * width].double().unflatten(-1, (heads, width))
    expected = apply_rotary(turned, used).flatten(-2)
    assert off(target[..., : heads * width], expected) < LEAST[dtype]
    rest = target[..., heads * width :]
    assert torch.equal(rest, source[..., heads * width :]) if back else not rest.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 2500])
def test_the_gradient_of_swiglu(dtype: torch.dtype, width: int) -> None:
    given, gate, up = (drawn(3, width, dtype=dtype, seed=n) for n in range(3))
    exact = [one.double().requires_grad_() for one in (gate, up)]
    made = F.silu(exact[0]) * exact[1]
    expected = torch.cat(torch.autograd.grad(made, exact, given.double()), 1)
    found, again = joint.gated_gradient(given, gate, up)
    assert off(found, expected) < LEAST[dtype]
    assert off(again, made.detach()) < LEAST[dtype]


@pytest.mark.parametrize("rows", [1, 17, 130])
def test_a_transpose_is_padded_with_zeros(rows: int) -> None:
    x8_ni = torch.randint(255, (rows, 272), generator=torch.Generator().manual_seed(0)).byte()
    found_in = transpose.transpose(x8_ni, 144)
    assert torch.equal(found_in[:, :rows], x8_ni.T)
    assert not found_in[:, rows:].any()


@pytest.mark.parametrize("masters", [True, False])
def test_adamw_of_many_tensors_is_torchs(masters: bool) -> None:
    sizes = {"a": (3, 5), "b": (1024,), "c": (31, 43), "d": (1,)}
    firsts = {name: drawn(*size, seed=n) for n, (name, size) in enumerate(sizes.items())}
    kind = torch.bfloat16 if masters else torch.float32
    weights = [first.to(kind) for first in firsts.values()]
    means, squares = ([torch.zeros_like(one) for one in firsts.values()] for _ in range(2))
    held = [first.clone() for first in firsts.values()]
    decays = [0.1 if first.dim() > 1 else 0.0 for first in firsts.values()]
    ours = FusedAdamW(list(firsts), weights, held if masters else None, means, squares, decays)
    theirs = [first.clone().requires_grad_() for first in firsts.values()]
    groups = [{"params": [p], "weight_decay": d} for p, d in zip(theirs, decays, strict=True)]
    reference = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    for step in range(3):
        grads = [drawn(*first.shape, seed=9 + step) for first in theirs]
        ours.step(grads, rate=1e-2, scale=0.5, betas=(0.9, 0.95), eps=1e-8, updates=step + 1)
        for param, grad in zip(theirs, grads, strict=True):
            param.grad = grad * 0.5
        reference.step()
    for weight, master, expected in zip(weights, held, theirs, strict=True):
        assert off(master if masters else weight, expected) < 1e-6
        assert off(weight, expected) < LEAST[kind]


def test_what_bf16_cannot_hold_is_kept_in_the_mean() -> None:
    """Updates far below a step of bf16 (0.0078 at 1) would all be lost by rounding to nearest."""
    weight = torch.ones(1 << 14, dtype=torch.bfloat16)
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    ours = FusedAdamW(["a"], [weight], None, [mean], [square], [0.0])
    for step in range(10):
        ours.step(
            [torch.ones_like(weight)],
            rate=1e-4, scale=1.0, betas=(0.9, 0.95), eps=1e-8, updates=step + 1,
        )  # fmt: skip
    assert weight.double().mean().item() == pytest.approx(1 - 10e-4, abs=3e-4)
    assert weight.numel() > adamw_kernel.BLOCK
