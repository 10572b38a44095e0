"""Texts a few at a time: what is computed from a batch then fits a cache, or a memory."""

from collections.abc import Iterator, Sequence


def cuts(texts: Sequence[str], characters: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, last) of texts; each but the last has so many characters or more."""
    first = size = 0
    for place, text in enumerate(texts):
        size += len(text)
        if size >= characters:
            yield first, place + 1
            first, size = place + 1, 0
    if first < len(texts):
        yield first, len(texts)
