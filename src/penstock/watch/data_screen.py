"""A dataset on the terminal: what it is, where its documents went, what they are like."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.data.build_record import SCORE_BIN, Sample
from penstock.data.manifest import Json
from penstock.run.quantity import show_about, show_bytes
from penstock.watch.data_diff import Comparison
from penstock.watch.data_story import Story, printable
from penstock.watch.words import plural, spoken

_BAR = 16
_BLOCKS = "▁▂▃▄▅▆▇█"
_MOST_REASONS = 8
_SAMPLE_CHARACTERS = 1000
_COLUMN_CHARACTERS = 120
_VALUE_CHARACTERS = 20  # of one side of a comparison


def screen(told: Story) -> RenderableType:
    parts: list[RenderableType] = [*head(told), Text(), funnel(told)]
    if told.record:
        parts += [Text(), *_shape(told)]
    if told.sources:
        parts += [Text(), _sources(told)]
    parts += [Text(), *_origin(told)]
    return Group(*parts)


def built(told: Story) -> RenderableType:
    """After a build: what came of it, and what to type next."""
    name = told.id if told.where.endswith(told.id) else told.where
    steps = [
        f"  penstock data show {name} --html report.html",
        f"  penstock data sample {name}",
        f"  penstock train run.toml data.dataset={name} model.vocab={told.manifest.vocab}",
    ]
    hint = Text("next (`penstock init` writes a run.toml):")
    return Group(*head(told), Text(), funnel(told), Text(), hint, *map(Text, steps))


def comparison(before: Story, after: Story, found: Comparison) -> RenderableType:
    if not found.differences:
        return Text(f"{before.id} and {after.id} are the same", style="bold")
    table = Table(box=None, pad_edge=False)
    for title in ("", "before", "after"):
        table.add_column(title, no_wrap=True)
    part = ""
    for one in found.differences:
        if one.part != part:
            part = one.part
            table.add_row(Text(part, style="bold"))
        table.add_row(Text(f"  {printable(one.what)}"), _value(one.before), _value(one.after))
    shards = plural(found.shared_shards, "shard")
    shared = f"in common: {shards}, {show_about(found.shared_tokens)} tokens"
    ids = [Text(f"before: {before.id}"), Text(f"after:  {after.id}")]
    return Group(*ids, Text(), table, Text(), Text(shared))


def _value(value: Json) -> Text:
    if value is None:
        return Text("–", style="dim")
    if isinstance(value, dict):
        return Text("on")
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return Text(printable(brief(shown, _VALUE_CHARACTERS)))


def head(told: Story) -> list[Text]:
    made = told.manifest
    size = (
        f"{show_about(made.tokens)} tokens in {plural(made.documents, 'document')}, vocabulary of "
        f"{made.vocab:,}, {plural(len(made.shards), 'shard')}, {show_size(told.bytes)}"
    )
    packed = f", packed for sequences of {made.packed:,}" if made.packed else ""
    return [Text(told.id, style="bold"), Text(size + packed)]


def funnel(told: Story, most: int = _MOST_REASONS) -> RenderableType:
    """Documents by stage, each with why others went; bars are shares of what first came in."""
    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    table.add_column("documents", justify="right")
    table.add_column("")
    table.add_column("share", justify="right")
    first = told.documents_in
    table.add_row("came in", f"{first:,}")
    for stage in told.funnel:
        table.add_row(
            stage.name, f"{stage.kept:,}", Text(bar(stage.kept, first)), share(stage.kept, first)
        )
        shown = list(stage.reasons.items())
        for why, count in shown[:most]:
            gone = Text(bar(count, first), style="red")
            table.add_row(
                Text(f"  − {why}", style="dim"),
                Text(f"{count:,}", style="dim"),
                gone,
                Text(share(count, first), style="dim"),
            )
        if rest := shown[most:]:
            left = f"  − {plural(len(rest), 'more reason')}"
            count = sum(count for _, count in rest)
            table.add_row(Text(left, style="dim"), Text(f"{count:,}", style="dim"))
    if told.copies:
        table.add_row("with copies", f"{told.manifest.documents:,}")
    return table


def _shape(told: Story) -> list[RenderableType]:
    record = told.record
    assert record is not None
    table = Table.grid(padding=(0, 2))
    for title, counts in (("characters", record.characters), ("tokens", record.tokens)):
        if any(counts):
            first, last, inside = _trimmed(counts)
            table.add_row(title, spark(inside), f"{1 << first:,} to {1 << last + 1:,}")
    if any(record.scores):
        first, last, inside = _trimmed(record.scores)
        low, high = first * SCORE_BIN / 1000, (last + 1) * SCORE_BIN / 1000
        table.add_row("score", spark(inside), f"{low:g} to {high:g}")
    rows: list[RenderableType] = [table] if table.row_count else []
    if record.languages:
        ordered = sorted(record.languages.items(), key=lambda item: (-item[1], item[0]))
        total = sum(record.languages.values())
        told_ = ", ".join(f"{code} {share(count, total)}" for code, count in ordered[:8])
        rows.append(Text(f"languages: {told_}"))
    if record.changes:
        changed = ", ".join(f"{what} {count:,}" for what, count in record.changes.items())
        rows.append(Text(f"changed: {changed}"))
    return rows


def _sources(told: Story) -> RenderableType:
    table = Table("source", box=None, pad_edge=False)
    for title in ("files", "size", "documents", "kept aside"):
        table.add_column(title, justify="right")
    for one in told.sources:
        aside = ", ".join(f"{why} {count:,}" for why, count in one.rejected.items())
        size = show_size(one.bytes)
        row = (f"{one.files:,}", size, f"{one.documents:,}", printable(aside) or "–")
        table.add_row(Text(printable(one.name)), *map(Text, row))
    return table


def _origin(told: Story) -> list[RenderableType]:
    lines = []
    if told.manifest.parents:
        lines.append(f"made from {', '.join(told.manifest.parents)}")
    if told.record:
        made = told.record
        lines.append(
            f"built in {spoken(made.seconds)} by {plural(made.machine.workers, 'worker')} on "
            f"{made.machine.host}, {made.ended}"
        )
    lines.append(told.where)
    return [Text(line, style="dim") for line in lines]


def sample(one: Sample) -> RenderableType:
    """A document as text, below a line on what is known of it."""
    title = Text(printable(one.id), style="bold")
    facts = [f"score {one.score / 1000:g}"] if one.score > 0 else []  # 0: dropped before
    facts += [one.language] if one.language else []
    facts += [one.source] if one.source else []
    facts += [f"{one.characters:,} characters"]
    facts += [f"{name} = {brief(value)}" for name, value in one.columns.items()]
    facts += [one.detail] if one.detail else []
    text = one.text[:_SAMPLE_CHARACTERS]
    more = "…" if one.characters > len(text) else ""
    about = Text(printable("  ".join(facts)).replace("\n", " "), style="dim")
    return Group(title, about, Text(printable(text) + more), Text())


def brief(value: object, most: int = _COLUMN_CHARACTERS) -> str:
    """A column's value: one may hold a whole conversation."""
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def bar(part: int, whole: int, width: int = _BAR) -> str:
    """Eighths of a character, so that a small share is still seen."""
    eighths = round(part / whole * width * 8) if whole else 0
    eighths = max(eighths, 1) if part else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def spark(counts: Sequence[int]) -> str:
    top = max(counts)
    return "".join(" " if not n else _BLOCKS[(n * 8 - 1) // top if n < top else 7] for n in counts)


def share(part: int, whole: int) -> str:
    if not whole or not part:
        return "0 %"
    percent = part / whole * 100
    if part < whole and percent >= 99.5:  # not all: say so
        return "> 99.9 %" if percent >= 99.95 else f"{percent:.1f} %"
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.2g} %"


def show_size(size: int) -> str:
    """To three figures: `show_bytes` is exact, which a screen need not be."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):.3g} {unit}"
    return show_bytes(size)


def _trimmed(counts: Sequence[int]) -> tuple[int, int, Sequence[int]]:
    """The first and the last bin that hold anything, and those between."""
    held = [place for place, count in enumerate(counts) if count]
    return held[0], held[-1], counts[held[0] : held[-1] + 1]
