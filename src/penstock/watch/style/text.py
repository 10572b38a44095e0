"""Text about a run, and text that is safe to show."""

import math
from typing import Any

from penstock.style import format_count

# Control characters, halves of surrogate pairs, and characters that change the writing direction.
_STEERING = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = dict.fromkeys((*_STEERING, *range(0xD800, 0xE000)), "\ufffd") | {10: "\n", 9: "\t"}


def printable(text: str) -> str:
    """Replace characters that would control a terminal or break a page by �.

    Files and errors may hold anything.
    """
    return text.translate(_CONTROLS)


def finite(number: float) -> float | None:
    """Return a float, or None for NaN and infinity, which JSON does not have."""
    return float(number) if math.isfinite(number) else None


def dataset_text(dataset: object) -> str:
    """Name the dataset of a plan: one name, one with its location, or the parts of a mixture."""
    if isinstance(dataset, list):
        return " + ".join(dataset_text(part) for part in dataset)
    return f"{dataset['id']} at {dataset['at']}" if isinstance(dataset, dict) else str(dataset)


def model_text(plan: dict[str, Any]) -> str:
    """Describe the size of a plan's model, and of its adapter if only that is trained."""
    if not plan.get("params"):
        return "own module"
    trained = f", {format_count(plan['trained'])} trained beside them" if "trained" in plan else ""
    return f"{format_count(plan['params'])} parameters{trained}"
