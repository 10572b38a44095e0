"""The transposed copy of a tensor of bytes, in tiles that are read and written in whole rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, WARPS = 128, 8


@triton.jit
def _transpose(source, target, rows, columns, target_row, TILE: tl.constexpr):
    n = tl.program_id(0) * TILE + tl.arange(0, TILE)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (n < rows)[:, None] & (i < columns)[None, :]
    x = tl.load(source + n.to(tl.int64)[:, None] * columns + i[None, :], inside, 0)
    place = i.to(tl.int64)[:, None] * target_row + n[None, :]
    tl.store(target + place, tl.trans(x), (i < columns)[:, None] & (n < target_row)[None, :])


def transpose(x8_ni: Tensor, rows: int) -> Tensor:
    """Return the transpose, with zeros after the last row of `x8_ni` up to `rows`."""
    whole_ni = x8_ni.contiguous().view(torch.uint8)
    target_in = whole_ni.new_empty(whole_ni.shape[1], rows)
    grid = triton.cdiv(rows, TILE), triton.cdiv(whole_ni.shape[1], TILE)
    _transpose[grid](
        whole_ni, target_in, len(whole_ni), whole_ni.shape[1], rows, TILE=TILE, num_warps=WARPS
    )
    return target_in.view(x8_ni.dtype)
