"""Below the curve of a run: speed against the plan, causes, ranks, what is saved, what it cost."""

import time

from rich.text import Text

from penstock.ledger.causes import Cause
from penstock.plan.cost.cost import J_PER_KWH
from penstock.secret import redact
from penstock.style import (
    CAUSE_COLOURS,
    format_bytes,
    format_duration,
    format_energy,
    format_mass,
    format_step_time,
    format_usd,
    plural,
)
from penstock.watch.facts.costs import costs_with
from penstock.watch.facts.energy import energy_of
from penstock.watch.facts.health import DEAD, ENDED, FINE, SLOW, STARTING, UNKNOWN, WORDS, health
from penstock.watch.facts.plan_vs_actual import held
from penstock.watch.facts.view import View
from penstock.watch.style.text import printable

HEALTH = {
    FINE: "green",
    SLOW: "yellow",
    DEAD: "red",
    STARTING: "blue",
    ENDED: "bright_black",
    UNKNOWN: "bright_black",
}
MOST_DOTS = 64


def row(name: str, *parts: str | Text | tuple[str, str]) -> Text:
    """A line with its name on the left."""
    made = Text(f"{name:<8}", style="", no_wrap=True)
    made.stylize("dim")
    for part in parts:
        made.append_text(part if isinstance(part, Text) else Text.assemble(part))
    return made


def facts(view: View, width: int) -> list[Text]:
    made = [_speed(view), _bar(view, width), _legend(view, width), _health(view, width)]
    made += [line for line in (_saved(view), _spent(view), *_damage(view)) if line]
    return made


def _speed(view: View) -> Text:
    if not view.tokens_per_s or not view.step_s:
        return row("speed", ("no step yet", "dim"))
    made = row("speed", (f"{view.tokens_per_s:,.0f} tokens/s", "bold"))
    plan = held(view)
    if plan and plan.off is not None:
        inside = plan.band and plan.band[0] <= view.step_s <= plan.band[1]
        speed = view.plan["batch_tokens"] / plan.planned_step_s
        gap = plan.planned_step_s / view.step_s - 1
        style = "green" if inside or gap > 0 else "yellow"
        made.append(f"  plan {speed:,.0f}", style="dim")
        made.append(f" ({gap:+.0%}{', within its band' if inside else ''})", style=style)
    if view.mfu is not None:
        made.append(f"   {view.mfu:.1%} MFU")
        if plan and plan.off is not None:
            made.append(f"  plan {view.mfu * (1 + plan.off):.1%}", style="dim")
    return made.append(f"   {format_step_time(view.step_s)} a step", style="dim")


def _bar(view: View, width: int) -> Text:
    """Where the time went, every cause in its colour; what is seen at all is one cell or more."""
    made, columns = row("time"), max(8, width - 8)
    shares = {cause: view.account.ledger.share(cause) or 0.0 for cause in Cause}
    edges, at = [0], 0.0
    for cause in Cause:
        at += shares[cause]
        edges.append(round(at * columns))
    for cause, start, end in zip(Cause, edges, edges[1:], strict=False):
        made.append("█" * (end - start), style=CAUSE_COLOURS[cause].terminal)
    return made


def _legend(view: View, width: int) -> Text:
    shares = {cause: view.account.ledger.share(cause) or 0.0 for cause in Cause}
    made = row("")
    for cause in sorted(Cause, key=lambda c: -shares[c]):
        if shares[cause] >= 0.005:
            part = Text(f"█ {cause} {shares[cause]:.0%}  ", style=CAUSE_COLOURS[cause].terminal)
            if made.cell_len + part.cell_len > width:
                break
            part.stylize("default", 2)
            made.append_text(part)
    return made


def _health(view: View, width: int) -> Text:
    found = health(view)
    letters, made = found.letters, row("ranks")
    if len(letters) <= min(MOST_DOTS, max(8, width - 40)):
        for letter in letters:
            made.append("●", style=HEALTH[letter])
        made.append("  ")
    counts = [(letter, letters.count(letter)) for letter in WORDS if letter in letters]
    made.append(", ".join(f"{count} {WORDS[letter]}" for letter, count in counts))
    for rank, why in sorted(found.why.items())[:1]:
        made.append(f"   rank {rank}: {plain(why)}", style=HEALTH[letters[rank]])
    return made


def _saved(view: View) -> Text | None:
    saved = [e for e in view.events if e.kind == "saved"]
    if not saved:
        return row("saved", ("nothing yet", "dim")) if len(view.curve) else None
    last = saved[-1]
    age = format_duration(max(0.0, time.time() - last.t))
    made = row("saved", f"step {last.payload.get('step')}", (f"  {age} ago", "dim"))
    size_of = format_bytes(last.whole("bytes") or 0)
    return made.append(f"  {last.payload.get('tier')}, {size_of}", style="dim")


def _spent(view: View) -> Text | None:
    """Energy and what it costs; nothing where nothing tells."""
    energy = energy_of(view)
    costs = costs_with(view, energy)
    if costs.kwh is None or energy is None:
        return None
    sure = "" if energy.accelerator_j.source == "measured" else " (estimated)"
    made = row("energy", format_energy(J_PER_KWH * costs.kwh), (sure, "dim"))
    if energy.watts_now is not None:
        made.append(f"  {energy.watts_now:,.0f} W now")
    if costs.kwh_to_go:
        made.append(f"  {format_energy(J_PER_KWH * costs.kwh_to_go)} to go", style="dim")
    if costs.usd is not None:
        made.append(f"   {format_usd(costs.usd)}")
        made.append(f" + {format_usd(costs.usd_to_go)}" if costs.usd_to_go else "", style="dim")
    if costs.gco2e is not None:
        made.append(f"   {format_mass(costs.gco2e)} CO2e", style="dim")
    return made


def _damage(view: View) -> list[Text]:
    many = len(view.skipped)
    return [row("data", (f"{plural(many, 'damaged block')} skipped", "yellow"))] if many else []


def plain(words: object) -> str:
    """On one line, and without what a terminal would obey: an error may hold anything."""
    return redact(printable(" ".join(str(words).split())))
