"""Random numbers of one life, drawn many at a time: one call of numpy for one number is slow."""

from collections.abc import Callable, Iterator

import numpy as np

CHUNK = 512


def generator(seed: int, life: int) -> np.random.Generator:
    """Return the generator of one life: the same life for the same seed, however many there are."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, life])))


class Draws:
    """Streams of random numbers. Each is a bound `__next__`, the cheapest call that Python has."""

    def __init__(self, source: np.random.Generator) -> None:
        self.source = source
        self.uniform: Callable[[], float] = _stream(source.random).__next__  # from 0 to 1
        self.exponential: Callable[[], float] = _stream(source.standard_exponential).__next__
        self.normal: Callable[[], float] = _stream(source.standard_normal).__next__


def _stream(draw: Callable[[int], np.ndarray]) -> Iterator[float]:
    """Yield numbers without end; a chunk is drawn when its first number is needed."""
    while True:
        yield from reversed(draw(CHUNK).tolist())
