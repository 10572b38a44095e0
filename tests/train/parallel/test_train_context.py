"""Pieces of sequences: all ranks have equal work, and blocks say what single tokens say."""

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from penstock.train.export.sampling import sample_continuation
from penstock.train.parallel.context import positions_by_rank, visible_keys
from penstock.train.parallel.context_blocks import BLOCK, context_block_mask


@pytest.mark.parametrize("ways", [1, 2, 3, 8])
def test_every_rank_sees_as_much_and_no_token_is_left_out(ways: int) -> None:
    at = positions_by_rank(10 * ways, ways)
    assert at.sort().values.tolist() == list(range(10 * ways))
    assert len({part.sum().item() for part in at.chunk(ways)}) == 1


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("window", [0, 70, 300])
@pytest.mark.parametrize(("ways", "piece"), [(2, 256), (2, 100), (4, 128), (3, 33)])
def test_blocks_say_what_single_tokens_say(
    ways: int, piece: int, documents: bool, window: int
) -> None:
    at_k = positions_by_rank(2 * ways * piece, ways)
    draw = torch.Generator().manual_seed(piece)
    starts = torch.rand(2, len(at_k), generator=draw) < 0.01 if documents else None
    document = None if starts is None else starts.cumsum(1, dtype=torch.int32)
    skipped = 0
    for at_o in at_k.chunk(ways):
        expected = visible_keys(at_o, at_k, document, window)
        mask = context_block_mask(at_o, at_k, document, window)
        made = create_mask(mask.mask_mod, len(expected), 1, len(at_o), len(at_k), "cpu")
        assert torch.equal(made.squeeze(1), expected)
        full, some = (
            dense(mask.full_kv_num_blocks, mask.full_kv_indices),
            dense(mask.kv_num_blocks, mask.kv_indices),
        )
        assert not (full & some).any()
        tokens = (full | some).repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)
        tokens = tokens[:, : len(at_o), : len(at_k)]
        assert not (expected & ~tokens).any()  # nothing that is seen is skipped
        sure = full.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)
        assert not (sure[:, : len(at_o), : len(at_k)] & ~expected).any()
        skipped += int((~(full | some)).sum())
    assert skipped or piece < BLOCK


@pytest.mark.parametrize("multiple", [1, 4, 12])
def test_a_model_writes_the_same_whatever_its_sequences_must_be_a_multiple_of(
    multiple: int,
) -> None:
    widths = set()

    def logits(tokens_bs: Tensor) -> Tensor:
        widths.add(tokens_bs.shape[1])
        return torch.nn.functional.one_hot((tokens_bs * 3 + 1) % 50, 50).float()

    written = sample_continuation(
        logits, [1, 2, 3, 4, 5], 6, 36, 0, temperature=0, multiple=multiple
    )
    assert written == [16, 49, 48, 45, 36, 9]
    assert widths == {{1: 11, 4: 12, 12: 12}[multiple]}


def dense(count: Tensor | None, columns: Tensor | None) -> Tensor:
    """Which blocks are in the list, [b, rows, columns]."""
    assert count is not None
    assert columns is not None
    listed = torch.arange(columns.shape[-1]) < count.unsqueeze(-1)
    return torch.zeros_like(listed).scatter(-1, columns.long(), listed).squeeze(1)
