"""The report of a run as one HTML file with pictures and no script, to be sent and printed.

The contents of the run's files are always shown as text, never as HTML.
"""

from pathlib import Path

import numpy as np

from penstock.ledger.causes import Cause
from penstock.run.folder import RunFolder
from penstock.run.save import visible_toml
from penstock.secret import visible_line
from penstock.style import (
    STATUS_LEVELS,
    format_duration,
    format_energy,
    format_loss,
    format_percent,
    format_usd,
    plural,
)
from penstock.watch.facts.rewards import held_out_rewards, recent, training_rewards
from penstock.watch.facts.run_facts import ReportLine, RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.facts.task_scores import newest_columns
from penstock.watch.report.charts import areas, curve, stack
from penstock.watch.report.scores import scores_markup
from penstock.watch.style.charts import bar
from penstock.watch.style.css import REPORT_CSS
from penstock.watch.style.markup import Markup, cards, document, join, section, tag

MOST_RANKS = 32


def page(folder: RunFolder) -> str:
    """Return the HTML report of a run in any state."""
    facts = RunFacts(RunView(folder))
    parts = [
        _title(facts),
        _cards(facts),
        _plan(facts),
        _over_time(facts.view),
        _curve(facts.view),
        _tasks(facts.view),
        _ranks(facts.view),
        _listed("What it took", facts.spending_lines()),
        _listed("What it leaves", facts.output_lines()),
        _listed("What went wrong", facts.problem_lines()),
        _advice(facts),
        _texts(facts.view),
    ]
    return document(folder.name, REPORT_CSS, *parts)


def _title(facts: RunFacts) -> Markup:
    view = facts.view
    good = STATUS_LEVELS.get(view.status) in ("good", "active")
    kind = "done" if good else "bad"
    status = tag("span", view.status, class_=f"status {kind}")
    title = [tag("h1", view.folder.name, " ", tag("small", status))]
    precision = facts.precision_text and f"precision {facts.precision_text}"
    texts = (facts.model_text, precision, facts.passes_text)
    return join(*title, *(tag("p", text) for text in texts if text))


def _cards(facts: RunFacts) -> Markup:
    view, ledger = facts.view, facts.view.account.ledger
    shown = {"step": f"{view.step:,} of {view.steps:,}", "loss": format_loss(view.loss)}
    if view.validation:
        shown["validation"] = format_loss(view.validation[-1][1])
    if view.tokens_per_s:
        shown["tokens/s"] = f"{view.tokens_per_s:,.0f}"
    if view.mfu is not None:
        shown["MFU"] = format_percent(view.mfu)
    shown["wall-clock"] = format_duration(view.account.wall_s)
    if ledger.useful is not None and ledger.effective is not None:
        shown |= {
            "useful": format_percent(ledger.useful),
            "effective": format_percent(ledger.effective),
        }
    if facts.energy:
        shown["energy"] = format_energy(facts.energy.node_j.joules)
    if facts.costs and facts.costs.usd is not None:
        shown["cost"] = format_usd(facts.costs.usd)
    shown["ranks"] = f"{view.account.ranks:,}"
    return cards(shown)


def _plan(facts: RunFacts) -> Markup:
    """Return the planned and actual time of each cause."""
    plan = facts.plan
    widest = max(max(row.planned_s or 0.0, row.actual_s) for row in facts.by_cause)
    rows = []
    for row in facts.by_cause:
        if not row.worth_a_row:
            continue
        cause, planned_s = row.cause, row.planned_s or 0.0
        bars = [bar(planned_s, widest, "planned")] if plan else []
        bars.append(bar(row.actual_s, widest, f"c-{cause}"))
        rows.append(
            tag(
                "tr",
                tag("td", tag("i", class_=f"c-{cause}"), cause, title=cause.meaning),
                tag("td", format_duration(planned_s), class_="n") if plan else join(),
                tag("td", format_duration(row.actual_s), class_="n"),
                tag("td", format_percent(row.share), class_="n"),
                tag("td", *bars, class_="bar"),
            )
        )
    heads = ("", *(["planned"] if plan else []), "took", "share", "")
    head = tag("thead", tag("tr", *(tag("th", name, class_="n") for name in heads)))
    title = "Plan against actual" if plan else "Where it went"
    verdict = plan.sentence() if plan else "This run has no plan to compare with."
    table = tag("table", head, tag("tbody", *rows), class_="causes planned" if plan else "causes")
    below = f"Seconds of each rank. {facts.shares_text}"
    return section(title, tag("p", verdict), table, tag("p", below))


def _over_time(view: RunView) -> Markup:
    picture = areas(view.over_time(), "What the ranks did, as a share of all of them.")
    return section("Where it went, over time", picture) if picture else join()


def _curve(view: RunView) -> Markup:
    if not len(view.curve):
        return join()
    about = "Loss by step."
    picture = curve(view.curve["step"], view.curve["loss"], view.validation, about)
    return join(section("Loss", picture), _rewards(view)) if picture else join()


def _rewards(view: RunView) -> Markup:
    """Return the margin between both answers of the pairs, for an objective on pairs."""
    found, held_out = training_rewards(view), held_out_rewards(view)
    if not found:
        return join()
    steps, margins = np.array([one.step for one in found]), np.array([one.margin for one in found])
    about = "Reward of the chosen answer less that of the rejected one, by step."
    picture = curve(steps, margins, [(one.step, one.margin) for one in held_out], about)
    last = [("last steps", recent(found)), ("held out", recent(held_out[-1:]))]
    words = [tag("p", f"{name}: {one.words()}") for name, one in last if one]
    return section("Rewards", picture, *words)


def _tasks(view: RunView) -> Markup:
    if not view.task_scores:
        return join()
    return section("Tasks", scores_markup(newest_columns(view.task_scores)))


def _ranks(view: RunView) -> Markup:
    """Return the causes of each rank, the one with the least useful work first."""
    ledgers = view.account.by_rank
    if len(ledgers) < 2:
        return join()
    order = sorted(range(len(ledgers)), key=lambda rank: ledgers[rank].seconds[Cause.COMPUTE])
    rows = []
    whole = max(ledger.total for ledger in ledgers)
    for rank in order[:MOST_RANKS]:
        picture = stack(list(ledgers[rank].seconds.values()), whole, f"rank {rank}")
        useful = format_percent(ledgers[rank].useful or 0.0)
        cells = (tag("td", f"rank {rank}"), tag("td", useful, class_="n"))
        rows.append(tag("tr", *cells, tag("td", picture, class_="bar")))
    left = len(ledgers) - len(rows)
    more = tag("p", f"{plural(left, 'more rank')} did more useful work.") if left else join()
    return section("Rank by rank", tag("table", tag("tbody", *rows)), more)


def _listed(title: str, lines: list[ReportLine]) -> Markup:
    if not lines:
        return join()
    kinds = {"warning": "bad", "bad": "bad", "dim": "dim", "plain": ""}
    cells = [
        cell
        for line in lines
        for cell in (tag("dt", line.name), tag("dd", line.text, class_=kinds[line.level]))
    ]
    return section(title, tag("dl", *cells, class_="lines"))


def _advice(facts: RunFacts) -> Markup:
    if not facts.advice:
        return join()
    items = [tag("li", tag("b", one.cause), ": ", one.words) for one in facts.advice]
    return section("To go faster or cheaper", tag("ol", *items))


def _texts(view: RunView) -> Markup:
    """Return the run file, and a sample that the model wrote."""
    parts = []
    prompt, sample = view.prompt, view.sample
    if sample:
        words = tag("pre", tag("b", str(prompt or "")), str(sample))
        parts.append(tag("details", tag("summary", "What the model writes"), words))
    file = view.folder.run_file
    if file.is_file():
        text = visible_toml(view.run_or_none) if view.run_or_none else _visible_lines(file)
        parts.append(tag("details", tag("summary", "The run file"), tag("pre", text)))
    return section("What was asked for", *parts) if parts else join()


def _visible_lines(file: Path) -> str:
    """Return the text of a run file that cannot be loaded, without its secrets."""
    return "\n".join(map(visible_line, file.read_text(errors="replace").splitlines()))
