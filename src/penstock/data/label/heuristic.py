"""A quality score without examples: how much a text looks like written prose.

Each part is a straight ramp from 0 to 1000 over one measure of the filters, and the score is their
weighted mean, in thousandths. Measures are taken in thousandths first; what follows is arithmetic
of whole numbers, so the score is the same on every machine.

| part | weight | measure | nothing at | full at |
|---|---|---|---|---|
| letters | 20 | words with a letter, share | 0.600 | 0.900 |
| stop words | 20 | different ones of the eight of Gopher | 1 | 6 |
| sentences | 20 | lines that end a sentence, share | 0.050 | 0.600 |
| fresh | 20 | characters in runs of 5 words said before, share | 0.200 | 0.010 |
| whole lines | 10 | lines of up to 30 characters, share | 0.700 | 0.200 |
| length | 10 | words | 30 | 500 |

A text without a single word is worth nothing, whatever its lines are like. Of a long text the
first million characters are judged: measures take some 60 bytes of memory a character.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.data.clean.batch import Measures
from penstock.data.clean.config import Filters, FineWeb, GopherQuality, GopherRepetition
from penstock.data.clean.filters import run

Scores = npt.NDArray[np.int64]

# A change in the parts, or in how they are put together, needs a new number.
REVISION = 2
CHARACTERS = 1 << 20  # of a text that are looked at, from its begin


@dataclass(frozen=True)
class Part:
    weight: int
    measure: str
    nothing: int  # thousandths of the measure, here and below
    full: int

    def score(self, values: npt.NDArray[np.float64]) -> Scores:
        thousandths = np.floor(values * 1000 + 0.5).astype(np.int64)
        way = self.full - self.nothing
        return np.clip((thousandths - self.nothing) * 1000 // way, 0, 1000)


PARTS = (
    Part(20, "gopher_quality.alphabetic_words", 600, 900),
    Part(20, "gopher_quality.stop_words", 1000, 6000),
    Part(20, "fineweb.punctuated_lines", 50, 600),
    Part(20, "gopher_repetition.duplicate_5_words", 200, 10),
    Part(10, "fineweb.short_lines", 700, 200),
    Part(10, "gopher_quality.words", 30_000, 500_000),
)
NEEDED = tuple(part.measure for part in PARTS)
_MEASURED = Filters(
    GopherRepetition(top=(), duplicate=((5, 1.0),)), GopherQuality(), c4=None, fineweb=FineWeb()
)


def scores(texts: Sequence[str], measures: Measures) -> Scores:
    """In thousandths. Measures that no filter has taken, since it is off, are taken here."""
    if any(name not in measures for name in NEEDED):
        measures = run([text[:CHARACTERS] for text in texts], _MEASURED).measures | measures
    total = np.zeros(len(texts), np.int64)
    for part in PARTS:
        total += part.weight * part.score(measures[part.measure])
    empty = measures["gopher_quality.words"] == 0
    return np.where(empty, 0, total // sum(part.weight for part in PARTS))
