"""A quality score learned from examples of good and bad documents.

It is a logistic regression on words and pairs of words, in whole numbers throughout: the same
examples give the same weights, and the same text the same score, on every machine. The order of
training comes from hashes of the texts, so neither files nor their order matter.

A fifth of the examples is held out. They set how sure the score may be (training alone is too sure
of itself), and they tell the user how well it separates what it has not seen.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from penstock.data.label.features import REVISION as FEATURES
from penstock.data.label.features import Features, batches
from penstock.data.label.integers import Ints, roots, sigmoid, surprises, thousandths
from penstock.data.label.train import Trained, fit
from penstock.errors import PenstockError
from penstock.untrusted import parse_json

# A change in how weights are learned or used needs a new number.
REVISION = 1

LEAST_EXAMPLES = 10  # of a kind
_MAGIC = b"PENSTOCK CLASSIFIER 1\n"
_HELD_OUT = 5  # every fifth
_SOFTEN = 16  # a sureness of 16 leaves the margin as it is


@dataclass(frozen=True)
class Training:
    bits: int = 18  # 2^bits buckets of 4 bytes
    epochs: int = 6
    rate: float = 4.0  # of the first step; it falls to 0
    most_examples: int = 20_000  # of a kind; of more, those with the smallest hashes

    def __post_init__(self) -> None:
        if not 10 <= self.bits <= 24:
            raise PenstockError(f"classifier: bits is {self.bits}; give 10 to 24.")
        if self.epochs < 1 or not 0 < self.rate <= 64:
            raise PenstockError("classifier: give at least 1 epoch, and a rate up to 64.")
        if self.most_examples < LEAST_EXAMPLES:
            raise PenstockError(f"classifier: most_examples is under {LEAST_EXAMPLES}.")


@dataclass(frozen=True)
class HeldOut:
    """How it does on the examples that it has not learned from."""

    good: int  # examples
    bad: int
    good_right: int  # scored 500 and more
    bad_right: int

    @property
    def accuracy(self) -> float:
        """As if there were as many good as bad ones."""
        return (self.good_right / self.good + self.bad_right / self.bad) / 2


@dataclass(frozen=True)
class Classifier:
    bits: int
    bias: int
    sureness: int  # margins are multiplied by sureness / 16
    weights: npt.NDArray[np.int32]
    held_out: HeldOut

    def scores(self, texts: Sequence[str]) -> Ints:
        """In thousandths; 0 for a text without words."""
        parts = [self._scores(some) for some in batches(texts, self.bits)]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _scores(self, some: Features) -> Ints:
        found = _scored(_margins(some, self.weights, self.bias), self.sureness)
        return np.where(np.diff(some.offsets) > 0, found, 0)

    def identity(self) -> str:
        """Changes with anything that can change a score."""
        return blake3(self.to_bytes() + bytes([REVISION, FEATURES])).hexdigest()

    def to_bytes(self) -> bytes:
        fields = {
            "bits": self.bits,
            "bias": self.bias,
            "sureness": self.sureness,
            "held_out": asdict(self.held_out),
        }
        header = json.dumps(fields, sort_keys=True).encode() + b"\n"
        return _MAGIC + header + self.weights.astype("<i4").tobytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Classifier":
        try:
            if not content.startswith(_MAGIC):
                raise ValueError("it does not begin as one")
            header, _, weights = content[len(_MAGIC) :].partition(b"\n")
            fields = parse_json(header)
            if not 0 <= fields["bits"] < 40 or len(weights) != 4 << fields["bits"]:
                raise ValueError(f"it has {len(weights)} bytes of weights")
            held_out = HeldOut(**fields.pop("held_out"))
            values = np.frombuffer(weights, "<i4").astype(np.int32)
            return cls(**fields, weights=values, held_out=held_out)
        except (ValueError, KeyError, TypeError) as error:
            raise PenstockError(
                f"This is not a whole classifier: {error}. Train it again from its examples."
            ) from None


def train(good: Sequence[str], bad: Sequence[str], config: Training | None = None) -> Classifier:
    """Learns to tell good documents (1000) from bad ones (0)."""
    config = config or Training()
    kinds = [_chosen(texts, name, config) for name, texts in (("good", good), ("bad", bad))]
    learn = [[t for i, t in enumerate(kind) if i % _HELD_OUT] for kind in kinds]
    check = [kind[::_HELD_OUT] for kind in kinds]
    trained = fit(
        list(batches(learn[0], config.bits)),
        list(batches(learn[1], config.bits)),
        config.bits,
        config.epochs,
        round(config.rate * 256),
    )
    good_margins, bad_margins = (_all_margins(texts, config.bits, trained) for texts in check)
    sureness = _sureness(good_margins, bad_margins)
    held_out = HeldOut(
        good=len(good_margins),
        bad=len(bad_margins),
        good_right=int((_scored(good_margins, sureness) >= 500).sum()),
        bad_right=int((_scored(bad_margins, sureness) < 500).sum()),
    )
    return Classifier(config.bits, trained.bias, sureness, trained.weights, held_out)


def _chosen(texts: Sequence[str], name: str, config: Training) -> list[str]:
    """Each text once, in the order of its hash, not too many."""
    once = {blake3(t.encode("utf-8", "surrogatepass")).digest(): t for t in texts}
    if len(once) < LEAST_EXAMPLES:
        raise PenstockError(
            f"The classifier has {len(once)} different {name} examples and needs at least "
            f"{LEAST_EXAMPLES}; some hundreds are better. Name more files in label.{name}."
        )
    return [once[digest] for digest in sorted(once)[: config.most_examples]]


def _margins(some: Features, weights: npt.NDArray[np.int32], bias: int) -> Ints:
    sums = np.zeros(len(some.buckets) + 1, np.int64)
    np.cumsum(weights[some.buckets], out=sums[1:])
    return (np.diff(sums[some.offsets]) << 8) // roots(np.diff(some.offsets)) + bias


def _all_margins(texts: Sequence[str], bits: int, trained: Trained) -> Ints:
    parts = [_margins(some, trained.weights, trained.bias) for some in batches(texts, bits)]
    return np.concatenate(parts)


def _scored(margins: Ints, sureness: int) -> Ints:
    return thousandths(sigmoid(margins * sureness // _SOFTEN))


def _sureness(good: Ints, bad: Ints) -> int:
    """The multiplier under which the held-out examples surprise least, both kinds alike."""

    def surprise(sureness: int) -> int:
        of_good = int(surprises()[_scored(good, sureness)].sum())
        of_bad = int(surprises()[1000 - _scored(bad, sureness)].sum())
        return of_good * len(bad) + of_bad * len(good)

    return min(range(1, 2 * _SOFTEN + 1), key=surprise)
