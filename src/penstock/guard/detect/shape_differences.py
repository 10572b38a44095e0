"""Whether the weights of a checkpoint are those of a model, by names and dimensions alone."""

from collections.abc import Mapping, Sequence

SHOWN = 3
Shapes = Mapping[str, Sequence[int]]


def shape_differences(saved: Shapes, wanted: Shapes) -> str:
    """The first differences between what a checkpoint holds and what a model has; empty if none."""
    found = [
        f"{name} is {_size(saved[name])} there and {_size(size)} in the model"
        for name, size in wanted.items()
        if name in saved and list(saved[name]) != list(size)
    ]
    found += [f"{name} is not in it" for name in wanted if name not in saved]
    found += [f"{name} is not in the model" for name in saved if name not in wanted]
    more = len(found) - SHOWN
    rest = f"; and {more} more" if more > 0 else ""
    return "; ".join(found[:SHOWN]) + rest


def _size(size: Sequence[int]) -> str:
    return " × ".join(map(str, size)) or "a number"
