"""Random numbers of one life, drawn many at a time: one call of numpy for one number is slow."""

import numpy as np

CHUNK = 512


def generator(seed: int, life: int) -> np.random.Generator:
    """Return the generator of one life: the same life for the same seed, however many there are."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, life])))


class Draws:
    """A stream of random numbers."""

    def __init__(self, source: np.random.Generator) -> None:
        self.source = source
        self._uniform: list[float] = []
        self._exponential: list[float] = []
        self._normal: list[float] = []

    def uniform(self) -> float:
        """Return a number from 0 to 1."""
        if not self._uniform:
            self._uniform = self.source.random(CHUNK).tolist()
        return self._uniform.pop()

    def exponential(self) -> float:
        """Return an exponential number of mean 1."""
        if not self._exponential:
            self._exponential = self.source.standard_exponential(CHUNK).tolist()
        return self._exponential.pop()

    def normal(self) -> float:
        """Return a normal number of mean 0 and deviation 1."""
        if not self._normal:
            self._normal = self.source.standard_normal(CHUNK).tolist()
        return self._normal.pop()
