"""fp8 matmuls, each operand with one scale for the whole tensor.

Inputs and weights are e4m3 (3 bits of mantissa), gradients e5m2 (5 bits of exponent). The scale
maps the largest magnitude of the tensor to the end of the format's range: nothing overflows, and no
history of magnitudes is kept. The scale stays on the device. The hardware needs both operands
contiguous along the summed dimension, so the backward pass makes transposed copies.

docs/design/speed.md says why this is not torchao. Shape suffixes: n tokens, i inputs, o outputs.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # fp8 kernels need every dimension divisible by 16, except the rows of A


class Fp8Linear(nn.Linear):
    """A linear layer without bias that does its matmuls in fp8; its weight keeps its type.

    Three matmuls, or two if the weight is frozen.
    """

    def forward(self, x: Tensor) -> Tensor:
        return fp8_linear(x, self.weight)


PLAIN: Mapping[type[nn.Linear], type[Fp8Linear]] = {nn.Linear: Fp8Linear}


def fp8_linear(x: Tensor, weight_oi: Tensor) -> Tensor:
    """Multiply x by the transposed weight in fp8."""
    rule = _Fp8Matmul if weight_oi.requires_grad else _Fp8FrozenMatmul
    return rule.apply(x.flatten(0, -2), weight_oi).unflatten(0, x.shape[:-1])


def convert_linears_to_fp8(
    module: nn.Module, ways: int = 1, kinds: Mapping[type[nn.Linear], type[Fp8Linear]] = PLAIN
) -> None:
    """Turn linear layers into fp8 layers, in place; `kinds` are the classes to turn, and into what.

    fp8 kernels need sides that are multiples of 16, also after one side is cut into `ways` parts. A
    layer with a bias stays as it is. So do routers, which are no linear layers, and the head, which
    is outside the layers: both need more precision than fp8 has.
    """
    least = MULTIPLE * ways
    for layer in module.modules():
        if not isinstance(layer, nn.Linear) or type(layer) not in kinds or layer.bias is not None:
            continue
        if layer.in_features % least == layer.out_features % least == 0:
            layer.__class__ = kinds[type(layer)]


class _Fp8Matmul(torch.autograd.Function):
    """Product of x and the transposed weight, with all three matmuls in fp8."""

    @staticmethod
    def forward(ctx: Any, x_ni: Tensor, weight_oi: Tensor) -> Tensor:
        ctx.save_for_backward(x_ni, weight_oi)
        return _forward_product(x_ni, weight_oi)

    @staticmethod
    def backward(ctx: Any, dy_no: Tensor) -> tuple[Tensor, Tensor]:
        x_ni, weight_oi = ctx.saved_tensors
        dy8_no, dy_scale = cast_scaled(dy_no, E5M2)
        dx_ni = _input_gradient(dy_no, dy8_no, dy_scale, weight_oi)
        x8_ni, x_scale = cast_scaled(x_ni, E4M3)
        dy8_on, x8_in = transpose_padded(dy8_no), transpose_padded(x8_ni)
        dweight_oi = scaled_matmul(dy8_on, x8_in, dy_scale, x_scale, dy_no.dtype)
        return dx_ni, dweight_oi


class _Fp8FrozenMatmul(torch.autograd.Function):
    """Product of x and a transposed weight that is not trained; keeps no input."""

    @staticmethod
    def forward(ctx: Any, x_ni: Tensor, weight_oi: Tensor) -> Tensor:
        ctx.save_for_backward(weight_oi)
        return _forward_product(x_ni, weight_oi)

    @staticmethod
    def backward(ctx: Any, dy_no: Tensor) -> tuple[Tensor, None]:
        (weight_oi,) = ctx.saved_tensors
        return _input_gradient(dy_no, *cast_scaled(dy_no, E5M2), weight_oi), None


def _forward_product(x_ni: Tensor, weight_oi: Tensor) -> Tensor:
    x8_ni, x_scale = cast_scaled(x_ni, E4M3)
    weight8_oi, weight_scale = cast_scaled(weight_oi, E4M3)
    return scaled_matmul(x8_ni, weight8_oi, x_scale, weight_scale, x_ni.dtype, fast=True)


def _input_gradient(dy_no: Tensor, dy8_no: Tensor, dy_scale: Tensor, weight_oi: Tensor) -> Tensor:
    weight8_oi, weight_scale = cast_scaled(weight_oi, E4M3)
    weight8_io = transpose_padded(weight8_oi)
    return scaled_matmul(dy8_no, weight8_io, dy_scale, weight_scale, dy_no.dtype)


def cast_scaled(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the tensor in fp8, and the scale that brings it back."""
    largest = torch.finfo(kind).max
    scale = x.abs().amax().float().clamp(min=1e-12) / largest
    return (x.float() / scale).clamp(-largest, largest).to(kind), scale


@torch.library.custom_op("penstock::transpose_padded", mutates_args=())
def transpose_padded(x8_ni: Tensor) -> Tensor:
    """Transpose, and pad with zeros to a multiple of 16 rows: kernels sum over nothing else.

    A kernel of its own: where the compiler joins it with the cast it writes single bytes, far
    apart, and takes up to three times as long.
    """
    rows = -(-len(x8_ni) // MULTIPLE) * MULTIPLE
    if x8_ni.is_cuda:
        from penstock.model.kernels import transpose  # needs Triton: only CUDA builds have it

        return transpose.transpose(x8_ni, rows)
    return (
        F.pad(x8_ni.view(torch.uint8), (0, 0, 0, rows - len(x8_ni)))
        .T.contiguous()
        .view(x8_ni.dtype)
    )


@transpose_padded.register_fake
def _(x8_ni: Tensor) -> Tensor:
    return x8_ni.new_empty(x8_ni.shape[1], -(-len(x8_ni) // MULTIPLE) * MULTIPLE)


def scaled_matmul(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out: torch.dtype, fast: bool = False
) -> Tensor:
    """Return a @ b.T. `fast` accumulates with fewer bits, which is enough for the forward pass."""
    return torch._scaled_mm(a, b.T, a_scale, b_scale, out_dtype=out, use_fast_accum=fast)
