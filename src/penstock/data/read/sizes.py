"""How a number of tokens becomes samples, and which of them are held out."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """The last samples of a dataset are held out; all before them are trained on."""

    samples: int
    held_out: int

    @classmethod
    def of(cls, tokens: int, sequence: int, holdout: float) -> "Split":
        """Sample i takes tokens [i*S, i*S + S + 1): the last target is the next one's first."""
        total = max(tokens - 1, 0) // sequence
        held_out = max(1, int(total * holdout)) if holdout > 0 else 0
        return cls(max(0, total - held_out), held_out)


def held_out_of(splits: Sequence[Split], weights: Sequence[float]) -> int:
    """How many samples an evaluation of a mixture can draw: as many as keep to the weights."""
    if len(splits) == 1:
        return splits[0].held_out
    from penstock.data.read.mix import cycle_of  # numpy, which a plan of one dataset does without

    return cycle_of(weights).reach([split.held_out for split in splits])
