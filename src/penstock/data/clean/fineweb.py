"""Measures of FineWeb's own filter; the thresholds are in `config`."""

from collections.abc import Sequence

import numpy as np

from penstock.data.clean.batch import Measures, safe_ratio
from penstock.data.clean.characters import TERMINALS
from penstock.data.clean.config import FineWeb
from penstock.data.clean.words import Ints

_ENDS = frozenset(TERMINALS)


def measure_lines(texts: Sequence[str], word_counts: Ints, config: FineWeb) -> Measures:
    rows = [_lines(text, config.short_line_characters) for text in texts]
    lines, punctuated, short, repeated, breaks = np.array(rows, np.int64).reshape(-1, 5).T
    characters = np.fromiter(map(len, texts), np.int64, len(texts))
    return {
        "lines": lines.astype(np.float64),
        "punctuated_lines": safe_ratio(punctuated, lines),
        "short_lines": safe_ratio(short, lines),
        "duplicate_characters": safe_ratio(repeated, characters - breaks),
        "lines_per_word": safe_ratio(breaks, word_counts),
    }


def _lines(text: str, short: int) -> tuple[int, int, int, int, int]:
    """Count lines with text: all, punctuated, short; repeated characters; and line feeds."""
    every = text.split("\n")
    lines = [line for line in every if line and not line.isspace()]
    once = set(lines)
    return (
        len(lines),
        sum(line[-1] in _ENDS for line in lines),
        sum(len(line) <= short for line in lines),
        sum(map(len, lines)) - sum(map(len, once)) if len(once) < len(lines) else 0,
        len(every) - 1,
    )
