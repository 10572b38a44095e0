"""Scores of benchmark tasks as a table: a row for each metric, a column for each model."""

from collections.abc import Sequence

from rich.table import Column, Table
from rich.text import Text

from penstock.ledger.scores import TaskScore, TaskScores

Key = tuple[str, str, str]  # task, metric, filter


def scores_table(columns: Sequence[tuple[str, TaskScores]]) -> Table:
    """Return a table of all scores; with several models, the best of each row is green."""
    titles = [Column(Text(title), justify="right") for title, _ in columns]
    table = Table("task", "metric", *titles, box=None)
    found = [{_key(one): one for one in results.scores} for _, results in columns]
    for key in dict.fromkeys(key for scores in found for key in scores):
        row = [scores.get(key) for scores in found]
        best = _best(row) if len(columns) > 1 else None
        cells = [
            Text(score_text(one), style="green" if one is not None and one is best else "")
            for one in row
        ]
        picked = "" if key[2] == "none" else f" ({key[2]})"
        table.add_row(Text(key[0]), Text(f"{key[1]}{picked}"), *cells)
    return table


def score_text(score: TaskScore | None) -> str:
    """Format as `0.2917 ± 0.0948`."""
    if score is None or score.value is None:
        return "–"
    value = f"{score.value:.4f}" if abs(score.value) < 1000 else f"{score.value:.4g}"
    return value if score.stderr is None else f"{value} ± {score.stderr:.4f}"


def _key(score: TaskScore) -> Key:
    return score.task, score.metric, score.filter


def _best(row: Sequence[TaskScore | None]) -> TaskScore | None:
    """Return the best score of a row; None if that is not known, or all are equal."""
    known = [one for one in row if one is not None and one.value is not None]
    if len(known) < 2 or known[0].higher_is_better is None:
        return None
    if len({one.value for one in known}) == 1:
        return None
    pick = max if known[0].higher_is_better else min
    return pick(known, key=lambda one: one.value or 0.0)
