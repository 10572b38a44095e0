"""Softmax and its gradient in one kernel: logits become the gradient of their loss, in place.

Logits are read twice and written once. The second reading finds little of a row in the cache: the
rows that all multiprocessors work on at once are larger than it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 8


@triton.jit
def _softmax_gradient(
    logits, targets, counted, losses, vocab, HAS_COUNTED: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocab
    highest = -float("inf")
    total = 0.0
    for at in range(0, vocab, BLOCK):
        v = at + tl.arange(0, BLOCK)
        x = tl.load(logits + v, v < vocab, -float("inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(x))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher))
        highest = higher
    target = tl.load(targets + row)
    weight = 1.0
    if HAS_COUNTED:
        weight = tl.load(counted + row).to(tl.float32)
    log_sum = highest + tl.log(total)
    at_target = tl.load(logits + target).to(tl.float32)
    tl.store(losses + row, weight * (log_sum - at_target))
    tl.debug_barrier()  # the gradient overwrites the target's logit
    for at in range(0, vocab, BLOCK):
        v = at + tl.arange(0, BLOCK)
        x = tl.load(logits + v, v < vocab, -float("inf")).to(tl.float32)
        gradient = (tl.exp(x - log_sum) - (v == target).to(tl.float32)) * weight
        tl.store(logits + v, gradient.to(logits.dtype.element_ty), v < vocab)


def to_gradients_(logits_nv: Tensor, targets_n: Tensor, counted_n: Tensor | None) -> Tensor:
    """Return the loss of each row in fp32; `logits_nv` becomes the gradient of their sum."""
    rows, vocab = logits_nv.shape
    losses_n = torch.empty(rows, dtype=torch.float32, device=logits_nv.device)
    counted = targets_n if counted_n is None else counted_n
    _softmax_gradient[(rows,)](
        logits_nv,
        targets_n,
        counted,
        losses_n,
        vocab,
        HAS_COUNTED=counted_n is not None,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return losses_n


@triton.jit
def _scale(x, factor, out, numel, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    scaled = tl.load(x + at, at < numel).to(tl.float32) * tl.load(factor)
    tl.store(out + at, scaled.to(out.dtype.element_ty), at < numel)


def scale_to(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x × factor, computed in fp32, in one pass; torch would round the factor to bf16 or
    take two passes.
    """
    out = torch.empty_like(x, dtype=dtype)
    _scale[(triton.cdiv(x.numel(), BLOCK),)](x, factor, out, x.numel(), BLOCK=BLOCK, num_warps=8)
    return out
