"""Frozen weights in 4-bit NormalFloat (NF4): QLoRA's storage, in plain torch on any device.

The sixteen values of the code are quantiles of a normal distribution, scaled to [-1, 1] (Dettmers
et al. 2023, "QLoRA", appendix E). A weight is the nearest of them times the largest magnitude of
its block of 64. These magnitudes are stored in 8 bits between the smallest and the largest of
their row. `model/nf4_format.py` has the bytes of a row: each output has a row of its own, so that a
matrix is one uint8 tensor that can be split between rows like the matrix itself.

A matmul makes the weights anew in the forward and again in the backward pass: no copy of them in
16 bits outlives it.

Shape suffixes: o outputs, i inputs, r bytes of a row, n blocks of a row.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.model.nf4_format import BLOCK, RANGE_BYTES, block_count, row_bytes

CODE = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_LEVELS = 255
_AT_ONCE = 1 << 22  # weights that are quantised at once: it takes 20 bytes for each


@torch.no_grad()
def quantize(weight_oi: Tensor) -> Tensor:
    """Return the matrix as rows of bytes."""
    outputs, inputs = weight_oi.shape
    rows = max(1, _AT_ONCE // inputs)
    out_or = weight_oi.new_empty((outputs, row_bytes(inputs)), dtype=torch.uint8)
    for first in range(0, outputs, rows):
        out_or[first : first + rows] = _quantize(weight_oi[first : first + rows].float())
    return out_or


def _quantize(weight_oi: Tensor) -> Tensor:
    padded_oi = F.pad(weight_oi, (0, -weight_oi.shape[1] % BLOCK))
    block_onb = padded_oi.unflatten(1, (-1, BLOCK))
    largest_on = block_onb.abs().amax(2)
    low_o = largest_on.amin(1, keepdim=True)
    step_o = (largest_on.amax(1, keepdim=True) - low_o) / _LEVELS
    level_on = ((largest_on - low_o) / step_o.clamp(min=1e-30)).round().clamp(0, _LEVELS)
    # Scaled by what will be read back, so that the rounding of magnitudes costs nothing twice.
    scale_on = torch.addcmul(low_o, level_on, step_o).clamp(min=1e-30)
    code = torch.tensor(CODE, device=weight_oi.device)
    between = (code[1:] + code[:-1]) / 2
    code_oi = torch.bucketize(block_onb / scale_on.unsqueeze(2), between, out_int32=True).flatten(1)
    pairs_oi = (code_oi[:, ::2] << 4 | code_oi[:, 1::2]).to(torch.uint8)
    ranges_or = torch.cat((low_o, step_o), 1).view(torch.uint8)
    return torch.cat((pairs_oi, level_on.to(torch.uint8), ranges_or), 1)


def dequantize(rows_or: Tensor, inputs: int, dtype: torch.dtype) -> Tensor:
    """Return the matrix [outputs, inputs] that the rows of bytes stand for."""
    blocks = block_count(inputs)
    pairs_oi, level_on, ranges_or = rows_or.split((blocks * BLOCK // 2, blocks, RANGE_BYTES), dim=1)
    aligned_or = ranges_or.clone(memory_format=torch.contiguous_format)
    low_o, step_o = aligned_or.view(torch.float32).split(1, dim=1)
    scale_on = torch.addcmul(low_o, level_on.float(), step_o)
    value_onb = F.embedding(pairs_oi.int(), _byte_values(rows_or.device)).view(-1, blocks, BLOCK)
    weight_oi = (value_onb * scale_on.unsqueeze(2)).flatten(1)
    return weight_oi[:, :inputs].to(dtype)


def _byte_values(device: torch.device) -> Tensor:
    """Return the two values of each byte, cached: making the table would stall the device in every
    matmul.
    """
    if torch.compiler.is_compiling():  # a constant of the compiled code
        return _make_byte_values(device)
    if device not in _BYTE_VALUES:
        _BYTE_VALUES[device] = _make_byte_values(device)
    return _BYTE_VALUES[device]


def _make_byte_values(device: torch.device) -> Tensor:
    code = torch.tensor(CODE, device=device)
    return torch.cartesian_prod(code, code)


_BYTE_VALUES: dict[torch.device, Tensor] = {}


class _Nf4Matmul(torch.autograd.Function):
    """Product of x and the transposed matrix; saves the bytes and nothing wider."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows_or: Tensor) -> Tensor:
        ctx.save_for_backward(rows_or)
        ctx.inputs = x.shape[-1]
        return F.linear(x, dequantize(rows_or, x.shape[-1], x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None
        (rows_or,) = ctx.saved_tensors
        (grad,) = grads
        return grad @ dequantize(rows_or, ctx.inputs, grad.dtype), None


def nf4_linear(x: Tensor, rows_or: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply x by the transposed matrix and add the bias."""
    out = _Nf4Matmul.apply(x, rows_or)
    assert isinstance(out, Tensor)
    return out if bias is None else out + bias


class Nf4Linear(nn.Module):
    """A frozen linear layer whose `weight` is rows of bytes."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        rows = torch.empty(outputs, row_bytes(inputs), dtype=torch.uint8)
        self.weight = nn.Parameter(rows, requires_grad=False)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return nf4_linear(x, self.weight, self.bias)
