"""C4's filter: removes lines of boilerplate, then requires enough sentences."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from penstock.data.clean import characters as ch
from penstock.data.clean import words
from penstock.data.clean.batch import Measures, TextBatch
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
# A document without any of these words needs no closer look at its lines.
_HINTS = ("javascript", "lorem ipsum", "terms of use", "privacy policy", "cookie")


@dataclass(frozen=True)
class C4Result:
    """The remaining lines of a batch, and its measures."""

    texts: list[str]  # the kept lines of each document
    word_counts: words.Ints  # of the kept lines
    measures: Measures


def apply_c4(batch: TextBatch, config: C4) -> C4Result:
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

    has_keyword = _keywords(batch, lines, bounds)
    lorem_ipsum = ~removed & has_keyword["lorem ipsum"]
    if config.javascript:
        removed |= has_keyword["javascript"]
    curly_bracket = ~removed & np.array(["{" in line for line in lines], np.bool_)
    if config.notices:
        removed |= has_keyword["notice"]

    def total(values: words.Bools | words.Ints) -> words.Ints:
        sums = np.zeros(len(lines) + 1, np.int64)
        np.cumsum(values, out=sums[1:])
        return np.diff(sums[bounds])

    return C4Result(
        texts=_kept(lines, removed, bounds),
        word_counts=total(np.where(removed, 0, word_counts)),
        measures={
            "lorem_ipsum_lines": total(lorem_ipsum).astype(np.float64),
            "curly_bracket_lines": total(curly_bracket).astype(np.float64),
            "sentences": total(np.where(removed, 0, sentences)).astype(np.float64),
            "removed_lines": total(removed).astype(np.float64),
        },
    )


def _line_places(batch: TextBatch, bounds: words.Ints) -> words.Ints:
    """Return the position of each line in the batch joined by line feeds."""
    sizes = np.fromiter(map(len, chain.from_iterable(batch.raw_lines)), np.int64, int(bounds[-1]))
    document = np.repeat(np.arange(len(batch.texts)), np.diff(bounds))
    return np.cumsum(sizes) - sizes + document


def _sentences(found: words.Words, line_words: words.Ints) -> words.Ints:
    """Count sentences per line: one, and one more for each word after a sentence-ending mark.

    Other punctuation in between, such as a closing bracket, does not matter.
    """
    plain = found.having(ch.PUNCTUATION, without=True)
    ending = (found.lengths == 1) & ((found.bits[found.starts[:-1]] & ch.TERMINAL) != 0)
    line = np.repeat(np.arange(len(line_words) - 1), np.diff(line_words))
    relevant = np.flatnonzero(ending | plain)
    opens = (
        ending[relevant[:-1]] & ~ending[relevant[1:]] & (line[relevant[:-1]] == line[relevant[1:]])
    )
    return 1 + np.bincount(line[relevant[1:]][opens], minlength=len(line_words) - 1)


def _unwanted(
    batch: TextBatch, lines: Sequence[str], places: words.Ints, config: C4
) -> words.Bools:
    """Return which lines have too few words, or a word that is too long."""
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
    """Remove citations from lines, in place, and count these lines again."""
    changed: list[int] = []
    for place, line in enumerate(lines):
        if "[" in line and (rest := _CITATION.sub("", line)) != line:
            lines[place] = rest
            changed.append(place)
    if changed:
        again = words.split_words([lines[place] for place in changed])
        word_counts[changed] = np.diff(again.documents)
        sentences[changed] = _sentences(again, again.documents)


def _keywords(batch: TextBatch, lines: Sequence[str], bounds: words.Ints) -> dict[str, words.Bools]:
    """Return which lines contain which keywords, ignoring case."""
    has_keyword = {
        name: np.zeros(len(lines), np.bool_) for name in ("javascript", "lorem ipsum", "notice")
    }
    for document, text in enumerate(batch.texts):
        small = text.lower()
        if not any(hint in small for hint in _HINTS):
            continue
        for place in range(bounds[document], bounds[document + 1]):
            line = lines[place].lower()
            has_keyword["javascript"][place] = "javascript" in line
            has_keyword["lorem ipsum"][place] = "lorem ipsum" in line
            has_keyword["notice"][place] = any(notice in line for notice in _NOTICES)
    return has_keyword


def _kept(lines: Sequence[str], removed: words.Bools, bounds: words.Ints) -> list[str]:
    keep = (~removed).tolist()
    cuts = bounds.tolist()
    return [
        "\n".join(line for line, kept in zip(lines[a:b], keep[a:b], strict=True) if kept).strip()
        for a, b in pairwise(cuts)
    ]
