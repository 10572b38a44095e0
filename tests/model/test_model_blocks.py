"""Documents as blocks: what FlexAttention is told agrees with the square of booleans."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.model.document_attention import BLOCK, dense_mask, document_block_mask
from penstock.model.layers import document_mask


def marked(count: Tensor, columns: Tensor) -> Tensor:
    """The blocks of a list, as a square."""
    batch, _, rows, _ = columns.shape
    found = torch.zeros(batch, rows, columns.shape[-1], dtype=torch.bool)
    for b in range(batch):
        for row in range(rows):
            found[b, row, columns[b, 0, row, : count[b, 0, row]].long()] = True
    return found


@settings(max_examples=30, deadline=None)
@given(
    sequence=st.integers(1, 700),
    share=st.sampled_from([0.0, 0.002, 0.01, 0.3, 1.0]),
    seed=st.integers(0, 1000),
    window=st.sampled_from([0, 1, 100, 128, 129, 257, 300]),
)
def test_blocks_say_what_the_square_says(
    sequence: int, share: float, seed: int, window: int
) -> None:
    starts = torch.rand(2, sequence, generator=torch.Generator().manual_seed(seed)) < share
    mask, sees = document_block_mask(starts, window), document_mask(starts, window)
    assert dense_mask(mask, torch.zeros(2, 1, sequence, 16)).equal(sees)
    count = -(-sequence // BLOCK)
    seen = torch.zeros(2, count * BLOCK, count * BLOCK, dtype=torch.bool)
    seen[:, :sequence, :sequence] = sees
    some = seen.view(2, count, BLOCK, count, BLOCK).any(4).any(2)
    seen[:, sequence:, :sequence] = True  # rows past the end see nothing and are not asked
    every = seen.view(2, count, BLOCK, count, BLOCK).all(4).all(2)
    part = marked(mask.kv_num_blocks, mask.kv_indices)
    whole = marked(mask.full_kv_num_blocks, mask.full_kv_indices)
    assert not (part & whole).any()
    assert (part | whole).equal(some)  # nothing is missed, nothing is visited in vain
    assert whole.equal(every)  # where all is seen, no token is looked at
