"""All labels of a document, the score that decides, and the number of copies of the document.

A score is an integer in thousandths: 0 to 1000 from the classifier and the heuristic, or a thousand
times the number in a column of the user's.
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
from penstock.data.label.heuristic import Scores
from penstock.errors import PenstockError

CopySteps = tuple[tuple[float, float], ...]

CLASSIFIER, HEURISTIC = "classifier", "heuristic"
# Reasons to drop a document; `LabelledTexts.broken` is an index into them.
DROP_REASONS = ("label.no_score", "label.low_score")

_ONCE: CopySteps = ((0.0, 1.0),)
_LARGEST = 1e12  # numbers in a column; their thousandths fit 64 bits
_SEED = 0x6C6162656C  # so that the copies of a document are independent of other hashes of its id


@dataclass(frozen=True)
class LabelConfig:
    """Settings: which score decides, what is dropped, how many copies a score gives."""

    use: str = HEURISTIC  # or `CLASSIFIER`, or the name of a column with numbers
    least: float | None = None  # a lower score is dropped
    copies: CopySteps = _ONCE  # (from this score on, copies); one copy below the first step

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.copies]
        if starts != sorted(set(starts)):
            raise PenstockError(f"label: the scores in copies are {starts}; write them rising.")
        if any(count < 0 for _, count in self.copies):
            raise PenstockError("label: copies has a number below 0; 0 leaves a document out.")


@dataclass(frozen=True)
class LabelledTexts:
    """The labels of several texts."""

    scores: Scores  # thousandths; 0 where there is none
    broken: npt.NDArray[np.int16]  # index into `DROP_REASONS`, -1 where kept
    labels: dict[str, Scores]  # `quality.heuristic`, `quality.classifier`: thousandths

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        return self.broken < 0

    def reason(self, document: int) -> str | None:
        """Return the reason why the document was dropped; None if it is kept."""
        index = int(self.broken[document])
        return None if index < 0 else DROP_REASONS[index]


def label_texts(
    texts: Sequence[str],
    measures: Measures,
    columns: Sequence[Mapping[str, object]],
    config: LabelConfig,
    classifier: Classifier | None = None,
) -> LabelledTexts:
    """Label each text. `measures` are those of the filters for the same texts; may be empty.

    Labels that cost nothing extra are computed too, whichever one decides.
    """
    labels: dict[str, Scores] = {}
    if config.use == HEURISTIC or all(name in measures for name in heuristic.NEEDED_MEASURES):
        labels["quality.heuristic"] = heuristic.score_texts(texts, measures)
    if classifier is not None:
        labels["quality.classifier"] = classifier.scores(texts)
    broken = np.full(len(texts), -1, np.int16)
    if config.use == HEURISTIC:
        scores = labels["quality.heuristic"]
    elif config.use == CLASSIFIER:
        if classifier is None:
            raise PenstockError(
                "label: use is 'classifier', but there is no classifier. Name files with examples "
                "in `good` and `bad`, or use 'heuristic'."
            )
        scores = labels["quality.classifier"]
    else:
        given = [_thousandths(row.get(config.use)) for row in columns]
        scores = np.array([score or 0 for score in given], np.int64)
        broken[np.array([score is None for score in given], np.bool_)] = 0
    if config.least is not None:
        broken[(broken < 0) & (scores < round(config.least * 1000))] = 1
    return LabelledTexts(scores, broken, labels)


def _thousandths(value: object) -> int | None:
    """Return a number in thousandths; None for text, true and false, null and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round(value * 1000) if abs(value) < _LARGEST else None


def count_copies(ids: Sequence[str], scores: Scores, table: CopySteps) -> npt.NDArray[np.int64]:
    """Return how often each document appears.

    With n.f copies a document appears n or n + 1 times, the latter with probability f. A hash of
    its id decides which.
    """
    starts = np.array([round(start * 1000) for start, _ in table], np.int64)
    # Row 0 is for scores below the first step.
    exact = [Fraction(1), *(Fraction(str(count)) for _, count in table)]
    row = np.searchsorted(starts, scores, "right")
    whole = np.array([int(count) for count in exact], np.int64)
    part = np.array([int((count - int(count)) * 2**64) for count in exact], np.uint64)
    out = whole[row]
    for at in np.flatnonzero(part[row] > 0).tolist():
        draw = xxhash.xxh3_64_intdigest(ids[at].encode("utf-8", "surrogatepass"), _SEED)
        out[at] += draw < int(part[row[at]])
    return out
