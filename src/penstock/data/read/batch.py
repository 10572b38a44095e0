"""The result of a read: tokens with their loss mask and document marks."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Skipped:
    """A damaged block. Samples that need it keep their place and do not count in the loss.

    `samples` are the numbers, in the dataset, of the first and the last sample that need it.
    """

    dataset: str
    file: str
    block: int
    samples: tuple[int, int]


@dataclass(frozen=True)
class Batch:
    """Samples of S + 1 tokens, one per row: inputs are the first S, targets the last S."""

    tokens: npt.NDArray[np.int64]  # [n, S + 1]
    loss: Bools | None = None  # whether predicting this token counts; None: all of them do
    starts: Bools | None = None  # whether a document begins here; None: not requested
    skipped: tuple[Skipped, ...] = ()
    numbers: npt.NDArray[np.int64] | None = None  # of the samples, over all parts of the stream

    @property
    def counted(self) -> int:
        """Number of targets that count in the loss."""
        if self.loss is not None:
            return int(np.count_nonzero(self.loss[:, 1:]))
        rows, length = self.tokens.shape
        return rows * (length - 1)

    def __len__(self) -> int:
        return len(self.tokens)
