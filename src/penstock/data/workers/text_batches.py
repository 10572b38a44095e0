"""Ranges of texts, a limited number of characters at a time, so that a batch fits a cache."""

from collections.abc import Iterator, Sequence


def batch_ranges(texts: Sequence[str], characters: int) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, last) of texts. Each but the last has at least `characters`."""
    first = size = 0
    for index, text in enumerate(texts):
        size += len(text)
        if size >= characters:
            yield first, index + 1
            first, size = index + 1, 0
    if first < len(texts):
        yield first, len(texts)
