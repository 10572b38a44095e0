"""A dataset as one self-contained page: no script, nothing loaded from elsewhere.

Documents are shown as text whatever they hold; the page's own policy forbids scripts besides.
"""

from collections.abc import Iterable, Sequence

from penstock.data.build_record import SCORE_BIN, Record, Sample
from penstock.data.manifest import Json
from penstock.run import toml
from penstock.run.quantity import show_about
from penstock.watch.data_charts import bar, histogram
from penstock.watch.data_diff import flat
from penstock.watch.data_markup import Markup, join, tag
from penstock.watch.data_screen import brief, share, show_size
from penstock.watch.data_story import Story
from penstock.watch.data_style import STYLE
from penstock.watch.words import plural, spoken

_MOST_LANGUAGES = 20
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(told: Story) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", told.id),
        tag("style", Markup(STYLE)),
    )
    parts = [_title(told), _cards(told), _funnel(told)]
    if told.record:
        parts += [_charts(told.record), _languages(told.record), _sources(told)]
        parts += [_kept(told.record.kept), _dropped(told.record), _changes(told.record)]
    parts += [_recipe(told), _lineage(told)]
    body = tag("html", head, tag("body", tag("main", *parts)), lang="en")
    return f"<!doctype html>\n{body}\n"


def _title(told: Story) -> Markup:
    name, _, version = told.id.partition("@")
    return tag("h1", name, " ", tag("small", f"@{version}"))


def _cards(told: Story) -> Markup:
    made = told.manifest
    first, kept = told.documents_in, told.stages[-1].kept if told.stages else 0
    facts = {
        "tokens": show_about(made.tokens),
        "documents": f"{made.documents:,}",
        "of those read": share(kept, first),
        "tokens a document": f"{made.tokens / made.documents:,.0f}" if made.documents else "–",
        "vocabulary": f"{made.vocab:,}",
        "on disk": show_size(told.bytes),
        "shards": f"{len(made.shards):,}",
    }
    if not first:
        del facts["of those read"]
    if made.packed:
        facts["packed for"] = f"{made.packed:,}"
    if told.record:
        facts["built in"] = spoken(told.record.seconds)
    cards = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()]
    return tag("dl", *cards, class_="cards")


def _funnel(told: Story) -> Markup:
    first = told.documents_in
    rows = [_bar_row("came in", first, first, "stage", "kept")]
    for stage in told.funnel:
        rows.append(_bar_row(stage.name, stage.kept, first, "stage", "kept"))
        before = stage.kept
        for why, count in stage.reasons.items():
            rows.append(_bar_row(why, count, first, "why", "gone", before))
            before += count
    if told.copies:
        whole = max(first, made := told.manifest.documents)
        rows.append(_bar_row("with copies", made, whole, "stage", "kept"))
    about = "Documents that each stage kept, and below it those that it dropped and why."
    return _section("Where documents went", tag("p", about), _table((), rows))


def _bar_row(name: str, count: int, whole: int, row: str, kind: str, before: float = 0) -> Markup:
    return tag(
        "tr",
        tag("td", name),
        tag("td", f"{count:,}", class_="n"),
        tag("td", share(count, whole), class_="n"),
        tag("td", bar(count, whole, kind, before), class_="bar"),
        class_=row,
    )


def _charts(record: Record) -> Markup:
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
    return (
        _section("What they are like", tag("div", *charts, class_="charts")) if charts else join()
    )


def _power(exponent: int) -> str:
    """2^exponent, short: `512`, `1Ki`, `64Mi`."""
    thousands, rest = divmod(exponent, 10)
    return f"{1 << rest}{('', 'Ki', 'Mi', 'Gi', 'Ti')[min(thousands, 4)]}"


def _languages(record: Record) -> Markup:
    if not record.languages:
        return join()
    ordered = sorted(record.languages.items(), key=lambda item: (-item[1], item[0]))
    total = sum(record.languages.values())
    shown, rest = ordered[:_MOST_LANGUAGES], ordered[_MOST_LANGUAGES:]
    if rest:
        shown.append((f"{len(rest)} others", sum(count for _, count in rest)))
    rows = [_bar_row(code, count, total, "plain", "kept") for code, count in shown]
    return _section("Languages", _table((), rows))


def _sources(told: Story) -> Markup:
    rows = []
    for one in told.sources:
        aside = ", ".join(f"{why}: {count:,}" for why, count in one.rejected.items()) or "–"
        damaged = tag("div", "; ".join(one.damaged), class_="dim") if one.damaged else join()
        numbers = (f"{one.files:,}", show_size(one.bytes), f"{one.documents:,}")
        cells = [tag("td", number, class_="n") for number in numbers]
        name = tag("td", one.name, tag("div", one.where, class_="dim"))
        rows.append(tag("tr", name, *cells, tag("td", aside, damaged)))
    titles = ("source", "files", "size", "documents", "kept aside")
    return _section("Sources", _table(titles, rows))


def _kept(samples: Sequence[Sample]) -> Markup:
    return _section("Some that were kept", *map(_sample, samples)) if samples else join()


def _dropped(record: Record) -> Markup:
    parts = [
        tag("details", tag("summary", reason), *map(_sample, samples))
        for reason, samples in record.dropped.items()
    ]
    return _section("Some that were dropped, by reason", *parts) if parts else join()


def _sample(one: Sample) -> Markup:
    facts = [one.detail, f"{one.characters:,} characters", one.language, one.source]
    facts += [f"score {one.score / 1000:g}"] if one.score > 0 else []
    facts += [f"{name} = {brief(value)}" for name, value in one.columns.items()]
    more = " …" if one.characters > len(one.text) else ""
    about = " · ".join(fact for fact in facts if fact)
    opening = " ".join(one.text[:300].split())[:90]
    return tag(
        "details",
        tag("summary", opening or one.id),
        tag("div", one.id, tag("br"), about, class_="dim"),
        tag("pre", one.text + more),
    )


def _changes(record: Record) -> Markup:
    if not record.changes:
        return join()
    rows = [
        tag("tr", tag("td", what), tag("td", f"{count:,}", class_="n"))
        for what, count in record.changes.items()
    ]
    return _section("Documents that were changed", _table(("by", "documents"), rows))


def _recipe(told: Story) -> Markup:
    """As it was written where that is known, else what of it decided the content."""
    recipe = told.record.recipe if told.record and told.record.recipe else told.manifest.recipe
    return _section("Recipe", tag("pre", "\n".join(toml.document(_given(recipe)))))


def _given(recipe: dict[str, Json]) -> dict[str, Json]:
    """Without what is not there: TOML has no null."""
    inner = {
        name: _given(part) if isinstance(part, dict) else part for name, part in recipe.items()
    }
    return {name: part for name, part in inner.items() if part not in (None, {}, [])}


def _lineage(told: Story) -> Markup:
    lines: list[str] = [f"version {told.manifest.version}", f"tokenizer {told.manifest.tokenizer}"]
    lines += [f"parent {parent}" for parent in told.manifest.parents]
    lines += [f"{name} = {value}" for name, value in flat(told.manifest.lineage).items()]
    parts = [tag("pre", "\n".join(lines))]
    if record := told.record:
        machine = record.machine
        stages = ", ".join(f"{one.name} {spoken(one.seconds)}" for one in record.stages)
        parts.append(
            tag(
                "p",
                f"Built {record.ended} on {machine.host} ({machine.system}, {machine.cores} cores) "
                f"by {plural(machine.workers, 'worker')}, which held at most "
                f"{show_size(machine.memory_bytes)} each: {stages}.",
            )
        )
        parts += [tag("p", note) for note in record.notes]
    return _section("Where it comes from", *parts)


def _section(title: str, *parts: Markup) -> Markup:
    return tag("section", tag("h2", title), *parts)


def _table(titles: Sequence[str], rows: Iterable[Markup]) -> Markup:
    heads = [
        tag("th", title, class_="n" if title in ("files", "size", "documents") else "")
        for title in titles
    ]
    top = tag("thead", tag("tr", *heads)) if heads else join()
    return tag("div", tag("table", top, tag("tbody", *rows)), class_="scroll")
