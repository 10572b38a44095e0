"""What a read gives: tokens, and what is known about each of them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Skipped:
    """Content that cannot be used; every sample that needs it keeps its place and counts nothing.

    `samples` are the first and last number, in the dataset's own counting, of those that do.
    """

    dataset: str
    file: str
    block: int
    samples: tuple[int, int]


@dataclass(frozen=True)
class Batch:
    """Row i is one sample, S + 1 tokens: inputs are its first S, targets its last S."""

    tokens: npt.NDArray[np.int64]  # [n, S + 1]
    loss: Bools | None = None  # whether predicting this token counts; None: every one does
    starts: Bools | None = None  # whether a document begins here; None: not asked for
    skipped: tuple[Skipped, ...] = ()

    @property
    def counted(self) -> int:
        """Targets that count in the loss."""
        if self.loss is not None:
            return int(np.count_nonzero(self.loss[:, 1:]))
        rows, length = self.tokens.shape
        return rows * (length - 1)

    def __len__(self) -> int:
        return len(self.tokens)
