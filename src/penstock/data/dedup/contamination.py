"""Documents that contain evaluation texts, found by runs of words in common.

A document is contaminated when any run of `words` words of it, in words as `words.py` has them, is
in an evaluation text (13 as in GPT-3, appendix C). An evaluation text with fewer words counts
as one run, from `shortest` words on; shorter ones are in every corpus by chance and are skipped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from penstock.data.dedup.words import U64, Int64, Words, ngrams, words
from penstock.data.format.manifest import Json
from penstock.errors import PenstockError

REVISION = 1


@dataclass(frozen=True)
class Overlap:
    words: int = 13
    shortest: int = 8  # words of an evaluation text that is searched for as a whole

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.words:
            raise PenstockError(
                f"Decontamination: shortest is {self.shortest} and words is {self.words}; "
                "give 1 ≤ shortest ≤ words."
            )

    def identity(self) -> dict[str, Json]:
        return {"kind": "overlap", "revision": REVISION, **asdict(self)}


@dataclass(frozen=True)
class Evaluations:
    """The runs of all evaluation texts, by their length in words."""

    config: Overlap
    names: tuple[str, ...]
    runs: dict[int, tuple[U64, Int64, Int64]]  # sorted hashes, evaluation, text within it
    skipped: dict[str, int]  # texts too short to search for, by evaluation


@dataclass(frozen=True)
class Contaminated:
    """Why a document goes: the first run of it that an evaluation has."""

    document: int
    evaluation: str
    text: int  # within the evaluation
    words: str  # the run as the document writes it
    runs: int  # of the document that any evaluation has

    @property
    def reason(self) -> str:
        return f"overlaps evaluation {self.evaluation}"


def evaluations(texts: Mapping[str, Sequence[str]], config: Overlap) -> Evaluations:
    """From the name of each evaluation to its texts."""
    found: dict[int, list[tuple[U64, Int64, Int64]]] = {}
    skipped: dict[str, int] = {}
    names = tuple(sorted(texts))
    for number, name in enumerate(names):
        split = words(texts[name])
        counts = np.diff(split.offsets)
        skipped[name] = int((counts < config.shortest).sum())
        for length in range(config.shortest, config.words + 1):
            mine = counts >= length if length == config.words else counts == length
            if mine.any():
                hashes, offsets = ngrams(split, length)
                owner = np.repeat(np.arange(len(counts)), np.diff(offsets))
                picked = mine[owner]
                owner = owner[picked]
                entry = (hashes[picked], np.full(len(owner), number), owner)
                found.setdefault(length, []).append(entry)
    runs = {}
    for length, entries in found.items():
        hashes, numbers, owners = (np.concatenate(column) for column in zip(*entries, strict=True))
        # Of equal runs the first evaluation and text is named.
        hashes, first = np.unique(hashes, return_index=True)
        runs[length] = (hashes, numbers[first], owners[first])
    return Evaluations(config, names, runs, skipped)


def contaminated(texts: Sequence[str], against: Evaluations) -> list[Contaminated]:
    """The documents that overlap an evaluation, in order; the others are clean."""
    split = words(texts)
    found: dict[int, Contaminated] = {}
    for length in sorted(against.runs, reverse=True):
        for hit in _hits(split, length, against):
            before = found.get(hit.document)
            found[hit.document] = replace(before, runs=before.runs + hit.runs) if before else hit
    return [found[document] for document in sorted(found)]


def _hits(split: Words, length: int, against: Evaluations) -> list[Contaminated]:
    known, numbers, owners = against.runs[length]
    hashes, offsets = ngrams(split, length)
    place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    at = np.flatnonzero(known[place] == hashes)
    document = np.searchsorted(offsets, at, side="right") - 1
    documents, firsts, counts = np.unique(document, return_index=True, return_counts=True)
    hits = []
    for one, first, count in zip(documents, firsts, counts, strict=True):
        entry = place[at[first]]
        word = int(split.offsets[one] + at[first] - offsets[one])
        hits.append(
            Contaminated(
                document=int(one),
                evaluation=against.names[numbers[entry]],
                text=int(owners[entry]),
                words=split.text(word, word + length - 1),
                runs=int(count),
            )
        )
    return hits
