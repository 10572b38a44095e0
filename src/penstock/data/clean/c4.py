"""C4's filter: removes lines of boilerplate, then asks for enough sentences."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from penstock.data.clean import characters as ch
from penstock.data.clean import words
from penstock.data.clean.batch import Batch, Measures
from penstock.data.clean.config import C4

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_ENDS = (".", "?", "!", '"', "'")
_NOTICES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
# A document without any of these has no line to look at more closely.
_HINTS = ("javascript", "lorem ipsum", "terms of use", "privacy policy", "cookie")


@dataclass(frozen=True)
class Cleaned:
    texts: list[str]  # the kept lines of each document
    word_counts: words.Ints  # of those
    measures: Measures


def clean(batch: Batch, config: C4) -> Cleaned:
    lines = list(chain.from_iterable(batch.lines))
    bounds = np.zeros(len(batch.texts) + 1, np.int64)  # the first line of each document
    np.cumsum([len(found) for found in batch.lines], out=bounds[1:])
    places = _line_places(batch, bounds)
    line_words = np.append(np.searchsorted(batch.words.places, places), len(batch.words.places))
    word_counts, sentences = np.diff(line_words), _sentences(batch.words, line_words)
    removed = _unwanted(batch, lines, places, config)
    if config.citations:
        _remove_citations(lines, word_counts, sentences)
    if config.terminal_punctuation:
        ended = [line.endswith(_ENDS) and not line.endswith("...") for line in lines]
        removed |= ~np.array(ended, np.bool_)

    said = _keywords(batch, lines, bounds)
    lorem_ipsum = ~removed & said["lorem ipsum"]
    if config.javascript:
        removed |= said["javascript"]
    curly_bracket = ~removed & np.array(["{" in line for line in lines], np.bool_)
    if config.notices:
        removed |= said["notice"]

    def total(values: words.Bools | words.Ints) -> words.Ints:
        sums = np.zeros(len(lines) + 1, np.int64)
        np.cumsum(values, out=sums[1:])
        return np.diff(sums[bounds])

    return Cleaned(
        texts=_kept(lines, removed, bounds),
        word_counts=total(np.where(removed, 0, word_counts)),
        measures={
            "lorem_ipsum_lines": total(lorem_ipsum).astype(np.float64),
            "curly_bracket_lines": total(curly_bracket).astype(np.float64),
            "sentences": total(np.where(removed, 0, sentences)).astype(np.float64),
            "removed_lines": total(removed).astype(np.float64),
        },
    )


def _line_places(batch: Batch, bounds: words.Ints) -> words.Ints:
    """Where each line starts in the batch joined by line feeds."""
    sizes = np.fromiter(map(len, chain.from_iterable(batch.raw_lines)), np.int64, int(bounds[-1]))
    document = np.repeat(np.arange(len(batch.texts)), np.diff(bounds))
    return np.cumsum(sizes) - sizes + document


def _sentences(found: words.Words, line_words: words.Ints) -> words.Ints:
    """Sentences per line: one, and one more for each word after a mark that ends a sentence.

    Other punctuation in between, such as a closing bracket, changes nothing.
    """
    plain = found.having(ch.PUNCTUATION, without=True)
    ending = (found.lengths == 1) & ((found.bits[found.starts[:-1]] & ch.TERMINAL) != 0)
    line = np.repeat(np.arange(len(line_words) - 1), np.diff(line_words))
    told = np.flatnonzero(ending | plain)
    opens = ending[told[:-1]] & ~ending[told[1:]] & (line[told[:-1]] == line[told[1:]])
    return 1 + np.bincount(line[told[1:]][opens], minlength=len(line_words) - 1)


def _unwanted(batch: Batch, lines: Sequence[str], places: words.Ints, config: C4) -> words.Bools:
    """Lines with too few words (between blanks), or with a word that is too long."""
    removed = np.zeros(len(lines), np.bool_)
    chunks = batch.words.chunks
    if config.min_line_words is not None:
        cuts = np.append(np.searchsorted(chunks, places), len(chunks))
        removed |= np.diff(cuts) < config.min_line_words
    longest = config.max_word_characters
    if longest is not None:
        for place, line in enumerate(lines):
            if len(line) > longest and max(map(len, line.split())) > longest:
                removed[place] = True
    return removed


def _remove_citations(lines: list[str], word_counts: words.Ints, sentences: words.Ints) -> None:
    """Rewrites the lines that have citations, and counts those anew."""
    changed: list[int] = []
    for place, line in enumerate(lines):
        if "[" in line and (rest := _CITATION.sub("", line)) != line:
            lines[place] = rest
            changed.append(place)
    if changed:
        again = words.split([lines[place] for place in changed])
        word_counts[changed] = np.diff(again.documents)
        sentences[changed] = _sentences(again, again.documents)


def _keywords(batch: Batch, lines: Sequence[str], bounds: words.Ints) -> dict[str, words.Bools]:
    """Which lines have boilerplate of which kind, in any case."""
    said = {
        name: np.zeros(len(lines), np.bool_) for name in ("javascript", "lorem ipsum", "notice")
    }
    for document, text in enumerate(batch.texts):
        small = text.lower()
        if not any(hint in small for hint in _HINTS):
            continue
        for place in range(bounds[document], bounds[document + 1]):
            line = lines[place].lower()
            said["javascript"][place] = "javascript" in line
            said["lorem ipsum"][place] = "lorem ipsum" in line
            said["notice"][place] = any(notice in line for notice in _NOTICES)
    return said


def _kept(lines: Sequence[str], removed: words.Bools, bounds: words.Ints) -> list[str]:
    keep = (~removed).tolist()
    cuts = bounds.tolist()
    return [
        "\n".join(line for line, kept in zip(lines[a:b], keep[a:b], strict=True) if kept).strip()
        for a, b in pairwise(cuts)
    ]
