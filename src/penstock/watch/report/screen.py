"""The report of a run as one terminal screen; `result.py` has the same values for programs."""

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.ledger.causes import Cause
from penstock.policy.restart import EARLY
from penstock.run.folder import RunFolder
from penstock.style import LEVEL_STYLES, STATUS_LEVELS, format_duration, format_loss, format_percent
from penstock.watch.facts.rewards import held_out_rewards, recent, training_rewards
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.facts.task_scores import newest_columns
from penstock.watch.report.result import Report
from penstock.watch.report.scores import scores_table
from penstock.watch.style.text import printable

BAR = 28  # characters of a full bar


def summary(folder: RunFolder) -> dict[str, Any]:
    """Return the report as plain values, for JSON."""
    return Report.of(folder).to_json()


def screen(folder: RunFolder) -> RenderableType:
    """Return the report: result, plan against actual, time by cause, costs, problems, advice."""
    facts = RunFacts(RunView(folder))
    view = facts.view
    parts: list[RenderableType] = [_headline(facts), Text()]
    if facts.plan:
        parts += [_grid([("plan", facts.plan.sentence(), "")]), Text()]
    parts += [_ledger(facts), Text()]
    lines = [*facts.spending_lines(), *facts.output_lines(), *facts.problem_lines()]
    parts.append(_grid([(line.name, line.text, LEVEL_STYLES[line.level]) for line in lines]))
    if view.task_scores:
        parts += [Text(), Text("Tasks", style="cyan")]
        parts.append(scores_table(newest_columns(view.task_scores)))
    if facts.advice:
        parts += [Text(), Text("To go faster or cheaper", style="cyan")]
        parts.append(_grid([(str(one.cause), one.words, "") for one in facts.advice]))
    prompt, sample = view.prompt, view.sample
    if sample and view.status in ("done", EARLY):
        parts += [Text(), Text("Given", style="cyan"), Text(printable(str(prompt)), style="dim")]
        parts += [Text("the model writes", style="cyan"), Text(printable(str(sample)))]
    return Group(*parts)


def _grid(rows: Iterable[tuple[str, str, str]]) -> Table:
    """Return rows of a name and a text, which wraps in its own column."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, min_width=8)
    grid.add_column(overflow="fold")
    for name, words, style in rows:
        grid.add_row(Text(name, style=style), Text(printable(words), style=style))
    return grid


def _headline(facts: RunFacts) -> Table:
    view = facts.view
    grid = Table.grid(padding=(0, 2))
    grid.add_row(Text(view.folder.name, style="bold"), _status(view))
    if facts.model_text:
        grid.add_row("model", Text(facts.model_text))
    if facts.precision_text:
        grid.add_row("precision", Text(facts.precision_text))
    if len(view.curve):
        last = ""
        if view.validation:
            (_, first), (step, final) = view.validation[0], view.validation[-1]
            last = f", validation {format_loss(first)} → {format_loss(final)}"
            if len(view.validation) == 1:
                last = f", validation {format_loss(final)} (step {step})"
        grid.add_row(
            "loss", f"{format_loss(view.curve['loss'][0])} → {format_loss(view.loss)}{last}"
        )
        for name, found in (
            ("rewards", recent(training_rewards(view))),
            ("held out", recent(held_out_rewards(view)[-1:])),
        ):
            if found:
                grid.add_row(name, found.words())
        grid.add_row("speed", facts.speed_text)
        if facts.passes_text:
            grid.add_row("data", facts.passes_text)
        if facts.rounds:
            grid.add_row("rounds", facts.rounds.words())
    return grid


def _status(view: RunView) -> Text:
    text = Text(view.status, style=LEVEL_STYLES[STATUS_LEVELS.get(view.status, "bad")])
    text.append(f", step {view.step} of {view.steps}", style="default")
    if view.resumed_from is not None:
        text.append(f", resumed from step {view.resumed_from}", style="default")
    return text


def _ledger(facts: RunFacts) -> Table:
    """Return seconds per rank, share and bar of every cause; useful and effective share below."""
    account = facts.view.account
    table = Table(box=None, padding=(0, 1), show_edge=False)
    for name, side in (
        ("where it went", "left"),
        ("planned", "right"),
        ("time", "right"),
        ("share", "right"),
        ("", "left"),
    ):
        if facts.plan or name != "planned":
            table.add_column(name, justify=side, header_style="dim")  # type: ignore[arg-type]

    def add(name: str, planned_s: float, *cells: str | Text) -> None:
        table.add_row(name, *([format_duration(planned_s)] if facts.plan else []), *cells)

    for row in facts.by_cause:
        if row.worth_a_row:
            style = "green" if row.cause is Cause.COMPUTE else "yellow" if row.share > 0.05 else ""
            bar = Text("█" * round(row.share * BAR) or "▏", style=style)
            time = format_duration(row.share * account.wall_s)
            add(str(row.cause), row.planned_s or 0.0, time, format_percent(row.share), bar)
    # The sum is the wall-clock time, so that it does not look wrong by a rounded second.
    planned_s = sum(row.planned_s or 0.0 for row in facts.by_cause)
    wall = format_duration(account.wall_s)
    add("[bold]wall-clock[/]", planned_s, wall, "100.0%", facts.shares_text)
    return table
