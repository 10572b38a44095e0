"""Comparison of a checkpoint's weights with a model, by names and shapes alone."""

from collections.abc import Mapping, Sequence

SHOWN = 3
Shapes = Mapping[str, Sequence[int]]


def shape_differences(saved: Shapes, wanted: Shapes) -> str:
    """Say the first differences between a checkpoint's shapes and a model's; empty if none."""
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
