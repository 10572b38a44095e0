"""fp8 matmuls, each operand with one scale for the whole tensor.

Inputs and weights in e4m3 (3 bits of mantissa), gradients in e5m2 (5 of exponent). A scale brings
the largest magnitude of this very tensor to the end of the format's range, so nothing overflows and
no history is kept; it stays on the device. The hardware multiplies only rows by rows (both
operands contiguous along the summed dimension), so the backward pass needs transposed copies.

Shape suffixes: n tokens, i inputs, o outputs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # of which kernels want all sides of a matrix but the rows of the first


class Fp8Linear(nn.Linear):
    """A linear layer without bias whose three matmuls are in fp8; its weight stays as it was."""

    def forward(self, x: Tensor) -> Tensor:
        return fp8_linear(x, self.weight)


def fp8_linear(x: Tensor, weight_oi: Tensor) -> Tensor:
    return _Fp8Matmul.apply(x.flatten(0, -2), weight_oi).unflatten(0, x.shape[:-1])


def convert_linears_to_fp8(module: nn.Module, ways: int = 1) -> None:
    """Every linear layer in it, in place, whose sides are the multiples of 16 that kernels want.

    Still so when one side is cut into `ways` parts. One with a bias or an adapter stays as it is.
    So do routers, which are no linear layers, and the head, which is not in the layers: what they
    give is compared closely.
    """
    least = MULTIPLE * ways
    for layer in module.modules():
        fits = (
            type(layer) is nn.Linear
            and layer.in_features % least == layer.out_features % least == 0
        )
        if fits and layer.bias is None:
            layer.__class__ = Fp8Linear


class _Fp8Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ni: Tensor, weight_oi: Tensor) -> Tensor:
        ctx.save_for_backward(x_ni, weight_oi)
        x8_ni, x_scale = cast_scaled(x_ni, E4M3)
        weight8_oi, weight_scale = cast_scaled(weight_oi, E4M3)
        return scaled_matmul(x8_ni, weight8_oi, x_scale, weight_scale, x_ni.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, dy_no: Tensor) -> tuple[Tensor, Tensor]:
        x_ni, weight_oi = ctx.saved_tensors
        dy8_no, dy_scale = cast_scaled(dy_no, E5M2)
        weight8_oi, weight_scale = cast_scaled(weight_oi, E4M3)
        weight8_io = weight8_oi.T.contiguous()
        dx_ni = scaled_matmul(dy8_no, weight8_io, dy_scale, weight_scale, dy_no.dtype)
        x8_ni, x_scale = cast_scaled(x_ni, E4M3)
        dy8_on, x8_in = transpose_padded(dy8_no), transpose_padded(x8_ni)
        dweight_oi = scaled_matmul(dy8_on, x8_in, dy_scale, x_scale, dy_no.dtype)
        return dx_ni, dweight_oi


def cast_scaled(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """In fp8, and what to multiply it by to have it back."""
    largest = torch.finfo(kind).max
    scale = x.abs().amax().float().clamp(min=1e-12) / largest
    return (x.float() / scale).clamp(-largest, largest).to(kind), scale


def transpose_padded(x8_ni: Tensor) -> Tensor:
    """Transposed, with zeros up to a multiple of 16 tokens: kernels sum over no other number."""
    short = -len(x8_ni) % MULTIPLE
    whole_ni = F.pad(x8_ni, (0, 0, 0, short)) if short else x8_ni
    return whole_ni.T.contiguous()


def scaled_matmul(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: torch.dtype, fast: bool = False
) -> Tensor:
    """a @ b.T. `fast` sums within the tensor cores in fewer bits: good enough going forward."""
    return torch._scaled_mm(a, b.T, a_scale, b_scale, out_dtype=out, use_fast_accum=fast)
