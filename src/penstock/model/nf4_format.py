"""The bytes of a matrix in 4-bit NormalFloat (NF4), without torch.

`model/nf4.py` stores matrices like this, and the planner counts their bytes.

Each row (one output) stands alone in one row of bytes, `[codes, two a byte | magnitudes | smallest
and step, fp32]`. A row is padded to whole blocks of 64 weights; a block takes 32 bytes of codes and
one byte for its largest magnitude. So a weight takes 4 + 8/64 bits, and a row 8 bytes more.
"""

BLOCK = 64  # weights that share one magnitude
RANGE_BYTES = 8  # smallest and step of a row's magnitudes


def block_count(inputs: int) -> int:
    """Return the number of blocks in one row; the last one may be padded."""
    return -(-inputs // BLOCK)


def row_bytes(inputs: int) -> int:
    """Return the bytes of one output's row."""
    return block_count(inputs) * (BLOCK // 2 + 1) + RANGE_BYTES


def matrix_bytes(outputs: int, inputs: int) -> int:
    """Return the bytes of a whole matrix."""
    return outputs * row_bytes(inputs)
