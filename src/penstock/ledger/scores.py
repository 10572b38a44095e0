"""Scores of benchmark tasks: what an evaluation writes, and reports and the page read.

A run keeps them in two places. Evaluations during training are events of its journal; those of
`penstock evaluate` are files in `evaluations/`, one for each, because they come after the run.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Self


@dataclass(frozen=True)
class TaskScore:
    """One metric of one task; `value` is None where the harness gave no finite number."""

    task: str
    metric: str  # acc, exact_match, word_perplexity, …
    value: float | None
    stderr: float | None = None
    filter: str = "none"  # how answers were picked out of what the model wrote
    higher_is_better: bool | None = None
    shots: int = 0  # examples in front of each question
    documents: int = 0  # that were evaluated

    @property
    def name(self) -> str:
        """Return `task metric`, with the filter where it is not the plain one."""
        picked = "" if self.filter == "none" else f" ({self.filter})"
        return f"{self.task} {self.metric}{picked}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """Read a score; None if it is damaged."""
        if not isinstance(value, Mapping):
            return None
        task, metric = value.get("task"), value.get("metric")
        if not isinstance(task, str) or not isinstance(metric, str):
            return None
        higher, picked = value.get("higher_is_better"), value.get("filter", "none")
        return cls(
            task=task,
            metric=metric,
            value=finite_or_none(value.get("value")),
            stderr=finite_or_none(value.get("stderr")),
            filter=picked if isinstance(picked, str) else "none",
            higher_is_better=higher if isinstance(higher, bool) else None,
            shots=_whole(value.get("shots")),
            documents=_whole(value.get("documents")),
        )


@dataclass(frozen=True)
class TaskScores:
    """The scores of one model at one step."""

    scores: tuple[TaskScore, ...]
    step: int | None = None  # None: a folder of an open model
    t: float = 0.0  # unix seconds
    limit: int | None = None  # documents of each task; None: all
    truncated: int = 0  # requests that were longer than the model's context
    during: bool = False  # of training; else by `penstock evaluate`

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "scores": [one.to_json() for one in self.scores]}

    @classmethod
    def from_json(cls, value: object, during: bool = False) -> Self | None:
        """Read what `to_json` or an event of the journal has; None if it is damaged."""
        if not isinstance(value, Mapping) or not isinstance(value.get("scores"), list):
            return None
        found = (TaskScore.from_json(one) for one in value["scores"])
        step, limit = value.get("step"), value.get("limit")
        return cls(
            scores=tuple(one for one in found if one is not None),
            step=step if type(step) is int else None,
            t=finite_or_none(value.get("t")) or 0.0,
            limit=limit if type(limit) is int else None,
            truncated=_whole(value.get("truncated")),
            during=during,
        )


def finite_or_none(value: object) -> float | None:
    """Return a number as JSON can hold it; None if it is none or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)


def _whole(value: object) -> int:
    return value if type(value) is int else 0
