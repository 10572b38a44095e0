"""Rotary positions that were stretched to a longer context: one class for each kind of scaling.

`model/layers.py` computes the angles. `amplitude` multiplies cosines and sines.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's scaling: slow rotations become slower, fast ones stay.

    A rotation is slow when it turns less than `low` times in the `original` context, fast when it
    turns more than `high` times; in between, the two are mixed.
    """

    kind: ClassVar[str] = "llama3"
    amplitude: ClassVar[float] = 1.0
    factor: float  # slow rotations are divided by it
    low: float
    high: float
    original: int  # context of the first training, tokens


@dataclass(frozen=True)
class YarnScaling:
    """YaRN's scaling (arXiv 2309.00071): as Llama 3.1's, but mixed by channel, not by rotation.

    The mixture begins at the channel that turns `fast` times in the `original` context, and ends at
    the one that turns `slow` times. DeepSeek's `mscale` is a part of `amplitude`, and `mscale_all`
    also scales the scores of latent attention.
    """

    kind: ClassVar[str] = "yarn"
    factor: float
    fast: float
    slow: float
    original: int
    amplitude: float
    mscale: float = 0.0
    mscale_all: float = 0.0
    truncated: bool = True  # the mixture begins and ends at whole channels

    @property
    def score_scale(self) -> float:
        """The factor that multiplies the scores of latent attention."""
        return yarn_mscale(self.factor, self.mscale_all) ** 2 if self.mscale_all else 1.0


def yarn_mscale(factor: float, weight: float = 1.0) -> float:
    """Return the growth of queries and keys that YaRN proposes for a context `factor` times as
    long.
    """
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True)
class LongScaling:
    """LongRoPE's scaling (arXiv 2402.13753): each rotation is divided by a factor of its own.

    Up to the `original` context these are the short factors. Longer sequences, which would take the
    long ones, are refused: `ModelShape.longest`.
    """

    kind: ClassVar[str] = "longrope"
    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    amplitude: float


@dataclass(frozen=True)
class LinearScaling:
    """Every rotation is divided by one factor."""

    kind: ClassVar[str] = "linear"
    amplitude: ClassVar[float] = 1.0
    factor: float


RopeScaling: TypeAlias = Llama3Scaling | YarnScaling | LongScaling | LinearScaling
