"""The lines below the curve of a run: speed, causes, ranks, the last save, energy and cost."""

import time

from rich.text import Text

from penstock.plan.cost.cost import J_PER_KWH
from penstock.secret import redact
from penstock.style import (
    CAUSE_COLOURS,
    format_bytes,
    format_change,
    format_duration,
    format_energy,
    format_mass,
    format_percent,
    format_step_time,
    format_usd,
)
from penstock.watch.facts.rank_health import DEAD, ENDED, FINE, SLOW, STARTING, UNKNOWN, WORDS
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.style.text import printable

HEALTH_STYLES = {
    FINE: "green",
    SLOW: "yellow",
    DEAD: "red",
    STARTING: "blue",
    ENDED: "bright_black",
    UNKNOWN: "bright_black",
}
MOST_DOTS = 64


def row(name: str, *parts: str | Text | tuple[str, str]) -> Text:
    """Return a line with its name on the left."""
    line = Text(f"{name:<8}", style="", no_wrap=True)
    line.stylize("dim")
    for part in parts:
        line.append_text(part if isinstance(part, Text) else Text.assemble(part))
    return line


def status_lines(facts: RunFacts, width: int) -> list[Text]:
    """Return the lines below the chart, without those that have nothing to say."""
    lines = [_speed(facts), _bar(facts, width), _legend(facts, width), _health(facts, width)]
    return lines + [
        line for line in (_rounds(facts), _saved(facts), _spending(facts), _skipped(facts)) if line
    ]


def _rounds(facts: RunFacts) -> Text | None:
    return row("rounds", facts.rounds.words()) if facts.rounds else None


def _speed(facts: RunFacts) -> Text:
    view, plan = facts.view, facts.plan
    if not view.tokens_per_s or not view.step_s:
        return row("speed", ("no step yet", "dim"))
    line = row("speed", (f"{view.tokens_per_s:,.0f} tokens/s", "bold"))
    planned = plan is not None and plan.step_deviation is not None and plan.step_s == view.step_s
    if plan and planned and plan.planned_tokens_per_s:  # else on fewer ranks than planned
        speed = plan.planned_step_s / view.step_s
        style = "green" if plan.within_band or speed > 1 else "yellow"
        line.append(f"  plan {plan.planned_tokens_per_s:,.0f}", style="dim")
        line.append(
            f" ({format_change(speed)}{', within its band' if plan.within_band else ''})",
            style=style,
        )
    if view.mfu is not None:
        line.append(f"   {format_percent(view.mfu)} MFU")
        if plan and planned and plan.step_deviation is not None:
            line.append(
                f"  plan {format_percent(view.mfu * (1 + plan.step_deviation))}", style="dim"
            )
    return line.append(f"   {format_step_time(view.step_s)} a step", style="dim")


def _bar(facts: RunFacts, width: int) -> Text:
    """Return the share of every cause as a bar in its colour."""
    line, columns = row("time"), max(8, width - 8)
    edges, at = [0], 0.0
    for cause_time in facts.by_cause:
        at += cause_time.share
        edges.append(round(at * columns))
    for cause_time, start, end in zip(facts.by_cause, edges, edges[1:], strict=False):
        line.append("█" * (end - start), style=CAUSE_COLOURS[cause_time.cause].terminal)
    return line


def _legend(facts: RunFacts, width: int) -> Text:
    line = row("")
    for cause_time in facts.largest_shares:
        colour = CAUSE_COLOURS[cause_time.cause].terminal
        part = Text(f"█ {cause_time.cause} {cause_time.share:.0%}  ", style=colour)
        if line.cell_len + part.cell_len > width:
            break
        part.stylize("default", 2)
        line.append_text(part)
    return line


def _health(facts: RunFacts, width: int) -> Text:
    letters, line = facts.health.letters, row("ranks")
    if len(letters) <= min(MOST_DOTS, max(8, width - 40)):
        for letter in letters:
            line.append("●", style=HEALTH_STYLES[letter])
        line.append("  ")
    counts = [(letter, letters.count(letter)) for letter in WORDS if letter in letters]
    line.append(", ".join(f"{count} {WORDS[letter]}" for letter, count in counts))
    for rank, why in sorted(facts.health.why.items())[:1]:
        line.append(f"   rank {rank}: {one_line(why)}", style=HEALTH_STYLES[letters[rank]])
    return line


def _saved(facts: RunFacts) -> Text | None:
    if not facts.saves:
        return row("saved", ("nothing yet", "dim")) if len(facts.view.curve) else None
    last = facts.saves[-1]
    age = format_duration(max(0.0, time.time() - last.t))
    line = row("saved", f"step {last.step}", (f"  {age} ago", "dim"))
    return line.append(f"  {last.tier}, {format_bytes(last.bytes or 0)}", style="dim")


def _spending(facts: RunFacts) -> Text | None:
    """Return energy and costs; None if they are not known."""
    energy, costs = facts.energy, facts.costs
    if energy is None or costs is None or costs.kwh is None:
        return None
    source = "" if energy.accelerator_j.source == "measured" else " (estimated)"
    line = row("energy", format_energy(J_PER_KWH * costs.kwh), (source, "dim"))
    if energy.watts_now is not None:
        line.append(f"  {energy.watts_now:,.0f} W now")
    if costs.kwh_to_go:
        line.append(f"  {format_energy(J_PER_KWH * costs.kwh_to_go)} to go", style="dim")
    if costs.usd is not None:
        line.append(f"   {format_usd(costs.usd)}")
        line.append(f" + {format_usd(costs.usd_to_go)}" if costs.usd_to_go else "", style="dim")
    if costs.gco2e is not None:
        line.append(f"   {format_mass(costs.gco2e)} CO2e", style="dim")
    return line


def _skipped(facts: RunFacts) -> Text | None:
    return row("data", (facts.skipped_text, "yellow")) if facts.skipped_text else None


def one_line(words: object) -> str:
    """Return text on one line, without secrets and control characters: errors may hold anything."""
    return redact(printable(" ".join(str(words).split())))
