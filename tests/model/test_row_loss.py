"""Losses by token: their sums are the summed loss, and every token has its own gradient; and what
the objectives on pairs make of them."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import row_loss
from penstock.model.loss import summed_cross_entropy
from penstock.model.preference import compare
from penstock.model.row_loss import token_cross_entropy
from penstock.run.schema.preference import ON_PAIRS, PreferenceSection
from penstock.train.parallel.pairs import with_chosen_prompts


@given(
    rows=st.integers(1, 4), length=st.integers(1, 70), vocab=st.integers(2, 40), seed=st.integers(0)
)
def test_gradients_are_those_of_autograd(rows: int, length: int, vocab: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed % 2**31)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    targets = torch.randint(0, vocab, (rows, length), generator=draw)
    counted = torch.rand(rows, length, generator=draw) < 0.6
    weights = drawn(rows, length)  # what the objective gives each token, of either sign
    ours = [drawn(rows, length, 6).requires_grad_(), drawn(vocab, 6).requires_grad_()]
    theirs = [one.detach().clone().requires_grad_() for one in ours]
    losses = token_cross_entropy(*ours, targets, counted)
    logits = F.linear(*theirs).flatten(0, 1)
    each = F.cross_entropy(logits, targets.flatten(), reduction="none").view(rows, length)
    expected = each * counted
    torch.testing.assert_close(losses, expected)
    (losses * weights).sum().backward()
    (expected * weights).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-11)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, head = torch.randn(3, 100, 8, requires_grad=True), torch.randn(20, 8, requires_grad=True)
    targets = torch.randint(0, 20, (3, 100))
    whole = token_cross_entropy(x, head, targets)
    assert whole.sum().item() == pytest.approx(summed_cross_entropy(x, head, targets).item())
    whole.sum().backward()
    expected = head.grad
    assert expected is not None
    head.grad = None
    monkeypatch.setattr(row_loss, "CHUNK_ELEMENTS", 20)  # 128 tokens at a time
    token_cross_entropy(x, head, targets).sum().backward()
    torch.testing.assert_close(head.grad, expected)


def test_a_frozen_head_gets_no_gradient() -> None:
    x, head = torch.randn(1, 4, 8, requires_grad=True), torch.randn(20, 8)
    token_cross_entropy(x, head, torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    assert x.grad is not None
    assert head.grad is None


def test_smoothing_is_a_cross_entropy_with_soft_labels() -> None:
    section = PreferenceSection(beta=0.3, label_smoothing=0.2)
    ratios = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    found = compare("dpo", section, ratios, torch.tensor([3, 4, 5, 6]))
    logits = 0.3 * torch.tensor([3.0, -2.5], dtype=torch.float64)
    expected = F.binary_cross_entropy_with_logits(
        logits, torch.full_like(logits, 0.8), reduction="none"
    )
    torch.testing.assert_close(found.loss_p, expected)
    torch.testing.assert_close(found.sums(), 0.3 * torch.tensor([1.5, 1.0, 1 / 0.3]).double())


def test_simpo_is_smoothed_beyond_its_margin() -> None:
    section = PreferenceSection(beta=2.0, gamma=0.5, label_smoothing=0.2)
    likely = torch.tensor([-3.0, -8.0, -5.0, -6.0], dtype=torch.float64)
    found = compare("simpo", section, likely, torch.tensor([3, 4, 5, 6]))
    logits = torch.tensor([2.0 * (-1 + 2) - 0.5, 2.0 * (-1 + 1) - 0.5], dtype=torch.float64)
    expected = F.binary_cross_entropy_with_logits(
        logits, torch.full_like(logits, 0.8), reduction="none"
    )
    torch.testing.assert_close(found.loss_p, expected)
    assert found.chosen_p.tolist() == [-2.0, -2.0]
    assert found.sums().tolist() == [-4.0, -6.0, 1.0]


def test_orpo_compares_odds_of_tokens() -> None:
    """As its authors write it, with probabilities: odds are p / (1 - p)."""
    means = torch.tensor([0.9, 0.2, 0.4, 0.6], dtype=torch.float64)  # of a token
    counts, text = torch.tensor([3, 4, 5, 6]), torch.tensor([0.25, 0.5], dtype=torch.float64)
    section = PreferenceSection(beta=0.3)
    found = compare("orpo", section, means.log() * counts, counts, text)
    ratios = [(0.9 / 0.1) / (0.2 / 0.8), (0.4 / 0.6) / (0.6 / 0.4)]
    odds = [0.3 * math.log(1 + 1 / ratio) for ratio in ratios]
    expected = [more + part for more, part in zip(text.tolist(), odds, strict=True)]
    assert found.loss_p.tolist() == pytest.approx(expected, rel=1e-12)
    assert found.chosen_p.tolist() == pytest.approx([0.3 * math.log(0.9), 0.3 * math.log(0.4)])


@pytest.mark.parametrize("objective", ON_PAIRS)
def test_a_pair_without_tokens_counts_nothing(objective: str) -> None:
    likely = torch.tensor([0.0, -1.0], requires_grad=True)
    found = compare(
        objective, PreferenceSection(), likely, torch.tensor([0, 3]), likely[:1] * 2 - 1
    )
    assert found.loss_p.tolist() == [0.0]
    assert found.sums().tolist() == [0.0, 0.0, 0.0]
    found.loss_p.sum().backward()
    assert likely.grad is not None
    assert likely.grad.tolist() == [0.0, 0.0]


def test_a_certain_answer_has_a_finite_loss() -> None:
    """Its odds are infinite."""
    likely = torch.tensor([0.0, -3.0], requires_grad=True)
    found = compare("orpo", PreferenceSection(), likely, torch.tensor([2, 2]))
    found.loss_p.sum().backward()
    assert likely.grad is not None
    assert torch.isfinite(torch.cat((found.loss_p.detach(), likely.grad))).all()


def test_the_chosen_sequences_count_with_their_prompts() -> None:
    answers = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 1, 0, 0]] * 2, dtype=torch.bool)
    answers[2] = False  # a damaged one
    found = with_chosen_prompts(answers)
    assert found.int().tolist() == [
        [1, 1, 1, 1, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 1, 1, 0, 0],
    ]
