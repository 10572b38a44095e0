"""Scores of benchmark tasks as a table: a row for each metric, a column for each model."""

from collections.abc import Iterator, Sequence

from rich.table import Column, Table
from rich.text import Text

from penstock.ledger.scores import TaskScore, TaskScores
from penstock.watch.facts.task_scores import score_text
from penstock.watch.style.markup import Markup, tag

Key = tuple[str, str, str]  # task, metric, filter


def scores_table(columns: Sequence[tuple[str, TaskScores]]) -> Table:
    """Return a table of all scores; with several models, the best of each row is green."""
    titles = [Column(Text(title), justify="right", no_wrap=True) for title, _ in columns]
    table = Table("task", "metric", *titles, box=None)
    for task, metric, row in score_rows(columns):
        best = _best(row)
        cells = [
            Text(score_text(one), style="green" if one is not None and one is best else "")
            for one in row
        ]
        table.add_row(Text(task), Text(metric), *cells)
    return table


def scores_markup(columns: Sequence[tuple[str, TaskScores]]) -> Markup:
    """Return the same table for a page."""
    heads = [tag("th", ""), tag("th", ""), *(tag("th", name, class_="n") for name, _ in columns)]
    rows = [
        tag(
            "tr",
            tag("td", task),
            tag("td", metric),
            *(tag("td", score_text(one), class_="n") for one in row),
        )
        for task, metric, row in score_rows(columns)
    ]
    return tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows))


def score_rows(
    columns: Sequence[tuple[str, TaskScores]],
) -> Iterator[tuple[str, str, list[TaskScore | None]]]:
    """Yield task, metric and the score of each column, in the order of the harness."""
    found = [{_key(one): one for one in results.scores} for _, results in columns]
    for key in dict.fromkeys(key for scores in found for key in scores):
        picked = "" if key[2] == "none" else f" ({key[2]})"
        yield key[0], f"{key[1]}{picked}", [scores.get(key) for scores in found]


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
