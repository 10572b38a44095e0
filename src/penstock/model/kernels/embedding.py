"""Sums of the rows of equal words, in one kernel that also writes the zeros of the others."""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS, TILE = 2048, 16384  # of a program at most; elements that it loads at once


@triton.jit
def _sum_rows(rows, order, ends, sums, width, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    word = tl.program_id(0).to(tl.int64)
    first = tl.load(ends + word - 1, word > 0, 0)
    end = tl.load(ends + word)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.zeros([COLUMNS], tl.float32)
    for at in range(first, end, ROWS):
        place = at + tl.arange(0, ROWS)
        row = tl.load(order + place, place < end, 0).to(tl.int64)
        tile = row[:, None] * width + column[None, :]
        held = (place < end)[:, None] & inside[None, :]
        total += tl.sum(tl.load(rows + tile, held, 0.0).to(tl.float32), 0)
    tl.store(sums + word * width + column, total.to(sums.dtype.element_ty), inside)


def table_gradient(dx_bsd: Tensor, tokens_bs: Tensor, words: int) -> Tensor:
    """Return the gradient of a table of `words` rows."""
    dx_nd = dx_bsd.flatten(0, -2).contiguous()
    sorted_n, order_n = tokens_bs.flatten().int().sort(stable=True)
    every_v = torch.arange(words, dtype=torch.int32, device=sorted_n.device)
    ends_v = torch.searchsorted(sorted_n, every_v, right=True, out_int32=True)
    width = dx_nd.shape[1]
    sums_vd = dx_nd.new_empty(words, width)
    # One program for the whole row of a word: most words of a batch come once or never, and what
    # such a program takes is its launch and three readings one after another.
    columns = min(COLUMNS, triton.next_power_of_2(width))
    _sum_rows[(words, triton.cdiv(width, columns))](
        dx_nd,
        order_n,
        ends_v,
        sums_vd,
        width,
        COLUMNS=columns,
        ROWS=TILE // columns,
        num_warps=8,
    )
    return sums_vd
