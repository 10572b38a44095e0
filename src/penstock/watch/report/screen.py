"""The report of a run as one screen for people; `result.py` has it for programs."""

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.ledger.causes import Cause
from penstock.plan.job.layout import Layout
from penstock.policy.restart import EARLY
from penstock.run.folder import RunFolder
from penstock.style import format_duration, format_loss, plural
from penstock.watch.facts.report_facts import Facts
from penstock.watch.facts.view import View
from penstock.watch.report.result import Report
from penstock.watch.style.text import model_text, printable

BAR = 28  # characters of a full bar
STYLES = {"plain": "", "dim": "dim", "warning": "yellow", "bad": "red"}


def summary(folder: RunFolder) -> dict[str, Any]:
    """Everything the report knows, as plain values."""
    return Report.of(folder).to_json()


def screen(folder: RunFolder) -> RenderableType:
    """What it reached, plan against actual, where every second went, what it took, what to do."""
    facts = Facts(View(folder))
    view = facts.view
    parts: list[RenderableType] = [_headline(facts), Text()]
    if facts.plan:
        parts += [_grid([("plan", facts.plan.says(), "")]), Text()]
    parts += [_ledger(facts), Text()]
    lines = [*facts.spent(), *facts.kept(), *facts.befell()]
    parts.append(_grid([(one.name, one.words, STYLES[one.style]) for one in lines]))
    if facts.advice:
        parts += [Text(), Text("To go faster or cheaper", style="cyan")]
        parts.append(_grid([(str(one.cause), one.words, "") for one in facts.advice]))
    prompt, sample = view.last_of("prompt"), view.last_of("sample")
    if sample and view.status in ("done", EARLY):
        parts += [Text(), Text("Given", style="cyan"), Text(printable(str(prompt)), style="dim")]
        parts += [Text("the model writes", style="cyan"), Text(printable(str(sample)))]
    return Group(*parts)


def _grid(rows: Iterable[tuple[str, str, str]]) -> Table:
    """Names and words, which go on below themselves where they are long."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, min_width=8)
    grid.add_column(overflow="fold")
    for name, words, style in rows:
        grid.add_row(Text(name, style=style), Text(printable(words), style=style))
    return grid


def _headline(facts: Facts) -> Table:
    view = facts.view
    grid = Table.grid(padding=(0, 2))
    grid.add_row(Text(view.folder.name, style="bold"), _status(view))
    if about := model(view):
        grid.add_row("model", Text(about))
    if why := precision(view):
        grid.add_row("precision", Text(why))
    if len(view.curve):
        last = ""
        if view.validation:
            first, final = view.validation[0][1], view.validation[-1][1]
            last = f", validation {format_loss(first)} → {format_loss(final)}"
        grid.add_row(
            "loss", f"{format_loss(view.curve['loss'][0])} → {format_loss(view.loss)}{last}"
        )
        grid.add_row("speed", facts.speed())
        if passes := facts.passes():
            grid.add_row("data", passes)
    return grid


def model(view: View) -> str:
    """What is trained, how and where; empty for a fork which has not been launched."""
    if "layout" not in view.plan:
        return ""
    precision = f", {view.known_run.train.precision}" if view.known_run else ""
    ways = Layout(**view.plan["layout"]).ways
    return f"{model_text(view.plan)}{precision} on {view.plan.get('machine', '?')}, {ways}"


def precision(view: View) -> str:
    """Return why "auto" chose the run's number format; "" where the file gave one."""
    why = view.plan.get("precision_why")
    return f"chosen by this machine: {why}" if why else ""


def _status(view: View) -> Text:
    colour = {
        "done": "green",
        EARLY: "green",
        "running": "cyan",
        "stopped": "yellow",
        "left": "yellow",
        "new": "dim",
    }.get(view.status, "red")
    text = Text(view.status, style=colour)
    text.append(f", step {view.step} of {view.steps}", style="default")
    if view.resumed_from is not None:
        text.append(f", resumed from step {view.resumed_from}", style="default")
    return text


def _ledger(facts: Facts) -> Table:
    """Every cause that took time, as seconds per rank, share and bar; the two shares below."""
    view, plan = facts.view, facts.plan
    account, ledger = view.account, view.account.ledger
    planned = {row.cause: (row.predicted or 0.0) for row in plan.rows} if plan else {}
    table = Table(box=None, padding=(0, 1), show_edge=False)
    for name, side in (
        ("where it went", "left"),
        ("planned", "right"),
        ("time", "right"),
        ("share", "right"),
        ("", "left"),
    ):
        if planned or name != "planned":
            table.add_column(name, justify=side, header_style="dim")  # type: ignore[arg-type]

    def row(name: str, plan_s: float, *cells: str | Text) -> None:
        table.add_row(name, *([format_duration(plan_s / account.ranks)] if planned else []), *cells)

    for cause in Cause:
        seconds, plan_s = ledger.seconds[cause], planned.get(cause, 0.0)
        share = ledger.share(cause) or 0.0
        if seconds > 0 or cause is Cause.UNEXPLAINED or plan_s > 0.05 * account.ranks:
            style = "green" if cause is Cause.COMPUTE else "yellow" if share > 0.05 else ""
            bar = Text("█" * round(share * BAR) or "▏", style=style)
            row(str(cause), plan_s, format_duration(share * account.wall_s), f"{share:.1%}", bar)
    # A whole second more or less in the parts would look like an error: the sum is the window.
    whole = sum(planned.values())
    row("[bold]wall-clock[/]", whole, format_duration(account.wall_s), "100.0%", shares(view))
    return table


def shares(view: View) -> str:
    ledger = view.account.ledger
    if ledger.useful is None or ledger.effective is None:
        return ""
    said = f"useful {ledger.useful:.1%}, effective {ledger.effective:.1%}"
    return f"× {plural(view.account.ranks, 'rank')}; {said}"
