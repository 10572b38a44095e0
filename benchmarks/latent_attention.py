"""Attention of two widths on CUDA: kernels of torch, with values as they are and padded.

python benchmarks/latent_attention.py
"""

import time

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

BATCH, SEQUENCE, HEADS, WIDTH, VALUES, TIMES = 2, 4096, 32, 192, 128, 10


def draw(width: int) -> Tensor:
    size = BATCH, HEADS, SEQUENCE, width
    return torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def milliseconds(kernel: SDPBackend, padded: bool) -> float:
    """Time forward and backward."""
    q, k, v = draw(WIDTH), draw(WIDTH), draw(VALUES)
    began = 0.0
    for turn in range(TIMES + 3):
        if turn == 3:
            torch.cuda.synchronize()
            began = time.perf_counter()
        given = F.pad(v, (0, WIDTH - VALUES)) if padded else v
        with sdpa_kernel(kernel):
            out = F.scaled_dot_product_attention(q, k, given, is_causal=True)
        out[..., :VALUES].sum().backward()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / TIMES * 1e3


for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
    for padded in (False, True):
        try:
            told = f"{milliseconds(getattr(SDPBackend, name), padded):.2f} ms"
        except RuntimeError:
            told = "not possible"
        print(f"{name:20} {'padded' if padded else 'as they are':12} {told}", flush=True)
