"""Documents that contain evaluation texts, found by shared n-grams of words.

A document is contaminated when any of its n-grams of `words` words also occurs in an evaluation
text (13 words, as in GPT-3, appendix C); `words.py` defines what a word is. An evaluation text with
fewer words counts as one n-gram if it has at least `shortest` words. Even shorter texts occur in
every corpus by chance and are skipped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from penstock.data.dedup.words import U64, HashedWords, Int64, hash_words, ngram_hashes
from penstock.data.format.manifest import Json
from penstock.errors import PenstockError

REVISION = 1


@dataclass(frozen=True)
class Overlap:
    """Settings of the decontamination."""

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
class EvaluationNgrams:
    """The n-grams of all evaluation texts, by their length in words."""

    config: Overlap
    names: tuple[str, ...]
    ngrams: dict[int, tuple[U64, Int64, Int64]]  # sorted hashes, evaluation, text within it
    skipped: dict[str, int]  # evaluation → number of texts too short to search for


@dataclass(frozen=True)
class Contamination:
    """The reason to remove a document: its first n-gram that occurs in an evaluation."""

    document: int
    evaluation: str
    text: int  # within the evaluation
    words: str  # the n-gram as written in the document
    ngrams: int  # n-grams of the document that occur in any evaluation

    @property
    def reason(self) -> str:
        return f"overlaps evaluation {self.evaluation}"


def index_evaluations(texts: Mapping[str, Sequence[str]], config: Overlap) -> EvaluationNgrams:
    """Collect the n-grams of evaluation texts. `texts` maps an evaluation's name to its texts."""
    found: dict[int, list[tuple[U64, Int64, Int64]]] = {}  # length → one entry per evaluation
    skipped: dict[str, int] = {}
    names = tuple(sorted(texts))
    for number, name in enumerate(names):
        split = hash_words(texts[name])
        counts = np.diff(split.offsets)
        skipped[name] = int((counts < config.shortest).sum())
        for length in range(config.shortest, config.words + 1):
            has_length = counts >= length if length == config.words else counts == length
            if has_length.any():
                hashes, offsets = ngram_hashes(split, length)
                owner = np.repeat(np.arange(len(counts)), np.diff(offsets))
                picked = has_length[owner]
                owner = owner[picked]
                entry = (hashes[picked], np.full(len(owner), number), owner)
                found.setdefault(length, []).append(entry)
    ngrams = {}
    for length, entries in found.items():
        hashes, numbers, owners = (np.concatenate(column) for column in zip(*entries, strict=True))
        # Equal n-grams keep their first evaluation and text.
        hashes, first = np.unique(hashes, return_index=True)
        ngrams[length] = (hashes, numbers[first], owners[first])
    return EvaluationNgrams(config, names, ngrams, skipped)


def find_contaminated(texts: Sequence[str], against: EvaluationNgrams) -> list[Contamination]:
    """Return the documents that overlap an evaluation, in order."""
    split = hash_words(texts)
    found: dict[int, Contamination] = {}
    for length in sorted(against.ngrams, reverse=True):
        for hit in _find_matches(split, length, against):
            longer = found.get(hit.document)  # from a longer n-gram; only the count grows
            found[hit.document] = (
                replace(longer, ngrams=longer.ngrams + hit.ngrams) if longer else hit
            )
    return [found[document] for document in sorted(found)]


def _find_matches(
    split: HashedWords, length: int, against: EvaluationNgrams
) -> list[Contamination]:
    known, numbers, owners = against.ngrams[length]
    hashes, offsets = ngram_hashes(split, length)
    place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    at = np.flatnonzero(known[place] == hashes)
    document = np.searchsorted(offsets, at, side="right") - 1
    documents, firsts, counts = np.unique(document, return_index=True, return_counts=True)
    hits = []
    for number, first, count in zip(documents, firsts, counts, strict=True):
        entry = place[at[first]]
        word = int(split.offsets[number] + at[first] - offsets[number])
        hits.append(
            Contamination(
                document=int(number),
                evaluation=against.names[numbers[entry]],
                text=int(owners[entry]),
                words=split.text(word, word + length - 1),
                ngrams=int(count),
            )
        )
    return hits
