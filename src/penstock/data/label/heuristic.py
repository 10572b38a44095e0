"""A quality score without examples: how much a text looks like written prose.

The score is the weighted mean, in thousandths, of linear ramps from 0 to 1000, each over one
measure of the filters. Measures are rounded to thousandths first; the rest is integer arithmetic,
so the score is the same on every machine.

| ramp | weight | measure | 0 at | 1000 at |
|---|---|---|---|---|
| letters | 20 | words with a letter, share | 0.600 | 0.900 |
| stop words | 20 | different ones of the eight of Gopher | 1 | 6 |
| sentences | 20 | lines that end a sentence, share | 0.050 | 0.600 |
| fresh | 20 | characters in runs of 5 words said before, share | 0.200 | 0.010 |
| whole lines | 10 | lines of up to 30 characters, share | 0.700 | 0.200 |
| length | 10 | words | 30 | 500 |

A text without any word scores 0, whatever its lines look like. Only the first million characters
of a text are measured, since the measures take about 60 bytes of memory per character.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.data.clean.batch import Measures
from penstock.data.clean.config import Filters, FineWeb, GopherQuality, GopherRepetition
from penstock.data.clean.filters import run_filters

Scores = npt.NDArray[np.int64]

REVISION = 2  # raise it when the ramps or their combination change
CHARACTERS = 1 << 20  # only the beginning of a text is used


@dataclass(frozen=True)
class Ramp:
    """One linear part of the score."""

    weight: int
    measure: str
    zero_at: int  # thousandths of the measure, here and below
    full_at: int

    def score(self, values: npt.NDArray[np.float64]) -> Scores:
        thousandths = np.floor(values * 1000 + 0.5).astype(np.int64)
        width = self.full_at - self.zero_at  # negative where less is better
        return np.clip((thousandths - self.zero_at) * 1000 // width, 0, 1000)


RAMPS = (
    Ramp(20, "gopher_quality.alphabetic_words", 600, 900),
    Ramp(20, "gopher_quality.stop_words", 1000, 6000),
    Ramp(20, "fineweb.punctuated_lines", 50, 600),
    Ramp(20, "gopher_repetition.duplicate_5_words", 200, 10),
    Ramp(10, "fineweb.short_lines", 700, 200),
    Ramp(10, "gopher_quality.words", 30_000, 500_000),
)
NEEDED_MEASURES = tuple(ramp.measure for ramp in RAMPS)
_MEASURED = Filters(
    GopherRepetition(top=(), duplicate=((5, 1.0),)), GopherQuality(), c4=None, fineweb=FineWeb()
)


def score_texts(texts: Sequence[str], measures: Measures) -> Scores:
    """Return the score of each text in thousandths.

    `measures` are those of the filters. Missing ones, of filters that are off, are taken here.
    """
    if any(name not in measures for name in NEEDED_MEASURES):
        measures = run_filters([text[:CHARACTERS] for text in texts], _MEASURED).measures | measures
    total = np.zeros(len(texts), np.int64)
    for ramp in RAMPS:
        total += ramp.weight * ramp.score(measures[ramp.measure])
    empty = measures["gopher_quality.words"] == 0
    return np.where(empty, 0, total // sum(ramp.weight for ramp in RAMPS))
