"""The decision whether a run resumes, begins at its first step or refuses, from what a search
found.

A checkpoint that cannot be read is not "no checkpoint": the steps that it holds are still worth
more than a run that trains over them. A run begins at its first step only when every place has
answered, none holds anything, and nothing durable was ever saved. Copies in memory may be lost at
any time, so they never count as saved.
"""

from dataclasses import dataclass
from typing import Literal

Action = Literal["resume", "begin", "refuse"]


@dataclass(frozen=True)
class Search:
    """The outcome of a search for checkpoints in every tier."""

    usable: bool  # at least one checkpoint can be loaded
    damaged: int = 0  # published checkpoints that cannot be
    unreadable: int = 0  # tiers, or the journal itself, that gave an error instead of an answer
    recorded_step: int | None = None  # newest durable save by the journal; None: none was completed


def decide(search: Search) -> Action:
    """Return what a run does with the outcome of a search."""
    if search.usable:
        return "resume"
    if search.damaged or search.unreadable or search.recorded_step is not None:
        return "refuse"
    return "begin"
