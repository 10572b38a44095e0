"""The report of a run: one dictionary for programs, one screen for people."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.ledger.causes import Cause
from penstock.plan.layout import Layout
from penstock.run.folder import RunFolder
from penstock.run.quantity import show_about
from penstock.watch import incidents
from penstock.watch.held import held
from penstock.watch.view import View
from penstock.watch.words import finite, loss, plural, size, spoken

BAR = 28  # characters of a full bar


def summary(folder: RunFolder) -> dict[str, Any]:
    """Everything the report knows, as plain values."""
    view = View(folder)
    account = view.account
    return {
        "run": folder.name,
        "status": view.status,
        "folder": str(folder.path),
        "machine": view.plan.get("machine"),
        "layout": view.plan.get("layout"),
        "dataset": view.plan.get("dataset"),
        "params": view.plan.get("params"),
        "steps": view.step,
        "steps_planned": view.steps,
        "tokens": int(view.curve["tokens"][-1]) if len(view.curve) else 0,
        "loss": view.loss,
        "val_loss": finite(view.validation[-1][1]) if view.validation else None,
        "val_losses": [[step, finite(loss)] for step, loss in view.validation],
        "tokens_per_s": view.tokens_per_s,
        "mfu": view.mfu,
        "ledger": {str(c): s for c, s in account.ledger.seconds.items()},
        "plan": plan.to_json() if (plan := held(view)) else None,
        "useful": account.ledger.useful,
        "effective": account.ledger.effective,
        "wall_s": account.wall_s,
        "ranks": account.ranks,
        "rank_s": account.ledger.total,  # the sum of the ledger: wall-clock × ranks
        "clipped_s": account.clipped_s,  # of records that contradicted others; 0 in a whole journal
        "data_skipped": view.skipped,
        "incidents": view.incidents,
        "faults": sum(len(i.faults) for i in account.invocations),
        "lost_replicas": len(view.supervised("lost")),  # that the others went on without
        "stragglers": view.stragglers,
        "resumed_from": view.resumed_from,
        "checkpoint": view.checkpoint,
        "weights_hash": view.weights_hash,
        "sample": view.last_of("sample"),
    }


def screen(folder: RunFolder) -> RenderableType:
    """The last screen of a run: what it reached, where every second went, what is saved where."""
    view = View(folder)
    parts: list[RenderableType] = [_headline(view), Text(), _ledger(view), Text()]
    if plan := held(view):
        parts.append(Text(f"plan     {plan.says()}"))
    parts += _kept(view)
    prompt, sample = view.last_of("prompt"), view.last_of("sample")
    if sample and view.status == "done":
        parts += [Text(), Text("Given", style="cyan"), Text(str(prompt), style="dim")]
        parts += [Text("the model writes", style="cyan"), Text(str(sample))]
    return Group(*parts)


def _headline(view: View) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(Text(view.folder.name, style="bold"), _status(view))
    if "layout" in view.plan:  # not in that of a fork which has not been launched
        ways = Layout(**view.plan["layout"]).ways
        grid.add_row(
            "model",
            f"{size(view.plan)}, {view.run.train.precision} on {view.plan['machine']}, {ways}",
        )
    if len(view.curve):
        last = ""
        if view.validation:
            first, final = view.validation[0][1], view.validation[-1][1]
            last = f", validation {loss(first)} → {loss(final)}"
        grid.add_row("loss", f"{loss(view.curve['loss'][0])} → {loss(view.loss)}{last}")
        speed = f"{view.tokens_per_s:,.0f} tokens/s while stepping" if view.tokens_per_s else ""
        if view.mfu is not None:
            speed += f", {view.mfu:.1%} MFU"
        grid.add_row("speed", f"{speed}; {show_about(view.curve['tokens'][-1])} tokens trained on")
    return grid


def _status(view: View) -> Text:
    colour = {
        "done": "green",
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


def _ledger(view: View) -> Table:
    """Every cause that took time, as seconds per rank, share and bar; the two shares below."""
    account, ledger = view.account, view.account.ledger
    plan = held(view)
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
        table.add_row(name, *([spoken(plan_s / account.ranks)] if planned else []), *cells)

    for cause in Cause:
        seconds, plan_s = ledger.seconds[cause], planned.get(cause, 0.0)
        share = ledger.share(cause) or 0.0
        if seconds > 0 or cause is Cause.UNEXPLAINED or plan_s > 0.05 * account.ranks:
            style = "green" if cause is Cause.COMPUTE else "yellow" if share > 0.05 else ""
            bar = Text("█" * round(share * BAR) or "▏", style=style)
            row(str(cause), plan_s, spoken(share * account.wall_s), f"{share:.1%}", bar)
    # A whole second more or less in the parts would look like an error: the sum is the window.
    whole = sum(planned.values())
    row("[bold]wall-clock[/]", whole, spoken(account.wall_s), "100.0%", _shares(view))
    return table


def _shares(view: View) -> str:
    ledger = view.account.ledger
    if ledger.useful is None or ledger.effective is None:
        return ""
    shares = f"useful {ledger.useful:.1%}, effective {ledger.effective:.1%}"
    return f"× {plural(view.account.ranks, 'rank')}; {shares}"


def _kept(view: View) -> list[Text]:
    lines = []
    if view.checkpoint:
        lines.append(Text(f"saved    {view.checkpoint}"))
    if view.weights_hash:
        lines.append(Text(f"weights  {view.weights_hash[:16]}…", style="dim"))
    lines += _skipped(view)
    lines += [Text(line, style="yellow") for line in incidents.lines(view.incidents)]
    for told in view.supervised("budget_reached"):
        lines.append(Text(f"stopped  {told.payload['budget']} was reached", style="yellow"))
    for slow in view.stragglers:
        words = f"{slow['factor']:.2f} times the others' time for its own work in a step"
        lines.append(Text(f"slow     rank {slow['rank']}: {words}", style="yellow"))
    for invocation in view.account.invocations:
        for fault in invocation.faults:
            lines.append(Text(f"fault    rank {fault.rank}: {fault.reason}", style="red"))
    for told in view.supervised("lost"):
        whom = f"replica {told.payload['replica']} (rank {told.payload['rank']})"
        words = f"lost     {whom}: {told.payload['reason']}; the others went on"
        lines.append(Text(words, style="yellow"))
    return lines


def _skipped(view: View, most: int = 5) -> list[Text]:
    """What is damaged or missing and not trained on, by name."""
    files: dict[tuple[str, str], list[int]] = {}
    for one in view.skipped:
        files.setdefault((one["dataset"], one["shard"]), []).append(one["block"])
    lines = []
    for (dataset, file), blocks in list(files.items())[:most]:
        which = f"block{'s' if len(blocks) > 1 else ''} {', '.join(map(str, sorted(blocks)))}"
        lines.append(f"skipped  {dataset}: samples that need {which} of {file} count nothing")
    if len(files) > most:
        more = plural(len(files) - most, "more file")
        lines.append(f"skipped  {more}; `penstock report {view.folder.name} --json` names them")
    return [Text(line, style="yellow") for line in lines]
