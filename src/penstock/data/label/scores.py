"""Every label of a document, the one score that decides, and how often the document appears.

A score is a whole number of thousandths: 0 to 1000 from the classifier and the heuristic, and a
thousand times the number for a column of the user's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import xxhash

from penstock.data.clean.batch import Measures
from penstock.data.label import heuristic
from penstock.data.label.classifier import Classifier
from penstock.errors import PenstockError

Scores = npt.NDArray[np.int64]
Steps = tuple[tuple[float, float], ...]

CLASSIFIER, HEURISTIC = "classifier", "heuristic"
# Why a document is dropped, in the order of `Labelled.broken`.
REASONS = ("label.no_score", "label.low_score")

_ONCE: Steps = ((0.0, 1.0),)
_LARGEST = 1e12  # of a column's numbers: thousandths fit 64 bits with room
_SEED = 0x6C6162656C  # the draw of a document's copies is its own


@dataclass(frozen=True)
class Label:
    use: str = HEURISTIC  # or `CLASSIFIER`, or the name of a column with numbers
    least: float | None = None  # a lower score is dropped
    copies: Steps = _ONCE  # (from this score on, copies); one copy below the first step

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.copies]
        if starts != sorted(set(starts)):
            raise PenstockError(f"label: the scores in copies are {starts}; let them grow.")
        if any(count < 0 for _, count in self.copies):
            raise PenstockError("label: copies has a number below 0; 0 leaves a document out.")


@dataclass(frozen=True)
class Labelled:
    scores: Scores  # thousandths; 0 where there is none
    broken: npt.NDArray[np.int16]  # index into `REASONS`, -1 where kept
    labels: dict[str, Scores]  # `quality.heuristic`, `quality.classifier`: thousandths

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        return self.broken < 0

    def reason(self, document: int) -> str | None:
        """Why the document was dropped; None if it is kept."""
        place = int(self.broken[document])
        return None if place < 0 else REASONS[place]


def label(
    texts: Sequence[str],
    measures: Measures,
    columns: Sequence[Mapping[str, object]],
    config: Label,
    classifier: Classifier | None = None,
) -> Labelled:
    """Labels each text. `measures` are those of the filters for the same texts; may be empty.

    Labels that cost nothing more are given too, whichever one decides.
    """
    labels: dict[str, Scores] = {}
    if config.use == HEURISTIC or all(name in measures for name in heuristic.NEEDED):
        labels["quality.heuristic"] = heuristic.scores(texts, measures)
    if classifier is not None:
        labels["quality.classifier"] = classifier.scores(texts)
    broken = np.full(len(texts), -1, np.int16)
    if config.use == HEURISTIC:
        scores = labels["quality.heuristic"]
    elif config.use == CLASSIFIER:
        if classifier is None:
            raise PenstockError(
                "label: use is 'classifier', but there is none. Name files with examples "
                "in `good` and `bad`, or use 'heuristic'."
            )
        scores = labels["quality.classifier"]
    else:
        found = [_thousandths(row.get(config.use)) for row in columns]
        scores = np.array([score or 0 for score in found], np.int64)
        broken[np.array([score is None for score in found], np.bool_)] = 0
    if config.least is not None:
        broken[(broken < 0) & (scores < round(config.least * 1000))] = 1
    return Labelled(scores, broken, labels)


def _thousandths(value: object) -> int | None:
    """None for what is no number: text, true and false, nothing, infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round(value * 1000) if abs(value) < _LARGEST else None


def copies(ids: Sequence[str], scores: Scores, table: Steps) -> npt.NDArray[np.int64]:
    """How often each document appears. The part of a copy is a draw that its id decides.

    A document that has n.f copies appears n or n + 1 times, the latter with a chance of f.
    """
    starts = np.array([round(start * 1000) for start, _ in table], np.int64)
    # Row 0 stands for the scores below the first step.
    exact = [Fraction(1), *(Fraction(str(count)) for _, count in table)]
    row = np.searchsorted(starts, scores, "right")
    whole = np.array([int(count) for count in exact], np.int64)
    part = np.array([int((count - int(count)) * 2**64) for count in exact], np.uint64)
    out = whole[row]
    for place in np.flatnonzero(part[row] > 0).tolist():
        draw = xxhash.xxh3_64_intdigest(ids[place].encode("utf-8", "surrogatepass"), _SEED)
        out[place] += draw < int(part[row[place]])
    return out
