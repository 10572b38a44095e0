"""Measures of Gopher's two filters; the thresholds are in `config`."""

import re

import numpy as np
import numpy.typing as npt

from penstock.data.clean import characters as ch
from penstock.data.clean import ngrams
from penstock.data.clean.batch import Measures, TextBatch, safe_ratio
from penstock.data.clean.config import GopherQuality, GopherRepetition

_PARAGRAPHS = re.compile(r"\n{2,}")
_LINES = re.compile(r"\n+")


def measure_repetition(batch: TextBatch, config: GopherRepetition) -> Measures:
    paragraphs = [_duplicates(_PARAGRAPHS.split(text.strip())) for text in batch.texts]
    lines = [_duplicates(_LINES.split(text)) for text in batch.texts]
    characters = batch.characters
    measures = {"characters": characters.astype(np.float64)}
    for name, parts in (("paragraph", paragraphs), ("line", lines)):
        count, duplicates, duplicate_characters = np.array(parts, np.int64).reshape(-1, 3).T
        measures[f"duplicate_{name}s"] = safe_ratio(duplicates, count)
        measures[f"duplicate_{name}_characters"] = safe_ratio(duplicate_characters, characters)

    top = {n for n, _ in config.top}
    duplicate = {n for n, _ in config.duplicate}
    for found in ngrams.find_repeats(batch.words, batch.hashes, sorted(top | duplicate)):
        if found.n in top:
            total = ngrams.top_characters(batch.words, found)
            measures[f"top_{found.n}_words"] = safe_ratio(total, characters)
        if found.n in duplicate:
            total = ngrams.repeated_characters(batch.words, found)
            measures[f"duplicate_{found.n}_words"] = safe_ratio(total, characters)
    return measures


def _duplicates(parts: list[str]) -> tuple[int, int, int]:
    """Return the number of parts, the number of repeated parts, and the characters of these."""
    once = set(parts)
    return (
        len(parts),
        len(parts) - len(once),
        sum(map(len, parts)) - sum(map(len, once)) if len(once) < len(parts) else 0,
    )


def measure_quality(batch: TextBatch, config: GopherQuality) -> Measures:
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
        "word_characters": safe_ratio(
            batch.per_document(np.where(real, words.lengths, 0)), real_words
        ),
        "hashes_per_word": safe_ratio(hashes, every),
        "ellipses_per_word": safe_ratio(ellipses, every),
        "bullet_lines": safe_ratio(np.array(bullets, np.int64), lines),
        "ellipsis_lines": safe_ratio(np.array(trailing, np.int64), lines),
        "alphabetic_words": safe_ratio(batch.per_document(words.having(ch.ALPHA)), every),
        "stop_words": _stop_words(batch, config.stop_words),
    }


def _stop_words(batch: TextBatch, stop_words: tuple[str, ...]) -> npt.NDArray[np.float64]:
    """Return how many different ones of these words each document has."""
    total = np.zeros(len(batch.texts))
    for word in set(stop_words):
        row = np.frombuffer(word.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
        start, end = np.array([0]), np.array([len(row)])
        found = batch.hashes == ngrams.SliceHashes(row).hashes(start, end)[0]
        total += batch.per_document(found) > 0
    return total
