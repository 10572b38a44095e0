"""A dataset as one self-contained page: no script, nothing loaded from elsewhere.

Documents are shown as text whatever they hold; the page's own policy forbids scripts besides.
"""

from collections.abc import Iterable, Sequence

from penstock.data.build.record import SCORE_BIN, BuildRecord, SampleDocument
from penstock.data.format.manifest import Json
from penstock.run import toml
from penstock.style import format_bytes, format_count, format_duration, plural
from penstock.watch.datasets.diff import flat
from penstock.watch.datasets.screen import brief, packing, share
from penstock.watch.datasets.summary import DatasetSummary
from penstock.watch.style.charts import bar, histogram
from penstock.watch.style.css import PAGE_CSS
from penstock.watch.style.markup import Markup, breakable, cards, document, join, section, tag

_MOST_LANGUAGES = 20


def page(summary: DatasetSummary, chats: Sequence[SampleDocument] | None = None) -> str:
    """Return the page; `chats` are conversations with roles, instead of the record's samples."""
    parts = [_title(summary), _cards(summary), _funnel(summary)]
    if summary.record:
        parts += [_charts(summary.record), _languages(summary.record), _sources(summary)]
        parts += [_chats(chats) if chats else _kept(summary.record.kept)]
        parts += [_dropped(summary.record), _changes(summary.record)]
    parts += [_recipe(summary), _lineage(summary)]
    return document(summary.id, PAGE_CSS, *parts)


def _title(summary: DatasetSummary) -> Markup:
    name, _, version = summary.id.partition("@")
    return tag("h1", name, " ", tag("small", f"@{version}"))


def _cards(summary: DatasetSummary) -> Markup:
    made, held = summary.manifest, summary.manifest.documents
    each = f"{made.tokens / held:,.0f}" if held else "–"
    facts = {"tokens": format_count(made.tokens), "documents": f"{summary.documents:,}"}
    if summary.documents_in:
        facts["of what came in"] = share(summary.documents, summary.documents_in)
    if summary.with_copies:
        facts["with copies"] = f"{summary.with_copies:,}"
    if made.packed:
        facts |= {"packed for": f"{made.packed:,}", "pieces": f"{summary.pieces:,}"}
    facts[f"tokens a {'piece' if made.packed else 'document'}"] = each
    facts |= {
        "vocabulary": f"{made.vocab:,}",
        "on disk": format_bytes(summary.bytes),
        "shards": f"{len(made.shards):,}",
    }
    if summary.record:
        facts["built in"] = format_duration(summary.record.seconds)
    return cards(facts)


def _funnel(summary: DatasetSummary) -> Markup:
    first = summary.documents_in
    rows = [_bar_row("came in", first, first, "stage", "kept")]
    for stage in summary.funnel:
        rows.append(_bar_row(stage.name, stage.kept, first, "stage", "kept"))
        before = stage.kept
        for why, count in stage.reasons.items():
            rows.append(_bar_row(why, count, first, "why", "gone", before))
            before += count
    about = "Documents that each stage kept, and below it those that it dropped and why."
    parts = [tag("p", about), _table((), rows, "bars")]
    if summary.pieces:
        parts.append(tag("p", sentence(packing(summary))))
    if summary.with_copies:
        parts.append(tag("p", f"With copies, the dataset holds {summary.with_copies:,}."))
    return section("Where documents went", *parts)


def _bar_row(name: str, count: int, whole: int, row: str, kind: str, before: float = 0) -> Markup:
    return tag(
        "tr",
        tag("td", breakable(name)),
        tag("td", f"{count:,}", class_="n"),
        tag("td", share(count, whole), class_="n"),
        tag("td", bar(count, whole, kind, before), class_="bar"),
        class_=row,
    )


def _charts(record: BuildRecord) -> Markup:
    charts = []
    for counts, about in (
        (record.characters, "Characters of a document"),
        (record.tokens, "Tokens of a document"),
    ):
        if any(counts):
            start = next(place for place, count in enumerate(counts) if count)
            inside = counts[start:]
            borders = [_power(start + place) for place in range(len(inside) + 1)]
            charts.append(histogram(inside, borders, about))
    if any(record.scores):
        borders = [f"{place * SCORE_BIN / 1000:g}" for place in range(len(record.scores) + 1)]
        charts.append(histogram(record.scores, borders, "Score, of documents that cleaning kept"))
    return section("What they are like", tag("div", *charts, class_="charts")) if charts else join()


def _power(exponent: int) -> str:
    """Return 2^exponent as a short text: `512`, `1Ki`, `64Mi`."""
    thousands, rest = divmod(exponent, 10)
    return f"{1 << rest}{('', 'Ki', 'Mi', 'Gi', 'Ti')[min(thousands, 4)]}"


def _languages(record: BuildRecord) -> Markup:
    if not record.languages:
        return join()
    ordered = sorted(record.languages.items(), key=lambda item: (-item[1], item[0]))
    total = sum(record.languages.values())
    shown, rest = ordered[:_MOST_LANGUAGES], ordered[_MOST_LANGUAGES:]
    if rest:
        shown.append((f"{len(rest)} others", sum(count for _, count in rest)))
    rows = [_bar_row(code, count, total, "plain", "kept") for code, count in shown]
    return section("Languages", _table((), rows, "bars"))


def _sources(summary: DatasetSummary) -> Markup:
    titles = ("source", "files", "size", "documents", "kept aside")
    rows = []
    for one in summary.sources:
        aside = ", ".join(f"{why}: {count:,}" for why, count in one.rejected.items()) or "–"
        damaged = tag("div", "; ".join(one.damaged), class_="dim") if one.damaged else join()
        numbers = (f"{one.files:,}", format_bytes(one.bytes), f"{one.documents:,}")
        cells = [
            tag("td", number, class_="n", data_title=title)
            for title, number in zip(titles[1:], numbers, strict=False)
        ]
        name = tag("td", one.name, tag("div", breakable(one.where), class_="dim"))
        rows.append(tag("tr", name, *cells, tag("td", aside, damaged, data_title=titles[-1])))
    parts = [_table(titles, rows, "facts")]
    if summary.aside:
        about = "What was kept aside, with file, line and reason (the first of each): "
        parts.append(tag("p", about, breakable(summary.aside)))
    return section("Sources", *parts)


def _chats(samples: Sequence[SampleDocument]) -> Markup:
    about = "As tokens give them back, with the marks of the chat template."
    return section("Some conversations", tag("p", about), *map(_sample, samples))


def _kept(samples: Sequence[SampleDocument]) -> Markup:
    return section("Some that were kept", *map(_sample, samples)) if samples else join()


def _dropped(record: BuildRecord) -> Markup:
    parts = [
        tag("details", tag("summary", reason), *map(_sample, samples))
        for reason, samples in record.dropped.items()
    ]
    return section("Some that were dropped, by reason", *parts) if parts else join()


def _sample(one: SampleDocument) -> Markup:
    facts = [one.detail, f"{one.characters:,} characters", one.language, one.source]
    facts += [f"score {one.score / 1000:g}"] if one.score > 0 else []
    facts += [f"{name} = {brief(value)}" for name, value in one.columns.items()]
    more = " …" if one.characters > len(one.text) else ""
    about = " · ".join(fact for fact in facts if fact)
    return tag(
        "details",
        tag("summary", opening(one.text) or one.id),
        tag("div", one.id, tag("br"), about, class_="dim"),
        tag("pre", one.text + more),
    )


def opening(text: str, most: int = 90) -> str:
    """Return the first words on one line, with a mark if words are left out."""
    line = " ".join(text[: 4 * most].split())
    if len(line) <= most:
        return line
    cut = line[: most - 2]
    whole = cut.rpartition(" ")[0] if line[most - 2] != " " else cut
    return f"{whole} …" if whole else f"{cut}…"


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _changes(record: BuildRecord) -> Markup:
    if not record.changes:
        return join()
    rows = [
        tag("tr", tag("td", breakable(what)), tag("td", f"{count:,}", class_="n"))
        for what, count in record.changes.items()
    ]
    return section("Documents that were changed", _table(("by", "documents"), rows, "bars"))


def _recipe(summary: DatasetSummary) -> Markup:
    """Return the recipe as it was written if that is known, else the part that decides content."""
    recipe = (
        summary.record.recipe
        if summary.record and summary.record.recipe
        else summary.manifest.recipe
    )
    return section("Recipe", tag("pre", "\n".join(toml.format_document(_given(recipe)))))


def _given(recipe: dict[str, Json]) -> dict[str, Json]:
    """Return the recipe without null values, which TOML does not have."""
    inner: dict[str, Json] = {name: _given_part(part) for name, part in recipe.items()}
    return {name: part for name, part in inner.items() if part not in (None, {}, [])}


def _given_part(part: Json) -> Json:
    if isinstance(part, dict):
        return _given(part)
    return [_given_part(one) for one in part] if isinstance(part, list) else part


def _lineage(summary: DatasetSummary) -> Markup:
    lines: list[str] = [
        f"version {summary.manifest.version}",
        f"tokenizer {summary.manifest.tokenizer}",
    ]
    lines += [f"parent {parent}" for parent in summary.manifest.parents]
    lineage = flat(summary.manifest.lineage)
    lines += [f"{name} = {value}" for name, value in lineage.items() if value is not None]
    parts = [tag("pre", "\n".join(lines))]
    if record := summary.record:
        machine = record.machine
        stages = ", ".join(f"{one.name} {format_duration(one.seconds)}" for one in record.stages)
        parts.append(
            tag(
                "p",
                f"Built {record.ended} on {machine.host} ({machine.system}, {machine.cores} cores) "
                f"by {plural(machine.workers, 'worker')}, which held at most "
                f"{format_bytes(machine.memory_bytes)} each: {stages}.",
            )
        )
        parts += [tag("p", note) for note in record.notes]
    return section("Where it comes from", *parts)


def _table(titles: Sequence[str], rows: Iterable[Markup], kind: str) -> Markup:
    """Return a table; `kind` is its layout on narrow screens."""
    heads = [
        tag("th", title, class_="n" if title in ("files", "size", "documents") else "")
        for title in titles
    ]
    top = tag("thead", tag("tr", *heads)) if heads else join()
    return tag("table", top, tag("tbody", *rows), class_=kind)
