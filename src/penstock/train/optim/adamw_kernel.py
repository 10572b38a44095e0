"""AdamW of many tensors in one launch and one pass over memory.

The kernel reads the clipped gradient and writes moments, fp32 master and bf16 weight: 28 bytes of
traffic for a parameter. It is one launch, because the host has just read the gradient norm and the
device waits for it. A bf16 value without a wider master is rounded up or down at random, with the
odds that make the mean right: rounding to nearest would lose every update smaller than half a step
of bf16.
"""

import operator
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from xxhash import xxh3_64_intdigest

BLOCK, WARPS = 1024, 8
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


@triton.jit
def _mix(x):
    """Hash 32 bits to 32 bits: each bit of the input changes half of the output's bits."""
    x ^= x >> 16
    x *= 0x21F0AAAD
    x ^= x >> 15
    x *= 0x735A2D97
    x ^= x >> 15
    return x


@triton.jit
def _narrow(value, noise, T: tl.constexpr):
    """Cast to the type T; to bf16 with 16 random bits."""
    if tl.bfloat16 == T:
        bits = value.to(tl.uint32, bitcast=True) + (noise & 0xFFFF)
        value = (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    return value.to(T)


@triton.jit
def _at(address, T: tl.constexpr):
    """Return the pointer of an address; all are multiples of 16, so that the widest loads can be
    used.
    """
    return tl.multiple_of(tl.load(address).to(tl.pointer_type(T)), 16)


@triton.jit
def _update(
    weight, master, grad, mean, square, inside,
    keep, scale, rate, beta1, beta2, eps, correct2, noise,
    MASTER: tl.constexpr, W: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Update one block. `inside` is None if all of it is valid: without a mask the widest loads are
    used.
    """
    g = tl.load(grad, inside).to(tl.float32) * scale
    m = tl.load(mean, inside).to(tl.float32)
    v = tl.load(square, inside).to(tl.float32)
    w = tl.load(master, inside).to(tl.float32)
    m += (g - m) * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    w = w * keep - rate * m / (tl.sqrt(v) / correct2 + eps)
    tl.store(mean, _narrow(m, noise, M), inside)
    tl.store(square, _narrow(v, _mix(noise + 1), M), inside)
    if MASTER:
        tl.store(master, w, inside)
        tl.store(weight, w.to(W), inside)
    else:
        tl.store(weight, _narrow(w, noise >> 16, W), inside)


@triton.jit(do_not_specialize=["seed"])
def _adamw(
    grads,  # by tensor: its address
    fixed,  # by tensor: addresses of weight, master, mean, square; how many elements; its dice
    decays,  # by tensor
    blocks,  # by program: the tensor and which of its blocks
    seed,
    scale,
    rate,
    beta1,
    beta2,
    eps,
    correct1,  # what the moments lack of a mean over all steps
    correct2,  # likewise, as a square root
    MASTER: tl.constexpr,
    W: tl.constexpr,
    G: tl.constexpr,
    M: tl.constexpr,
    BLOCK: tl.constexpr,
):
    own = tl.load(blocks + 2 * tl.program_id(0)).to(tl.int64)
    first = tl.load(blocks + 2 * tl.program_id(0) + 1).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)
    fixed += own * 6
    elements, dice = tl.load(fixed + 4), tl.load(fixed + 5)
    weight, grad = _at(fixed, W) + at, _at(grads + own, G) + at
    mean, square = _at(fixed + 2, M) + at, _at(fixed + 3, M) + at
    master = _at(fixed + 1, tl.float32) + at if MASTER else weight
    keep = 1 - rate * tl.load(decays + own)
    rate /= correct1
    noise = _mix(at.to(tl.uint32) ^ _mix(seed.to(tl.uint32) + dice.to(tl.uint32)))
    if first + BLOCK <= elements:
        _update(
            weight, master, grad, mean, square, None,
            keep, scale, rate, beta1, beta2, eps, correct2, noise, MASTER, W, M,
        )  # fmt: skip
    else:
        _update(
            weight, master, grad, mean, square, at < elements,
            keep, scale, rate, beta1, beta2, eps, correct2, noise, MASTER, W, M,
        )  # fmt: skip


class FusedAdamW:
    """A kernel launch for parameters of the same number formats, all with a master or none.

    The random bits depend on a parameter's name alone: two copies of tied weights, on different
    stages of a pipeline, have other neighbours and must stay equal.
    """

    def __init__(
        self,
        names: Sequence[str],
        weights: Sequence[Tensor],
        masters: Sequence[Tensor] | None,
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        decays: Sequence[float],
    ) -> None:
        self.held = weights, masters, means, squares  # while their addresses are in use
        self.has_master = masters is not None
        self.kinds = weights[0].dtype, means[0].dtype
        rows = list(zip(weights, masters or weights, means, squares, strict=True))
        assert all(t.is_contiguous() and t.data_ptr() % 16 == 0 for row in rows for t in row)
        device, sizes = weights[0].device, [weight.numel() for weight in weights]
        dice = [xxh3_64_intdigest(name.encode()) >> 32 for name in names]
        self.fixed = torch.tensor(
            [
                [*(t.data_ptr() for t in row), size, die]
                for row, size, die in zip(rows, sizes, dice, strict=True)
            ],
            device=device,
        )
        self.decays = torch.tensor(decays, dtype=torch.float32, device=device)
        counts = torch.tensor([triton.cdiv(size, BLOCK) for size in sizes], device=device)
        owner = torch.repeat_interleave(torch.arange(len(sizes), device=device), counts)
        block = torch.arange(len(owner), device=device) - (counts.cumsum(0) - counts)[owner]
        self.blocks = torch.stack((owner, block), 1).int()
        self._ready: tuple[Sequence[Tensor], list[Tensor], Tensor] | None = None

    def prepare(self, grads: Sequence[Tensor]) -> None:
        """Send the addresses of the gradients to the device, ahead of the update by them."""
        aligned = [
            g if g.is_contiguous() and g.data_ptr() % 16 == 0 else _aligned_copy(g) for g in grads
        ]
        addresses = torch.tensor([grad.data_ptr() for grad in aligned])
        self._ready = grads, aligned, addresses.to(self.fixed.device, non_blocking=True)

    def _prepared(self, grads: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return these gradients as the kernel takes them, and their addresses on the device."""
        same = self._ready and all(map(operator.is_, grads, self._ready[0]))
        if not same:
            self.prepare(grads)
        assert self._ready
        _, aligned, addresses = self._ready
        self._ready = None
        return aligned, addresses

    def step(
        self,
        grads: Sequence[Tensor],
        *,
        rate: float,
        scale: float,
        betas: tuple[float, float],
        eps: float,
        updates: int,  # this one included
    ) -> None:
        """Update all tensors by `scale` × gradient, in one launch."""
        aligned, addresses = self._prepared(grads)
        _adamw[(len(self.blocks),)](
            addresses,
            self.fixed,
            self.decays,
            self.blocks,
            updates * 1_000_003 % 2**31,
            scale,
            rate,
            betas[0],
            betas[1],
            eps,
            1 - betas[0] ** updates,
            (1 - betas[1] ** updates) ** 0.5,
            MASTER=self.has_master,
            W=TYPES[self.kinds[0]],
            G=TYPES[aligned[0].dtype],
            M=TYPES[self.kinds[1]],
            BLOCK=BLOCK,
            num_warps=WARPS,
        )


def _aligned_copy(grad: Tensor) -> Tensor:
    """Copy part of a larger tensor into memory of its own."""
    return grad.clone(memory_format=torch.contiguous_format)
