"""What FineWeb's own filter measures; the thresholds are in `config`."""

from collections.abc import Sequence

import numpy as np

from penstock.data.clean.batch import Measures, share
from penstock.data.clean.characters import TERMINALS
from penstock.data.clean.config import FineWeb
from penstock.data.clean.words import Ints

_ENDS = frozenset(TERMINALS)


def measure(texts: Sequence[str], word_counts: Ints, config: FineWeb) -> Measures:
    rows = [_lines(text, config.short_line_characters) for text in texts]
    lines, punctuated, short, repeated, breaks = np.array(rows, np.int64).reshape(-1, 5).T
    characters = np.fromiter(map(len, texts), np.int64, len(texts))
    return {
        "lines": lines.astype(np.float64),
        "punctuated_lines": share(punctuated, lines),
        "short_lines": share(short, lines),
        "duplicate_characters": share(repeated, characters - breaks),
        "lines_per_word": share(breaks, word_counts),
    }


def _lines(text: str, short: int) -> tuple[int, int, int, int, int]:
    """Lines that are not blank: all, those with an end mark, the short; characters; line feeds."""
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
