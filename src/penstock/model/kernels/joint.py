"""Kernels that read and write columns of a wider tensor: rotation, and the gradient of SwiGLU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

PAIRS, COLUMNS = 1024, 2048  # of a program


@triton.jit
def _rotate(
    source, target, cos, sin, positions, pairs, columns, source_row, target_row,
    HALF: tl.constexpr, BACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rotate the first 2 × `pairs` columns of a row in pairs; copy the others up to `columns`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source += row * source_row
    target += row * target_row
    if tl.program_id(1) * BLOCK < pairs:
        inside = at < pairs
        place = (row % positions) * HALF + at % HALF
        c = tl.load(cos + place, inside)
        s = tl.load(sin + place, inside)
        if BACK:
            s = -s
        first = at // HALF * (2 * HALF) + at % HALF
        a = tl.load(source + first, inside).to(tl.float32)
        b = tl.load(source + first + HALF, inside).to(tl.float32)
        tl.store(target + first, (a * c - b * s).to(target.dtype.element_ty), inside)
        tl.store(target + first + HALF, (b * c + a * s).to(target.dtype.element_ty), inside)
    if BACK:
        for part in tl.static_range(2):
            column = at + part * tl.num_programs(1) * BLOCK
            kept = (column >= 2 * pairs) & (column < columns)
            tl.store(target + column, tl.load(source + column, kept), kept)


def rotate(
    source_bsj: Tensor,
    target_bsj: Tensor,
    cos_sin: Tensor,
    width: int,
    turned: int,
    back: bool = False,
) -> None:
    """Rotate the first `turned` columns of each row by heads of `width`, as `apply_rotary` does.

    With `back` by the negative angle, and the columns after those are copied. `cos_sin` is
    [2, s, e/2] or [2, b, s, e/2]. Rows may be longer than what is read or written of them.
    """
    source_nj, target_nj = source_bsj.flatten(0, 1), target_bsj.flatten(0, 1)
    cos, sin = cos_sin.float().contiguous().flatten(1, -2)
    pairs, columns = turned // 2, source_nj.shape[1] if back else turned
    block = min(PAIRS, triton.next_power_of_2(max(pairs, columns // 2)))
    grid = (len(source_nj), triton.cdiv(max(pairs, triton.cdiv(columns, 2)), block))
    _rotate[grid](
        source_nj,
        target_nj,
        cos,
        sin,
        len(cos),
        pairs,
        columns,
        source_nj.stride(0),
        target_nj.stride(0),
        HALF=width // 2,
        BACK=back,
        BLOCK=block,
    )


@triton.jit
def _gated_gradient(dmade, gate, up, joint, made, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    d = tl.load(dmade + row * width + at, inside).to(tl.float32)
    g = tl.load(gate + row * width + at, inside).to(tl.float32)
    u = tl.load(up + row * width + at, inside).to(tl.float32)
    slope = 1 / (1 + tl.exp(-g))
    bent = g * slope
    kind = joint.dtype.element_ty
    joint += row * 2 * width
    tl.store(joint + at, (d * u * (slope + bent * (1 - slope))).to(kind), inside)
    tl.store(joint + width + at, (d * bent).to(kind), inside)
    tl.store(made + row * width + at, (bent * u).to(kind), inside)


def gated_gradient(dmade_nf: Tensor, gate_nf: Tensor, up_nf: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up side by side, and silu(gate) × up, in one pass."""
    rows, width = gate_nf.shape
    joint_nj = gate_nf.new_empty(rows, 2 * width)
    made_nf = torch.empty_like(gate_nf)
    block = min(COLUMNS, triton.next_power_of_2(width))
    _gated_gradient[(rows, triton.cdiv(width, block))](
        dmade_nf.contiguous(),
        gate_nf.contiguous(),
        up_nf.contiguous(),
        joint_nj,
        made_nf,
        width,
        BLOCK=block,
        num_warps=8,
    )
    return joint_nj, made_nf
