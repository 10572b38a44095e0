"""Scores of benchmark tasks of a run: those of training, from its journal, and those of `penstock
evaluate`, from the files in its folder.
"""

from collections.abc import Sequence
from dataclasses import replace

from penstock.ledger.journal.read import JournalLine
from penstock.ledger.scores import TaskScore, TaskScores
from penstock.run.folder import RunFolder
from penstock.untrusted import read_json

MOST = 64  # files that are read, the newest
COLUMNS = 3  # evaluations side by side in a report


def all_scores(
    folder: RunFolder, events: Sequence[JournalLine], step: int
) -> tuple[TaskScores, ...]:
    """Return all evaluations by step, then by time.

    Events of steps after `step` were taken back. The last score of a repeated step counts.
    """
    during: dict[int, TaskScores] = {}
    for event in events:
        found = TaskScores.from_json(event.payload, during=True)
        if found is not None and found.step is not None and found.step <= step:
            during[found.step] = replace(found, t=event.t)
    every = [*during.values(), *_saved(folder)]
    return tuple(sorted(every, key=lambda one: (one.step or 0, one.t)))


def _saved(folder: RunFolder) -> list[TaskScores]:
    """Return what `penstock evaluate` has written; a damaged file must not hide the others."""
    found = []
    for path in sorted(folder.evaluations.glob("step-*.json"))[-MOST:]:
        try:
            scores = TaskScores.from_json(read_json(path))
        except (OSError, ValueError):
            continue
        if scores is not None:
            found.append(scores)
    return found


def newest_columns(every: Sequence[TaskScores]) -> list[tuple[str, TaskScores]]:
    """Return the newest evaluations with a title each: `step 500` of training, else `step 500
    evaluate`, since that one may take longer texts; `first 20` if it had a limit.
    """
    titles: dict[str, TaskScores] = {}
    for one in every:
        part = "" if one.limit is None else f", first {one.limit}"
        title = f"step {one.step}{'' if one.during else ' evaluate'}{part}"
        titles.pop(title, None)
        titles[title] = one
    return list(titles.items())[-COLUMNS:]


def score_text(score: TaskScore | None) -> str:
    """Format as `0.2917 ± 0.0948`."""
    if score is None or score.value is None:
        return "–"
    value = f"{score.value:.4f}" if abs(score.value) < 1000 else f"{score.value:.4g}"
    return value if score.stderr is None else f"{value} ± {score.stderr:.4f}"


def scores_line(scores: Sequence[TaskScore], most: int = 4) -> str:
    """Return `arc acc 0.4167, sums exact_match 0.0000, and 3 more`."""
    shown = [
        f"{one.name} {score_text(replace(one, stderr=None))}"
        for one in scores[:most]
    ]  # fmt: skip
    more = f", and {len(scores) - most} more" if len(scores) > most else ""
    return ", ".join(shown) + more
