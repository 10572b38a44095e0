"""The parts that all backtests print in the same way: lines, tables of percent, skipped rows."""

from collections.abc import Sequence

from rich.table import Table

from penstock.cli.show import out
from penstock.style import plural


def say(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)


def grid(title: str, first: str, *numbers: str) -> Table:
    """Print a table under its title: words on the left, then columns of numbers."""
    out.print(f"\n[bold]{title}[/]")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def percent(value: float | None, sign: bool = False) -> str:
    return "–" if value is None else f"{value:+.1f}" if sign else f"{value:.1f}"


def show_skipped(skipped: Sequence[tuple[int, str]]) -> None:
    reasons: dict[str, list[int]] = {}
    for number, reason in skipped:
        reasons.setdefault(reason, []).append(number)
    for reason, numbers in reasons.items():
        more = ", …" if len(numbers) > 5 else ""
        which = ", ".join(map(str, numbers[:5])) + more
        say(f"skipped {plural(len(numbers), 'row')}: {reason} (row {which})")
