"""Documents packed into one sample are read as if each stood alone; a mask counts what it says."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from penstock.catalog.shapes import ModelShape
from penstock.model.decoder import Decoder
from penstock.model.initialize import decoder_on_meta, initialize
from penstock.model.layers import document_mask, document_positions
from penstock.train.parallel.microbatch import Microbatch
from penstock.train.parallel.runner import microbatch_loss

CPU = torch.device("cpu")
SMALL = ModelShape(layers=2, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=50)
LATENT = replace(
    SMALL, kv_heads=4, q_rank=12, kv_rank=10, rope_dim=4, nope_dim=6, v_dim=5, rope_pairs=True
)
SINKS = replace(SMALL, sinks=True, window=3, full_layers=(1,), out_bias=True)
QK_NORM = replace(SMALL, qk_norm=True)
KINDS = {"usual": SMALL, "qk_norm": QK_NORM, "latent": LATENT, "sinks": SINKS}
lengths = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def decoder(shape: ModelShape = SMALL) -> Decoder:
    model = decoder_on_meta(shape).double()
    initialize(model, CPU, 0)
    return model


def packed(sizes: list[int]) -> tuple[list[Tensor], Tensor, Tensor]:
    """Documents, all of them in a row, and where each begins."""
    draw = torch.Generator().manual_seed(sum(sizes))
    documents = [torch.randint(SMALL.vocab, (size,), generator=draw) for size in sizes]
    starts = torch.zeros(1, sum(sizes), dtype=torch.bool)
    starts[0, [sum(sizes[:i]) for i in range(len(sizes))]] = True
    return documents, torch.cat(documents)[None], starts


@given(lengths, st.sampled_from(list(KINDS)))
@settings(max_examples=25, deadline=None)
def test_logits_are_those_of_each_document_alone(sizes: list[int], kind: str) -> None:
    model = decoder(KINDS[kind])
    documents, row, starts = packed(sizes)
    alone = torch.cat([model(document[None])[0] for document in documents])
    torch.testing.assert_close(model(row, starts)[0], alone, rtol=1e-11, atol=1e-11)


def test_without_marks_documents_do_see_each_other() -> None:
    model = decoder()
    _, row, starts = packed([5, 6])
    together, apart = model(row)[0], model(row, starts)[0]
    torch.testing.assert_close(together[:5], apart[:5])
    assert not torch.allclose(together[5:], apart[5:], atol=1e-6)


@given(lengths.filter(lambda sizes: max(sizes) > 1))
@settings(max_examples=20, deadline=None)
def test_gradients_are_those_of_each_document_alone(sizes: list[int]) -> None:
    """The target that would cross from one document to the next does not count."""
    documents, row, starts = packed(sizes)
    apart, together = decoder(), decoder()
    for document in documents:
        if len(document) > 1:
            microbatch_loss(apart)(
                Microbatch(document[None, :-1], document[None, 1:], 1.0)
            ).backward()
    counted = ~starts[:, 1:]
    loss = microbatch_loss(together)(
        Microbatch(row[:, :-1], row[:, 1:], 1.0, counted, starts[:, :-1])
    )
    loss.backward()
    for mine, theirs in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-11)


def test_rows_of_a_batch_have_documents_of_their_own() -> None:
    model = decoder()
    _, row, starts = packed([3, 4, 2])
    _, other, other_starts = packed([6, 3])
    both = model(torch.cat((row, other)), torch.cat((starts, other_starts)))
    torch.testing.assert_close(both[:1], model(row, starts))
    torch.testing.assert_close(both[1:], model(other, other_starts))


def test_places_and_sight() -> None:
    starts = torch.tensor([[False, False, True, False, True, True]])
    assert document_positions(starts).tolist() == [[0, 1, 0, 1, 0, 0]]
    assert document_mask(starts)[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_masked_loss_is_the_sum_over_what_counts(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(SMALL.vocab, (3, 8), generator=draw)
    counted = torch.rand(3, 7, generator=draw) < 0.5
    model = decoder()
    found = microbatch_loss(model)(Microbatch(tokens[:, :-1], tokens[:, 1:], 1.0, counted))
    log = model(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    torch.testing.assert_close(found, -(log * counted).sum())


class OwnLoss(nn.Module):
    """A module that gives its mean loss, as Hugging Face models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = decoder()

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.inner(tokens)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_module_with_a_loss_of_its_own_counts_the_same(share: float) -> None:
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(SMALL.vocab, (2, 9), generator=draw)
    counted = torch.rand(2, 8, generator=draw) < share
    own = microbatch_loss(OwnLoss())(Microbatch(tokens[:, :-1], tokens[:, 1:], 1.0, counted))
    ours = microbatch_loss(decoder())(Microbatch(tokens[:, :-1], tokens[:, 1:], 1.0, counted))
    assert own.isfinite()
    torch.testing.assert_close(own, ours)
    assert bool(own != 0) == (share > 0)


def test_flex_attention_is_asked_only_for_what_it_has_kernels_for() -> None:
    from penstock.model.document_attention import is_supported

    def works(width: int, dtype: torch.dtype) -> bool:
        return is_supported(torch.empty(1, 1, 1, width, dtype=dtype))

    assert works(192, torch.bfloat16)  # latent attention
    assert works(128, torch.float32)
    assert not works(192, torch.float32)
    assert not works(64, torch.float64)
    assert not works(8, torch.bfloat16)
