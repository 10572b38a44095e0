"""Text about a run, and text that is safe to show."""

import math

from penstock.run.launch_record import LaunchRecord
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


def model_text(launch: LaunchRecord) -> str:
    """Describe the size of a run's model, and of its adapter if only that is trained."""
    if not launch.params:
        return "own module"
    trained = launch.trained
    beside = f", {format_count(trained)} trained beside them" if trained is not None else ""
    return f"{format_count(launch.params)} parameters{beside}"
