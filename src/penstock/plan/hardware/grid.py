"""`Grid`: a quantity measured at a few sizes, interpolated to any size.

Times of kernels are close to straight lines between sizes on logarithmic axes, so that is how the
points are joined: exact at each of them, and never shrinking as a size grows.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product

Point = tuple[float, ...]  # sizes along each axis, then seconds


class Grid:
    """Points on a grid of one to three axes; corners may be missing.

    Beyond the last point of an axis the time goes on with the power `growth` of the size. Before
    the first it follows the first two, so that what a call costs at least is kept.
    """

    def __init__(self, points: Sequence[Point], growth: Sequence[float]) -> None:
        self.growth = tuple(growth)
        self.axes = [sorted({point[i] for point in points}) for i in range(len(self.growth))]
        found = {point[:-1]: point[-1] for point in points}
        self.logs: dict[tuple[int, ...], float] = {}
        for place in product(*(range(len(axis)) for axis in self.axes)):
            sizes = tuple(axis[i] for axis, i in zip(self.axes, place, strict=True))
            self.logs[place] = self._filled(place, found.get(sizes))

    def _filled(self, place: tuple[int, ...], seconds: float | None) -> float:
        """The log of a point, at least as long as every smaller one; or what its smaller
        neighbours say when it was not measured."""
        before = [
            (axis, self.logs[_moved(place, axis, -1)]) for axis in range(len(place)) if place[axis]
        ]
        if seconds is not None:
            return max([math.log(seconds), *(log for _, log in before)])
        return max(
            log
            + self.growth[axis]
            * math.log(self.axes[axis][place[axis]] / self.axes[axis][place[axis] - 1])
            for axis, log in before
        )

    @property
    def least(self) -> float:
        """Return the time of the smallest point."""
        return math.exp(self.logs[(0,) * len(self.axes)])

    def at_best(self, *sizes: float) -> float:
        """Return the time at the pace of the largest point."""
        last = tuple(len(axis) - 1 for axis in self.axes)
        grown = sum(
            growth * math.log(size / axis[-1])
            for growth, size, axis in zip(self.growth, sizes, self.axes, strict=True)
        )
        return math.exp(self.logs[last] + grown)

    def seconds(self, *sizes: float) -> float:
        corners = [self._between(axis, size) for axis, size in enumerate(sizes)]
        log = 0.0
        for place in product((0, 1), repeat=len(sizes)):
            weight = math.prod(corners[axis][1 + end] for axis, end in enumerate(place))
            if weight:
                at = tuple(corners[axis][0] + end for axis, end in enumerate(place))
                log += weight * self.logs[at]
        beyond = sum(
            growth * max(0.0, math.log(size / axis[-1]))
            for growth, size, axis in zip(self.growth, sizes, self.axes, strict=True)
        )
        below = sum(self._below(axis, size) for axis, size in enumerate(sizes))
        return math.exp(log + beyond - below)

    def _below(self, axis: int, size: float) -> float:
        """Return what a size before the first point of an axis takes off, by the first two points.

        Where all other sizes are the smallest: a slope that changed with them could shrink faster
        than they grow.
        """
        marks = self.axes[axis]
        if len(marks) == 1 or size >= marks[0]:
            return 0.0
        first = (0,) * len(self.axes)
        slope = self.logs[_moved(first, axis, 1)] - self.logs[first]
        return slope * math.log(marks[0] / size) / math.log(marks[1] / marks[0])

    def _between(self, axis: int, size: float) -> tuple[int, float, float]:
        """Return the point before `size` on an axis, its weight, and the weight of the next one."""
        marks = self.axes[axis]
        if len(marks) == 1 or size >= marks[-1]:
            return len(marks) - 1, 1.0, 0.0
        if size <= marks[0]:
            return 0, 1.0, 0.0
        low = max(i for i, mark in enumerate(marks) if mark <= size)
        part = math.log(size / marks[low]) / math.log(marks[low + 1] / marks[low])
        return low, 1.0 - part, part


@lru_cache(maxsize=256)
def grid(points: tuple[Point, ...], growth: tuple[float, ...]) -> Grid:
    """Return the grid of these points, cached: a search asks for the same curves thousands of
    times.
    """
    return Grid(points, growth)


def _moved(place: tuple[int, ...], axis: int, by: int) -> tuple[int, ...]:
    return (*place[:axis], place[axis] + by, *place[axis + 1 :])
