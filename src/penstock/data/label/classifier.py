"""A quality score learned from examples of good and bad documents.

The classifier is a logistic regression on words and pairs of words, computed in integers: the same
examples give the same weights, and the same text the same score, on every machine. The order of
training comes from hashes of the texts, so neither the files nor their order matter.
`docs/design/labels.md` compares it with scikit-learn and fastText and says why it is written here.

A fifth of the examples is held out. They calibrate the score, since training alone is too
confident, and they show the user how well it separates texts that it has not seen.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from penstock.data.label.features import REVISION as FEATURES
from penstock.data.label.features import Features, batch_features
from penstock.data.label.logistic import (
    Ints,
    LogisticWeights,
    fit_logistic,
    fixed_sqrt,
    log_losses,
    sigmoid,
    to_thousandths,
)
from penstock.errors import PenstockError
from penstock.untrusted import parse_json

REVISION = 1  # raise it when weights are learned or used in another way

MIN_EXAMPLES = 10  # of each kind
_MAGIC = b"PENSTOCK CLASSIFIER 1\n"
_HELD_OUT = 5  # every fifth example is held out
_UNIT_SCALE = 16  # a margin_scale of 16 leaves margins unchanged


@dataclass(frozen=True)
class ClassifierConfig:
    """Settings of the training."""

    bits: int = 18  # 2^bits buckets of 4 bytes
    epochs: int = 6
    rate: float = 4.0  # learning rate of the first step; it falls to 0
    most_examples: int = 20_000  # of each kind; if there are more, those with the smallest hashes

    def __post_init__(self) -> None:
        if not 10 <= self.bits <= 24:
            raise PenstockError(f"classifier: bits is {self.bits}; give 10 to 24.")
        if self.epochs < 1 or not 0 < self.rate <= 64:
            raise PenstockError("classifier: give at least 1 epoch, and a rate up to 64.")
        if self.most_examples < MIN_EXAMPLES:
            raise PenstockError(f"classifier: most_examples is under {MIN_EXAMPLES}.")


@dataclass(frozen=True)
class HeldOutResult:
    """Counts of right scores on the held-out examples."""

    good: int  # examples
    bad: int
    good_right: int  # scored 500 and more
    bad_right: int

    @property
    def accuracy(self) -> float:
        """Return the balanced accuracy: both kinds weigh the same."""
        return (self.good_right / self.good + self.bad_right / self.bad) / 2


@dataclass(frozen=True)
class Classifier:
    """Weights that score a text, and how well they did on the held-out examples."""

    bits: int
    bias: int
    margin_scale: int  # margins are multiplied by margin_scale / 16; "sureness" in the file
    weights: npt.NDArray[np.int32]
    held_out: HeldOutResult

    def scores(self, texts: Sequence[str]) -> Ints:
        """Return the score of each text in thousandths; 0 for a text without words."""
        parts = [self._score_batch(batch) for batch in batch_features(texts, self.bits)]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _score_batch(self, batch: Features) -> Ints:
        scores = _to_scores(_margins(batch, self.weights, self.bias), self.margin_scale)
        return np.where(np.diff(batch.offsets) > 0, scores, 0)

    def identity(self) -> str:
        """Return a hash that changes with anything that can change a score."""
        return blake3(self.to_bytes() + bytes([REVISION, FEATURES])).hexdigest()

    def to_bytes(self) -> bytes:
        fields = {
            "bits": self.bits,
            "bias": self.bias,
            "sureness": self.margin_scale,
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
            held_out = HeldOutResult(**fields.pop("held_out"))
            margin_scale = fields.pop("sureness")
            values = np.frombuffer(weights, "<i4").astype(np.int32)
            return cls(**fields, margin_scale=margin_scale, weights=values, held_out=held_out)
        except (ValueError, KeyError, TypeError) as error:
            raise PenstockError(
                f"This is not a complete classifier: {error}. Train it again from its examples."
            ) from None


def train_classifier(
    good: Sequence[str], bad: Sequence[str], config: ClassifierConfig | None = None
) -> Classifier:
    """Train a classifier that scores good documents near 1000 and bad ones near 0."""
    config = config or ClassifierConfig()
    kinds = [
        _choose_examples(texts, name, config) for name, texts in (("good", good), ("bad", bad))
    ]
    learn = [[t for i, t in enumerate(kind) if i % _HELD_OUT] for kind in kinds]
    check = [kind[::_HELD_OUT] for kind in kinds]
    trained = fit_logistic(
        list(batch_features(learn[0], config.bits)),
        list(batch_features(learn[1], config.bits)),
        config.bits,
        config.epochs,
        round(config.rate * 256),
    )
    good_margins, bad_margins = (_all_margins(texts, config.bits, trained) for texts in check)
    margin_scale = _calibrate(good_margins, bad_margins)
    held_out = HeldOutResult(
        good=len(good_margins),
        bad=len(bad_margins),
        good_right=int((_to_scores(good_margins, margin_scale) >= 500).sum()),
        bad_right=int((_to_scores(bad_margins, margin_scale) < 500).sum()),
    )
    return Classifier(config.bits, trained.bias, margin_scale, trained.weights, held_out)


def _choose_examples(texts: Sequence[str], name: str, config: ClassifierConfig) -> list[str]:
    """Return each text once, in the order of its hash, at most `most_examples`."""
    once = {blake3(t.encode("utf-8", "surrogatepass")).digest(): t for t in texts}
    if len(once) < MIN_EXAMPLES:
        raise PenstockError(
            f"The classifier has {len(once)} different {name} examples and needs at least "
            f"{MIN_EXAMPLES}; some hundreds are better. Name more files in label.{name}."
        )
    return [once[digest] for digest in sorted(once)[: config.most_examples]]


def _margins(batch: Features, weights: npt.NDArray[np.int32], bias: int) -> Ints:
    sums = np.zeros(len(batch.buckets) + 1, np.int64)
    np.cumsum(weights[batch.buckets], out=sums[1:])
    return (np.diff(sums[batch.offsets]) << 8) // fixed_sqrt(np.diff(batch.offsets)) + bias


def _all_margins(texts: Sequence[str], bits: int, trained: LogisticWeights) -> Ints:
    batches = batch_features(texts, bits)
    return np.concatenate([_margins(one, trained.weights, trained.bias) for one in batches])


def _to_scores(margins: Ints, margin_scale: int) -> Ints:
    return to_thousandths(sigmoid(margins * margin_scale // _UNIT_SCALE))


def _calibrate(good: Ints, bad: Ints) -> int:
    """Return the margin scale with the least log loss on the held-out examples, kinds balanced."""

    def loss(margin_scale: int) -> int:
        good_loss = int(log_losses()[_to_scores(good, margin_scale)].sum())
        bad_loss = int(log_losses()[1000 - _to_scores(bad, margin_scale)].sum())
        return good_loss * len(bad) + bad_loss * len(good)

    return min(range(1, 2 * _UNIT_SCALE + 1), key=loss)
