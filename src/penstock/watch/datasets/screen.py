"""Terminal view of a dataset: sizes, documents by stage, histograms, sources, samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from penstock.data.build.record import SCORE_BIN, SampleDocument
from penstock.data.format.locate import datasets_home
from penstock.style import format_bytes, format_count, format_duration, plural
from penstock.watch.datasets.dropped import DroppedDocuments
from penstock.watch.datasets.find import ListedDataset
from penstock.watch.datasets.summary import DatasetSummary, stored_bytes, unique_documents
from penstock.watch.style.text import printable

_BAR, _LEAST_BAR = 16, 6  # characters; a bar that has less room is left out
_BLOCKS = "▁▂▃▄▅▆▇█"
_MOST_REASONS = 8
_SAMPLE_CHARACTERS = 1000
_COLUMN_CHARACTERS = 120


def screen(summary: DatasetSummary) -> RenderableType:
    """Return the whole view of a dataset."""
    parts: list[RenderableType] = [*head(summary), Text(), Funnel(summary)]
    if summary.record:
        parts += [Text(), *_shape(summary)]
    if summary.sources:
        parts += [Text(), _sources(summary)]
    parts += [*_aside(summary), Text(), *_origin(summary)]
    return Group(*parts)


def built(summary: DatasetSummary) -> RenderableType:
    """Return the view after a build: the result, and the next commands."""
    in_home = Path(summary.where) == datasets_home() / summary.id
    name = summary.id if in_home else summary.where
    steps = [
        f"  penstock data show {name} --html report.html",
        f"  penstock data sample {name}",
        f"  penstock train run.toml data.dataset={name} model.vocab={summary.manifest.vocab}",
    ]
    hint = Text("next (`penstock init` writes a run.toml):")
    return Group(
        *head(summary), Text(), Funnel(summary), *_aside(summary), Text(), hint, *map(Text, steps)
    )


def head(summary: DatasetSummary) -> list[Text]:
    made = summary.manifest
    copies = f" ({summary.with_copies:,} with copies)" if summary.with_copies else ""
    size = (
        f"{format_count(made.tokens)} tokens in {plural(summary.documents, 'document')}{copies}, "
        f"vocabulary of {made.vocab:,}, {plural(len(made.shards), 'shard')}, "
        f"{format_bytes(summary.bytes)}"
    )
    lines = [Text(summary.id, style="bold"), Text(size)]
    return [*lines, Text(packing(summary))] if made.packed else lines


def packing(summary: DatasetSummary) -> str:
    """Return a line on how documents were packed and cut."""
    most = summary.manifest.packed
    if summary.manifest.pairs:
        return f"pairs: two sequences of {most:,} tokens each, padded; a longer answer is cut"
    text = f"packed: {plural(summary.pieces, 'piece')} of at most {most:,} tokens"
    if summary.long is None:
        return f"{text}; longer documents are cut"
    tokens, documents = summary.long
    have = "has" if documents == 1 else "have"
    return (
        f"{text}; {plural(documents, 'document')} {have} {tokens:,} tokens or more, and what is "
        f"longer than {most:,} is cut"
    )


@dataclass(frozen=True)
class Funnel:
    """Documents by stage with the reasons of dropped ones; bars are shares of all that came in.

    Texts have priority: a narrow terminal gets shorter bars, or none.
    """

    summary: DatasetSummary
    most: int = _MOST_REASONS

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = list(self._rows())
        words = max(len(row[0]) for row in rows) + len("documents") + len("> 99.9 %") + 3 * 2
        width = min(options.max_width - words, _BAR)
        table = Table(box=None, pad_edge=False)
        table.add_column("stage")
        table.add_column("documents", justify="right", no_wrap=True)
        if width >= _LEAST_BAR:
            table.add_column("", no_wrap=True)
        table.add_column("share", justify="right", no_wrap=True)
        first = self.summary.documents_in
        for name, count, style, is_part in rows:
            cells = [Text(name, style=style), Text(f"{count:,}", style=style)]
            if is_part and width >= _LEAST_BAR:
                cells.append(Text(bar(count, first, width), style="red" if style else ""))
            if is_part:
                cells.append(Text(share(count, first), style=style))
            table.add_row(*cells)
        yield table

    def _rows(self) -> Iterator[tuple[str, int, str, bool]]:
        """Yield name, documents, style, and whether to show a share of those that came in."""
        summary = self.summary
        yield "came in", summary.documents_in, "", False
        for stage in summary.funnel:
            yield stage.name, stage.kept, "", True
            shown = list(stage.reasons.items())
            for why, count in shown[: self.most]:
                yield f"  − {printable(why)}", count, "dim", True
            if rest := shown[self.most :]:
                left = f"  − {plural(len(rest), 'more reason')}"
                yield left, sum(count for _, count in rest), "dim", False
        if summary.with_copies:
            yield "with copies", summary.with_copies, "", False


def _shape(summary: DatasetSummary) -> list[RenderableType]:
    record = summary.record
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


def _sources(summary: DatasetSummary) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("source", overflow="fold")
    for title in ("files", "size", "documents", "kept aside"):
        table.add_column(title, justify="right")
    for one in summary.sources:
        aside = ", ".join(f"{why} {count:,}" for why, count in one.rejected.items())
        size = format_bytes(one.bytes)
        row = (f"{one.files:,}", size, f"{one.documents:,}", printable(aside) or "–")
        table.add_row(Text(printable(one.name)), *map(Text, row))
    return table


def _origin(summary: DatasetSummary) -> list[RenderableType]:
    lines = []
    if summary.manifest.parents:
        lines.append(f"made from {', '.join(summary.manifest.parents)}")
    if summary.record:
        made = summary.record
        lines.append(
            f"built in {format_duration(made.seconds)} by "
            f"{plural(made.machine.workers, 'worker')} on {made.machine.host}, {made.ended}"
        )
    lines.append(summary.where)
    return [Text(line, style="dim") for line in lines]


def _aside(summary: DatasetSummary) -> list[RenderableType]:
    """Return where the records are that could not be read."""
    if not summary.aside:
        return []
    lines = ("kept aside, with file, line and reason (the first of each reason):", summary.aside)
    return [Text(), *(Text(line, overflow="fold", style="dim") for line in lines)]


def sample(one: SampleDocument) -> RenderableType:
    """Return a document as text, below a line of facts about it."""
    title = Text(printable(one.id), style="bold")
    facts = [f"score {one.score / 1000:g}"] if one.score > 0 else []  # 0: dropped before
    facts += [one.language] if one.language else []
    facts += [one.source] if one.source else []
    facts += [f"{one.characters:,} characters"] if one.characters else []
    facts += [f"{name} = {brief(value)}" for name, value in one.columns.items()]
    facts += [one.detail] if one.detail else []
    text = one.text[:_SAMPLE_CHARACTERS]
    more = "…" if one.characters > len(text) else ""
    about = Text(printable("  ".join(facts)).replace("\n", " "), style="dim")
    return Group(title, about, Text(printable(text) + more), Text())


def fewer_note(held: DroppedDocuments, asked: int) -> str:
    """Return a note if fewer samples exist than requested; empty otherwise."""
    shown = len(held.samples)
    if shown == min(asked, held.total):
        return ""
    reasons = ", ".join(held.reasons)
    return f"{shown} of {held.total:,}: a build keeps no more of those it drops for {reasons}"


def listing(found: Sequence[ListedDataset]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("dataset", no_wrap=True)
    table.add_column("built", no_wrap=True)
    for title in ("tokens", "documents", "vocab", "shards", "size"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in found:
        name, day = Text(one.folder.name), f"{one.built:%Y-%m-%d}"
        if (made := one.manifest) is None:
            state = "unreadable" if one.unreadable else "damaged"
            table.add_row(name, day, Text(state, style="red"))
            continue
        counts = (unique_documents(made), made.vocab, len(made.shards))
        numbers = (format_count(made.tokens), *(f"{count:,}" for count in counts))
        table.add_row(name, day, *numbers, format_bytes(stored_bytes(made)))
    return table


def brief(value: object, most: int = _COLUMN_CHARACTERS) -> str:
    """Return a value cut to `most` characters: it may hold a whole conversation."""
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def bar(part: int, whole: int, width: int = _BAR) -> str:
    """Return a bar in eighths of a character, so that a small share is still visible."""
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


def _trimmed(counts: Sequence[int]) -> tuple[int, int, Sequence[int]]:
    """Return the first and the last bin that is not empty, and the bins from one to the other."""
    held = [place for place, count in enumerate(counts) if count]
    return held[0], held[-1], counts[held[0] : held[-1] + 1]
