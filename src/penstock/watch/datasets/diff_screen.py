"""Terminal view of two datasets side by side: in columns, or in lines if columns do not fit."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from penstock.data.format.manifest import Json
from penstock.style import format_count, plural
from penstock.watch.datasets.diff import DatasetComparison, Difference
from penstock.watch.datasets.screen import brief
from penstock.watch.datasets.summary import DatasetSummary
from penstock.watch.style.text import printable

_VALUE_CHARACTERS = 24  # of one side, where the two stand in columns
_GAPS = 4


def comparison(
    before: DatasetSummary, after: DatasetSummary, found: DatasetComparison
) -> RenderableType:
    if not found.differences:
        return Text(f"{before.id} and {after.id} are the same", style="bold")
    shards = plural(found.shared_shards, "shard")
    shared = f"in common: {shards}, {format_count(found.shared_tokens)} tokens"
    ids = [Text(f"before: {before.id}"), Text(f"after:  {after.id}")]
    return Group(*ids, Text(), _Sides(found.differences), Text(), Text(shared))


@dataclass(frozen=True)
class _Sides:
    """The differences as a rich renderable that chooses columns or lines by the width."""

    differences: tuple[Difference, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [
            (one.part, f"  {printable(one.what)}", shown(one.before), shown(one.after))
            for one in self.differences
        ]
        sides = [min(max(len(row[side]) for row in rows), _VALUE_CHARACTERS) for side in (2, 3)]
        wide = max(len(row[1]) for row in rows) + sum(sides) + _GAPS
        yield self._columns(rows) if wide <= options.max_width else self._lines(rows, options)

    @staticmethod
    def _columns(rows: list[tuple[str, str, str, str]]) -> RenderableType:
        table = Table(box=None, pad_edge=False)
        for title in ("", "before", "after"):
            table.add_column(title, no_wrap=True)
        last = ""
        for part, name, *sides in rows:
            if part != last:
                table.add_row(Text(part, style="bold"))
            last = part
            table.add_row(Text(name), *(Text(brief(side, _VALUE_CHARACTERS)) for side in sides))
        return table

    @staticmethod
    def _lines(rows: list[tuple[str, str, str, str]], options: ConsoleOptions) -> RenderableType:
        lines: list[RenderableType] = []
        last = ""
        for part, name, before, after in rows:
            if part != last:
                lines.append(Text(part, style="bold"))
            last = part
            sides = f"{before} → {after}"
            if len(name) + len(sides) + 2 <= options.max_width:
                lines.append(Text(f"{name}: {sides}"))
            else:
                lines += [Text(f"{name}:", overflow="fold"), Text(f"    {sides}", overflow="fold")]
        return Group(*lines)


def shown(value: Json) -> str:
    """Return a short text of a value; `--json` shows what is inside tables."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return "on"
    if isinstance(value, list):
        tables = sum(isinstance(one, dict) for one in value)
        entries = f"{tables:,} entries" if tables > 1 else "1 entry"
        return entries if tables else ", ".join(map(shown, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else printable(str(value)).replace("\n", " ")
