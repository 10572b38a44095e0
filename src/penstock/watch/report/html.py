"""The report of a run as one self-contained page: pictures, no script, made to be sent and printed.

Whatever a run's files say is shown as text.
"""

from pathlib import Path

from penstock.ledger.causes import Cause
from penstock.policy.restart import EARLY
from penstock.run.folder import RunFolder
from penstock.run.save import visible_toml
from penstock.secret import visible_line
from penstock.style import format_duration, format_energy, format_loss, format_usd, plural
from penstock.watch.facts.report_facts import Facts, Line
from penstock.watch.facts.view import View
from penstock.watch.report.charts import areas, curve, stack
from penstock.watch.report.screen import model, precision, shares
from penstock.watch.report.style import STYLE
from penstock.watch.style.charts import bar
from penstock.watch.style.markup import Markup, cards, document, join, section, tag

MOST_RANKS = 32
GOOD = ("done", "running", EARLY)


def page(folder: RunFolder) -> str:
    """Of a run in any state."""
    facts = Facts(View(folder))
    parts = [
        _title(facts),
        _cards(facts),
        _plan(facts),
        _over_time(facts.view),
        _curve(facts.view),
        _ranks(facts.view),
        _listed("What it took", facts.spent()),
        _listed("What it leaves", facts.kept()),
        _listed("What befell it", facts.befell()),
        _advice(facts),
        _written(facts.view),
    ]
    return document(folder.name, STYLE, *parts)


def _title(facts: Facts) -> Markup:
    view = facts.view
    kind = "done" if view.status in GOOD else "bad"
    status = tag("span", view.status, class_=f"status {kind}")
    made = [tag("h1", view.folder.name, " ", tag("small", status))]
    told = (model(view), precision(view) and f"precision {precision(view)}", facts.passes())
    return join(*made, *(tag("p", words) for words in told if words))


def _cards(facts: Facts) -> Markup:
    view, ledger = facts.view, facts.view.account.ledger
    shown = {"step": f"{view.step:,} of {view.steps:,}", "loss": format_loss(view.loss)}
    if view.validation:
        shown["validation"] = format_loss(view.validation[-1][1])
    if view.tokens_per_s:
        shown["tokens/s"] = f"{view.tokens_per_s:,.0f}"
    if view.mfu is not None:
        shown["MFU"] = f"{view.mfu:.1%}"
    shown["wall-clock"] = format_duration(view.account.wall_s)
    if ledger.useful is not None and ledger.effective is not None:
        shown |= {"useful": f"{ledger.useful:.1%}", "effective": f"{ledger.effective:.1%}"}
    if facts.energy:
        shown["energy"] = format_energy(facts.energy.node_j.joules)
    if facts.costs and facts.costs.usd is not None:
        shown["cost"] = format_usd(facts.costs.usd)
    shown["ranks"] = f"{view.account.ranks:,}"
    return cards(shown)


def _plan(facts: Facts) -> Markup:
    """Each cause as it was planned and as it came."""
    account, plan = facts.view.account, facts.plan
    ranks = max(1, account.ranks)
    planned = {row.cause: (row.predicted or 0.0) / ranks for row in plan.rows} if plan else {}
    took = {cause: s / ranks for cause, s in account.ledger.seconds.items()}
    widest = max([*planned.values(), *took.values()], default=0.0)
    rows = []
    for cause in Cause:
        if took[cause] <= 0 and planned.get(cause, 0.0) < 0.05:
            continue
        bars = [bar(planned[cause], widest, "planned")] if plan else []
        bars.append(bar(took[cause], widest, f"c-{cause}"))
        rows.append(
            tag(
                "tr",
                tag("td", tag("i", class_=f"c-{cause}"), cause, title=cause.meaning),
                tag("td", format_duration(planned[cause]), class_="n") if plan else join(),
                tag("td", format_duration(took[cause]), class_="n"),
                tag("td", f"{account.ledger.share(cause) or 0.0:.1%}", class_="n"),
                tag("td", *bars, class_="bar"),
            )
        )
    heads = ("", *(["planned"] if plan else []), "took", "share", "")
    head = tag("thead", tag("tr", *(tag("th", name, class_="n") for name in heads)))
    title = "Plan against actual" if plan else "Where it went"
    said = plan.says() if plan else "This run has no plan to be held to."
    table = tag("table", head, tag("tbody", *rows), class_="causes planned" if plan else "causes")
    below = f"Seconds of each rank. {shares(facts.view)}"
    return section(title, tag("p", said), table, tag("p", below))


def _over_time(view: View) -> Markup:
    picture = areas(view.over_time(), "What the ranks did, as a share of all of them.")
    return section("Where it went, over time", picture) if picture else join()


def _curve(view: View) -> Markup:
    if not len(view.curve):
        return join()
    about = "Loss by step."
    picture = curve(view.curve["step"], view.curve["loss"], view.validation, about)
    return section("Loss", picture) if picture else join()


def _ranks(view: View) -> Markup:
    """Those that did the least useful work first."""
    ledgers = view.account.by_rank
    if len(ledgers) < 2:
        return join()
    order = sorted(range(len(ledgers)), key=lambda rank: ledgers[rank].seconds[Cause.COMPUTE])
    rows = []
    whole = max(ledger.total for ledger in ledgers)
    for rank in order[:MOST_RANKS]:
        picture = stack(list(ledgers[rank].seconds.values()), whole, f"rank {rank}")
        useful = f"{ledgers[rank].useful or 0.0:.1%}"
        cells = (tag("td", f"rank {rank}"), tag("td", useful, class_="n"))
        rows.append(tag("tr", *cells, tag("td", picture, class_="bar")))
    left = len(ledgers) - len(rows)
    more = tag("p", f"{plural(left, 'more rank')} did more useful work.") if left else join()
    return section("Rank by rank", tag("table", tag("tbody", *rows)), more)


def _listed(title: str, lines: list[Line]) -> Markup:
    if not lines:
        return join()
    kinds = {"warning": "bad", "bad": "bad", "dim": "dim", "plain": ""}
    cells = [
        cell
        for line in lines
        for cell in (tag("dt", line.name), tag("dd", line.words, class_=kinds[line.style]))
    ]
    return section(title, tag("dl", *cells, class_="lines"))


def _advice(facts: Facts) -> Markup:
    if not facts.advice:
        return join()
    items = [tag("li", tag("b", one.cause), ": ", one.words) for one in facts.advice]
    return section("To go faster or cheaper", tag("ol", *items))


def _written(view: View) -> Markup:
    """The run file, and what the model writes."""
    parts = []
    prompt, sample = view.last_of("prompt"), view.last_of("sample")
    if sample:
        words = tag("pre", tag("b", str(prompt or "")), str(sample))
        parts.append(tag("details", tag("summary", "What the model writes"), words))
    file = view.folder.run_file
    if file.is_file():
        text = visible_toml(view.known_run) if view.known_run else _visible_lines(file)
        parts.append(tag("details", tag("summary", "The run file"), tag("pre", text)))
    return section("What was asked for", *parts) if parts else join()


def _visible_lines(file: Path) -> str:
    """Return the text of a run file that cannot be loaded, without its secrets."""
    return "\n".join(map(visible_line, file.read_text(errors="replace").splitlines()))
