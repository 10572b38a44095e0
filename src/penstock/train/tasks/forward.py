"""Forward passes for benchmark tasks: batches of token sequences in, two numbers per row out.

A question is one of two. `score`: how likely are the last tokens of a row, and are they what greedy
decoding gives? `choose`: which token comes next? Only these two numbers leave the device, and only
they travel between ranks.

Rows are filled on the right: what stands to the right of a position does not reach it.

Shape suffixes: b batch, s sequence, v vocab, n scored tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Question = Literal["score", "choose"]


@dataclass(frozen=True)
class TokenRow:
    """One sequence, and what is asked of it."""

    tokens: list[int]
    scored: int = 0  # of the last tokens
    draw: float | None = None  # choose: a number in [0, 1) to sample with; None takes the likeliest
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0

    @property
    def width(self) -> int:
        """Return how many tokens go in: the last scored one is only compared with."""
        return len(self.tokens) - (1 if self.scored else 0)

    def to_message(self) -> list[Any]:
        return [self.tokens, self.scored, self.draw, self.temperature, self.top_k, self.top_p]


Answer = tuple[float, float]  # score: log-likelihood, 1.0 if greedy; choose: token, 0.0


class ForwardPass(Protocol):
    """Something that answers a question for rows, on one process or on many."""

    def __call__(self, question: Question, rows: Sequence[TokenRow]) -> list[Answer]:
        """Return an answer for each row, in their order."""


@dataclass(frozen=True)
class BatchShapes:
    """The shapes that forward passes may have."""

    longest: int  # tokens of a row
    budget_tokens: int  # of a batch; a row is never cut for it
    most_rows: int | None = None  # of a batch
    multiple: int = 1  # of a width: ranks may share the sequence
    few: bool = False  # widths are powers of two, and all batches of a width have as many rows

    def __post_init__(self) -> None:
        assert self.longest >= self.multiple

    @property
    def longest_width(self) -> int:
        return self.longest // self.multiple * self.multiple

    def width(self, tokens: int) -> int:
        """Return the width of a batch whose longest row has so many tokens."""
        wide = -(-tokens // self.multiple) * self.multiple
        if self.few:
            wide = self.multiple
            while wide < tokens:
                wide *= 2
        return min(wide, self.longest_width)

    def rows(self, width: int) -> int:
        """Return how many rows a batch of this width has at most."""
        fit = max(1, self.budget_tokens // width)
        return fit if self.most_rows is None else min(fit, self.most_rows)

    def batches(self, rows: Sequence[TokenRow]) -> Iterator[list[int]]:
        """Yield the numbers of rows that go together, the longest first.

        A batch that is too large fails at once then, and what is left is told too high, not too
        low.
        """
        order = sorted(range(len(rows)), key=lambda i: (-rows[i].width, rows[i].tokens))
        at = 0
        while at < len(order):
            most = self.rows(self.width(rows[order[at]].width))
            yield order[at : at + most]
            at += most

    def rounds(self, rows: Sequence[TokenRow], ranks: int) -> Iterator[tuple[int, list[list[int]]]]:
        """Yield a width and at most `ranks` batches of it, which run at the same time."""
        widths = ((self.width(rows[one[0]].width), one) for one in self.batches(rows))
        for width, group in groupby(widths, key=lambda pair: pair[0]):
            same = [numbers for _, numbers in group]
            for at in range(0, len(same), ranks):
                yield width, same[at : at + ranks]


@dataclass(frozen=True)
class BatchRunner:
    """One batch on this process's model, or this rank's part of it."""

    logits: Callable[[Tensor], Tensor]  # tokens [b, s] to [b, s, v]
    shapes: BatchShapes
    device: torch.device

    @torch.no_grad()
    def run(self, question: Question, rows: Sequence[TokenRow], width: int) -> Tensor:
        """Return the two numbers of each row, on the CPU."""
        height = self.shapes.rows(width) if self.shapes.few else len(rows)
        inputs = torch.zeros(height, width, dtype=torch.int64)
        for i, row in enumerate(rows):
            inputs[i, : row.width] = torch.tensor(row.tokens[: row.width])
        logits_bsv = self.logits(inputs.to(self.device))
        found = torch.zeros(len(rows), 2, dtype=torch.float64)
        for i, row in enumerate(rows):
            end = row.width
            if question == "score":
                found[i] = _score(logits_bsv[i, end - row.scored : end], row)
            else:
                found[i, 0] = _choose(logits_bsv[i, end - 1], row)
        return found


@dataclass(frozen=True)
class OneProcess:
    """Forward passes in this process alone."""

    runner: BatchRunner

    def __call__(self, question: Question, rows: Sequence[TokenRow]) -> list[Answer]:
        answers: list[Answer] = [(0.0, 0.0)] * len(rows)
        for width, (numbers,) in self.runner.shapes.rounds(rows, 1):
            found = self.runner.run(question, [rows[i] for i in numbers], width).tolist()
            for i, (first, second) in zip(numbers, found, strict=True):
                answers[i] = first, second
        return answers


def _score(logits_nv: Tensor, row: TokenRow) -> Tensor:
    targets_n = torch.tensor(row.tokens[-row.scored :], device=logits_nv.device)
    wide_nv = logits_nv.to(torch.promote_types(logits_nv.dtype, torch.float32))
    likely_n = wide_nv.log_softmax(-1).gather(1, targets_n.unsqueeze(1)).squeeze(1)
    greedy = (wide_nv.argmax(-1) == targets_n).all()
    return torch.stack((likely_n.double().sum(), greedy.double())).cpu()


def _choose(logits_v: Tensor, row: TokenRow) -> int:
    """Return the likeliest token, or the one that the row's draw falls on.

    The draw came with the row: every rank chooses the same, and no generator is used.
    """
    wide_v = logits_v.to(torch.promote_types(logits_v.dtype, torch.float32))
    if row.draw is None:
        return int(wide_v.argmax())
    sorted_v, ids_v = (wide_v / row.temperature).cpu().sort(descending=True, stable=True)
    if row.top_k:
        sorted_v, ids_v = sorted_v[: row.top_k], ids_v[: row.top_k]
    share_v = sorted_v.double().softmax(0)
    if row.top_p < 1:
        # The first token whose sum passes the limit still counts.
        kept = int((share_v.cumsum(0) - share_v < row.top_p).sum())
        share_v, ids_v = share_v[:kept], ids_v[:kept]
    below_v = share_v.cumsum(0)
    place = int((below_v <= row.draw * float(below_v[-1])).sum())
    return int(ids_v[min(place, len(ids_v) - 1)])
