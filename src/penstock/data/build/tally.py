"""Tallies: counts and sample documents of a task; those of all tasks add up to the stage's.

Samples are the documents whose ids have the smallest hashes, so they do not depend on the tasks and
their order.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import xxhash

from penstock.data.build.record import SCORE_BIN, SampleDocument

KEPT = ""  # the "reason" of samples that were not dropped
_SAMPLES = {KEPT: 24}
_DROPPED = 4  # samples of each reason
_SEED = 0x73616D706C65
_SCORE_BINS = 1000 // SCORE_BIN
TEXT_CHARACTERS = 1500  # of a sample


@dataclass
class DocumentTally:
    """Counts of documents by kind and value, and a few sample documents by reason."""

    documents: int = 0  # that came in
    bytes: int = 0
    kept: int = 0
    # "reasons", "changes", "languages", "characters", "tokens", "scores" → what → documents
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    samples: dict[str, list[tuple[int, SampleDocument]]] = field(default_factory=dict)

    def count(self, kind: str, what: str, documents: int = 1) -> None:
        self.counts.setdefault(kind, Counter())[what] += documents

    def length(self, kind: str, value: int) -> None:
        """Count a length in a histogram of powers of two."""
        self.count(kind, str(max(value, 1).bit_length() - 1))

    def score(self, thousandths: int) -> None:
        self.count("scores", str(min(max(thousandths // SCORE_BIN, 0), _SCORE_BINS - 1)))

    def sample(self, reason: str, id: str, make: Callable[[], SampleDocument]) -> None:
        """Keep the document if its hash is among the smallest of its reason."""
        rank = xxhash.xxh3_64_intdigest(id.encode(), _SEED)
        some = self.samples.setdefault(reason, [])
        most = _SAMPLES.get(reason, _DROPPED)
        if len(some) < most or rank < some[-1][0]:
            some.append((rank, make()))
            some.sort(key=_rank)
            del some[most:]

    def add(self, other: "DocumentTally") -> None:
        self.documents += other.documents
        self.bytes += other.bytes
        self.kept += other.kept
        for kind, counter in other.counts.items():
            self.counts.setdefault(kind, Counter()).update(counter)
        for reason, theirs in other.samples.items():
            some = sorted(self.samples.get(reason, []) + theirs, key=_rank)
            self.samples[reason] = some[: _SAMPLES.get(reason, _DROPPED)]

    def of(self, kind: str) -> dict[str, int]:
        """Return the counts of a kind, sorted by name."""
        return dict(sorted(self.counts.get(kind, {}).items()))

    def histogram(self, kind: str) -> list[int]:
        """Return the bins up to the last one that is not empty."""
        found = {int(place): count for place, count in self.of(kind).items()}
        return [found.get(place, 0) for place in range(max(found, default=-1) + 1)]

    def scores(self) -> list[int]:
        found = self.of("scores")
        return [found.get(str(place), 0) for place in range(_SCORE_BINS)]

    def to_json(self) -> dict[str, Any]:
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "kept": self.kept,
            "counts": {kind: self.of(kind) for kind in sorted(self.counts)},
            "samples": {
                reason: [(rank, asdict(sample)) for rank, sample in some]
                for reason, some in sorted(self.samples.items())
            },
        }

    @staticmethod
    def from_json(stored: dict[str, Any]) -> "DocumentTally":
        return DocumentTally(
            stored["documents"],
            stored["bytes"],
            stored["kept"],
            {kind: Counter(counts) for kind, counts in stored["counts"].items()},
            {
                reason: [(rank, SampleDocument(**sample)) for rank, sample in some]
                for reason, some in stored["samples"].items()
            },
        )


def _rank(entry: tuple[int, SampleDocument]) -> tuple[int, str]:
    return entry[0], entry[1].id
