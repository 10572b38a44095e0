"""A sweep and an answer as lines for the terminal."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from penstock.plan.job.layout import Layout
from penstock.plan.life.life import DAY_S
from penstock.plan.plan import Plan
from penstock.plan.power.limits import amount
from penstock.plan.scaling.nodes import NodeCountAnswer
from penstock.plan.scaling.sweep import ScalePoint, ScalingSweep
from penstock.style import TIMES, format_count, format_predicted

LETTERS = {
    "replicate": "r",
    "shard": "s",
    "tensor": "t",
    "pipeline": "p",
    "context": "c",
    "expert": "e",
    "microbatch": "m",
}
LEGEND = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items())
LEFT = ("layout", "binds", "limit")  # columns of words


def lines(sweep: ScalingSweep) -> list[str]:
    """Format one row per count, what the letters mean, then where each limit takes over."""
    return [
        *table(sweep.points),
        *_reasons(sweep.points),
        "",
        *(str(takeover) for takeover in sweep.takeovers),
        *(f"note: {text}" for text in sweep.warnings),
    ]


def _reasons(points: Sequence[ScalePoint]) -> Iterator[str]:
    """Say why a count has no plan; of several in a row with the same limit, only the last one's
    reason.
    """
    for _, alike in groupby(points, key=lambda point: point.limit):
        *_, last = alike
        if last.reason:
            yield f"{last.accelerators:,}: {last.reason}"


def answer_lines(answer: NodeCountAnswer) -> list[str]:
    """Format the answer, then the counts on both sides."""
    point, plan = answer.point, answer.point.plan
    assert plan is not None
    price = f", {format_count(plan.bill.usd)} USD" if plan.bill.usd is not None else ""
    nodes = "1 node" if point.nodes == 1 else f"{point.nodes:,} nodes"
    return [
        f"{answer.goal}: {nodes}, {point.accelerators:,} accelerators: "
        f"{format_predicted(plan.life.wall_s, TIMES)}{_between(plan)}{price}",
        f"layout: {plan.job.layout}",
        "",
        *table(answer.neighbours()),
    ]


def _between(plan: Plan) -> str:
    """Format the band of the time; an answer to a deadline that hides it would promise too much."""
    span = plan.span("days")
    low, high = (format_predicted(days * DAY_S, TIMES) for days in span) if span else ("", "")
    return f" ({low} to {high} in four of five cases)" if span else ""


def table(points: Sequence[ScalePoint]) -> list[str]:
    """Format aligned columns; USD only where a price is known, sites where there are several."""
    priced = any(p.plan and p.plan.bill.usd is not None for p in points)
    spread = any(p.sites > 1 for p in points)
    rows = [_row(point, priced, spread) for point in points]
    if not rows:
        return []
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    head = {name: name for name in widths}
    return [*(_line(row, widths) for row in (head, *rows)), f"({LEGEND})"]


def short(layout: Layout) -> str:
    """Format a layout as `r4 s128 t2 m1 selective`: ways of one are left out."""
    ways = (
        f"{letter}{getattr(layout, name)}"
        for name, letter in LETTERS.items()
        if getattr(layout, name) > 1 or name == "microbatch"
    )
    again = [] if layout.recompute == "none" else [layout.recompute]
    return " ".join([*ways, *again])


def _row(point: ScalePoint, priced: bool, spread: bool) -> dict[str, str]:
    plan = point.plan
    usd = plan.bill.usd if plan else None
    cells = {
        "accelerators": f"{point.accelerators:,}",
        "layout": short(plan.job.layout) if plan else "–",
        "tokens/s": format_count(plan.tokens_per_s) if plan else "–",
        "each": format_count(plan.tokens_per_s / point.accelerators) if plan else "–",
        "MFU": f"{100 * plan.mfu:.0f} %" if plan and plan.mfu is not None else "–",
        "time": format_predicted(plan.life.wall_s, TIMES) if plan else "–",
        "effective": f"{100 * plan.life.effective:.0f} %" if plan else "–",
    }
    if priced:
        cells["USD"] = format_count(usd) if usd is not None else "–"
    if spread:
        cells["sites"] = f"{point.sites:,}"
    watts = point.watts
    cells["power"] = amount(watts, "W") if watts is not None else "–"
    return cells | {"binds": str(point.binds), "limit": point.limit}


def _line(cells: dict[str, str], widths: dict[str, int]) -> str:
    return "  ".join(_pad(name, cells[name], width) for name, width in widths.items()).rstrip()


def _pad(name: str, text: str, width: int) -> str:
    return text.ljust(width) if name in LEFT else text.rjust(width)
