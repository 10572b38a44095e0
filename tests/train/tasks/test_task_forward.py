"""Batches of token sequences: every row once, in shapes that fit, answered as if alone."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.train.tasks.forward import BatchRunner, BatchShapes, OneProcess, TokenRow

VOCAB = 23
CPU = torch.device("cpu")


def logits(tokens_bs: torch.Tensor) -> torch.Tensor:
    """A causal model: what comes next depends on all tokens so far and on their places."""
    place_s = torch.arange(1, tokens_bs.shape[1] + 1)
    sums_bs = (tokens_bs * place_s).cumsum(1).double()
    return torch.sin(sums_bs.unsqueeze(2) * torch.arange(1, VOCAB + 1) * 0.37) * 3


rows = st.lists(
    st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=33).flatmap(
        lambda tokens: st.builds(
            TokenRow, st.just(tokens), scored=st.integers(1, min(len(tokens) - 1, 32))
        )
    ),
    max_size=40,
)
shapes = st.builds(
    BatchShapes,
    longest=st.just(32),
    budget_tokens=st.integers(1, 200),
    most_rows=st.none() | st.integers(1, 5),
    multiple=st.sampled_from([1, 2, 4]),
    few=st.booleans(),
)


@settings(max_examples=40)
@given(rows=rows, shapes=shapes, ranks=st.integers(1, 4))
def test_every_row_is_in_one_batch_of_a_shape_that_fits(
    rows: list[TokenRow], shapes: BatchShapes, ranks: int
) -> None:
    seen = []
    for width, batches in shapes.rounds(rows, ranks):
        assert 1 <= len(batches) <= ranks
        assert width % shapes.multiple == 0
        assert width <= shapes.longest
        for numbers in batches:
            assert len(numbers) <= shapes.rows(width)
            assert len(numbers) == 1 or len(numbers) * width <= shapes.budget_tokens
            assert max(rows[i].width for i in numbers) <= width
            seen += numbers
    assert sorted(seen) == list(range(len(rows)))


@settings(max_examples=40)
@given(rows=rows, shapes=shapes)
def test_a_batch_gives_what_each_row_gives_alone(rows: list[TokenRow], shapes: BatchShapes) -> None:
    found = OneProcess(BatchRunner(logits, shapes, CPU))("score", rows)
    for row, (likely, greedy) in zip(rows, found, strict=True):
        alone = logits(torch.tensor([row.tokens[:-1]]))[0, -row.scored :].log_softmax(-1)
        targets = torch.tensor(row.tokens[-row.scored :])
        assert abs(likely - alone.gather(1, targets.unsqueeze(1)).sum().item()) < 1e-9
        assert greedy == float((alone.argmax(-1) == targets).all())


def chosen(**how: float) -> list[int]:
    """The tokens that evenly spread draws fall on."""
    shapes = BatchShapes(8, 1 << 10)
    every = [TokenRow([3, 1, 4], draw=(i + 0.5) / 2000, **how) for i in range(2000)]  # type: ignore[arg-type]
    return [
        int(token) for token, _ in OneProcess(BatchRunner(logits, shapes, CPU))("choose", every)
    ]


def test_draws_fall_on_tokens_as_often_as_they_are_likely() -> None:
    shares = (logits(torch.tensor([[3, 1, 4]]))[0, -1] / 0.7).softmax(0)
    counts = torch.bincount(torch.tensor(chosen(temperature=0.7)), minlength=VOCAB) / 2000
    torch.testing.assert_close(counts.double(), shares, rtol=0, atol=1e-3)


def test_sampling_is_held_to_the_likeliest_tokens() -> None:
    order = logits(torch.tensor([[3, 1, 4]]))[0, -1].sort(descending=True)
    assert set(chosen(top_k=3)) == set(order.indices[:3].tolist())
    kept = int((order.values.softmax(0).cumsum(0) < 0.5).sum()) + 1
    assert set(chosen(top_p=0.5)) == set(order.indices[:kept].tolist())
    greedy = OneProcess(BatchRunner(logits, BatchShapes(8, 64), CPU))(
        "choose", [TokenRow([3, 1, 4])]
    )
    assert greedy == [(float(order.indices[0]), 0.0)]
