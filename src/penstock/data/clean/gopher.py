"""What Gopher's two filters measure; the thresholds are in `config`."""

import re

import numpy as np
import numpy.typing as npt

from penstock.data.clean import characters as ch
from penstock.data.clean import grams
from penstock.data.clean.batch import Batch, Measures, share
from penstock.data.clean.config import GopherQuality, GopherRepetition

_PARAGRAPHS = re.compile(r"\n{2,}")
_LINES = re.compile(r"\n+")


def repetition(batch: Batch, config: GopherRepetition) -> Measures:
    paragraphs = [_duplicates(_PARAGRAPHS.split(text.strip())) for text in batch.texts]
    lines = [_duplicates(_LINES.split(text)) for text in batch.texts]
    characters = batch.characters
    measures = {"characters": characters.astype(np.float64)}
    for name, parts in (("paragraph", paragraphs), ("line", lines)):
        count, duplicates, duplicate_characters = np.array(parts, np.int64).reshape(-1, 3).T
        measures[f"duplicate_{name}s"] = share(duplicates, count)
        measures[f"duplicate_{name}_characters"] = share(duplicate_characters, characters)

    top = {n for n, _ in config.top}
    duplicate = {n for n, _ in config.duplicate}
    for found in grams.repeats(batch.words, batch.hashes, sorted(top | duplicate)):
        if found.n in top:
            total = grams.top_characters(batch.words, found)
            measures[f"top_{found.n}_words"] = share(total, characters)
        if found.n in duplicate:
            total = grams.repeated_characters(batch.words, found)
            measures[f"duplicate_{found.n}_words"] = share(total, characters)
    return measures


def _duplicates(parts: list[str]) -> tuple[int, int, int]:
    """How many parts there are, how many were there before, and the characters of those."""
    once = set(parts)
    return (
        len(parts),
        len(parts) - len(once),
        sum(map(len, parts)) - sum(map(len, once)) if len(once) < len(parts) else 0,
    )


def quality(batch: Batch, config: GopherQuality) -> Measures:
    words, texts = batch.words, batch.texts
    real = words.having(ch.SYMBOL, without=True)
    real_words = batch.per_document(real)
    every = batch.word_counts
    hashes = np.array([text.count("#") for text in texts], np.int64)
    ellipses = np.array([text.count("...") + text.count("…") for text in texts], np.int64)
    bullets = [sum(s.startswith(("•", "-")) for s in lines) for lines in batch.lines]
    trailing = [sum(s.endswith(("...", "…")) for s in lines) for lines in batch.lines]
    lines = np.array([len(lines) for lines in batch.lines], np.int64)
    return {
        "words": real_words.astype(np.float64),
        "word_characters": share(batch.per_document(np.where(real, words.lengths, 0)), real_words),
        "hashes_per_word": share(hashes, every),
        "ellipses_per_word": share(ellipses, every),
        "bullet_lines": share(np.array(bullets, np.int64), lines),
        "ellipsis_lines": share(np.array(trailing, np.int64), lines),
        "alphabetic_words": share(batch.per_document(words.having(ch.ALPHA)), every),
        "stop_words": _stop_words(batch, config.stop_words),
    }


def _stop_words(batch: Batch, stop_words: tuple[str, ...]) -> npt.NDArray[np.float64]:
    """How many of these words each document has."""
    total = np.zeros(len(batch.texts))
    for word in set(stop_words):
        row = np.frombuffer(word.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
        start, end = np.array([0]), np.array([len(row)])
        found = batch.hashes == grams.Slices(row).hashes(start, end)[0]
        total += batch.per_document(found) > 0
    return total
