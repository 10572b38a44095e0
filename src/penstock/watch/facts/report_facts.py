"""What a report tells, gathered once for the screen, the page and programs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from penstock.secret import redact
from penstock.style import (
    format_count,
    format_duration,
    format_energy,
    format_loss,
    format_mass,
    format_usd,
    plural,
)
from penstock.watch.facts import incidents
from penstock.watch.facts.advice import Advice, advice
from penstock.watch.facts.costs import Costs, costs_with
from penstock.watch.facts.energy import energy_of
from penstock.watch.facts.energy_amounts import Amount, Energy
from penstock.watch.facts.plan_vs_actual import Held, held
from penstock.watch.facts.timeline import Trouble, troubles
from penstock.watch.facts.view import View

MOST_TROUBLES = 20


@dataclass(frozen=True)
class Line:
    """A line with its name; `style` is plain, dim, warning or bad."""

    name: str
    words: str
    style: str = "plain"

    def __post_init__(self) -> None:
        # An earlier version may have journaled secrets.
        object.__setattr__(self, "words", redact(self.words))


@dataclass
class Facts:
    """Of one reading of a run."""

    view: View

    @cached_property
    def plan(self) -> Held | None:
        return held(self.view)

    @cached_property
    def energy(self) -> Energy | None:
        return energy_of(self.view) if self.view.known_run else None

    @cached_property
    def costs(self) -> Costs | None:
        return costs_with(self.view, self.energy) if self.view.known_run else None

    @cached_property
    def advice(self) -> list[Advice]:
        return advice(self.view)

    @cached_property
    def troubles(self) -> list[Trouble]:
        return troubles(self.view)

    def spent(self) -> list[Line]:
        """Energy, money and carbon, each with where it comes from."""
        lines = []
        if self.energy:
            own, node = self.energy.accelerator_j, self.energy.node_j
            where = f"{_amount(node)} the machines, {_amount(own)} of it the accelerators"
            site = self.energy.facility_j
            lines.append(Line("energy", where + (f"; {_amount(site)} the site" if site else "")))
        if self.costs is None:
            return lines
        found = self.costs
        if found.usd is not None:
            lines.append(Line("cost", _with_rest(found.usd, found.usd_to_go, format_usd)))
        if found.gco2e is not None:
            lines.append(Line("CO2e", _with_rest(found.gco2e, found.gco2e_to_go, format_mass)))
        return lines + [Line("", note, "dim") for note in found.notes]

    def befell(self) -> list[Line]:
        """What went wrong and what was done about it, by time."""
        lines = [Line("skipped", words, "warning") for words in self._skipped()]
        for said in incidents.lines(self.view.incidents):
            name, _, words = said.partition(" ")
            lines.append(Line(name, words.strip(), "warning"))
        for told in self.view.supervised("budget_reached"):
            lines.append(Line("stopped", f"{told.payload.get('budget')} was reached", "warning"))
        for told in self.view.told("stopped_early"):
            lines.append(Line("stopped", f"early: {told.payload.get('why')}"))
        for slow in self.view.stragglers:
            words = f"{slow['factor']:.2f} times the others' time for its own work in a step"
            lines.append(Line("slow", f"rank {slow['rank']}: {words}", "warning"))
        return lines + [self._trouble(one) for one in self.troubles[-MOST_TROUBLES:]]

    def _trouble(self, one: Trouble) -> Line:
        who = "the run" if one.rank is None else f"rank {one.rank}"
        if one.live:
            whole = (
                f"; whole again after {format_duration(one.back - one.since)}" if one.back else ""
            )
            return Line("lost", f"{who}: {one.reason}; the others went on{whole}", "warning")
        back = ""
        if one.back is not None:
            where = f" at step {one.step}" if one.step is not None else ""
            back = f"; went on{where} after {format_duration(max(0.0, one.back - one.since))}"
        return Line("fault", f"{who}: {one.reason}{back}", "bad")

    def _skipped(self, most: int = 5) -> list[str]:
        """What is damaged or missing and not trained on, by name."""
        files: dict[tuple[str, str], list[int]] = {}
        for one in self.view.skipped:
            files.setdefault((one["dataset"], one["shard"]), []).append(one["block"])
        lines = []
        for (dataset, file), blocks in list(files.items())[:most]:
            which = f"block{'s' if len(blocks) > 1 else ''} {', '.join(map(str, sorted(blocks)))}"
            lines.append(f"{dataset}: samples that need {which} of {file} count nothing")
        if len(files) > most:
            more = plural(len(files) - most, "more file")
            lines.append(f"{more}; `penstock report {self.view.folder.name} --json` names them")
        return lines

    def kept(self) -> list[Line]:
        """What it leaves: the newest checkpoint, the best one, the hash of its weights."""
        view, lines = self.view, []
        if view.checkpoint:
            lines.append(Line("saved", view.checkpoint))
        if view.best:
            at = f"step {view.best.step}, validation {format_loss(view.best.val_loss)}"
            lines.append(Line("best", f"{view.best.checkpoint} ({at})"))
        if view.weights_hash:
            lines.append(Line("weights", f"{view.weights_hash[:16]}…", "dim"))
        return lines

    def passes(self) -> str:
        """`1.3 passes over 780K tokens`; empty where that is not known."""
        passes, tokens = self.view.passes, self.view.epoch_tokens
        if passes is None or tokens is None:
            return ""
        count = (
            f"{passes:.2g}"
            if passes < 1
            else f"{passes:,.1f}"
            if passes < 100
            else f"{passes:,.0f}"
        )
        passes_text = "pass" if count in ("1", "1.0") else "passes"
        return f"{count} {passes_text} over {format_count(tokens)} tokens"

    def speed(self) -> str:
        view = self.view
        speed = f"{view.tokens_per_s:,.0f} tokens/s while stepping" if view.tokens_per_s else ""
        if view.mfu is not None:
            speed += f", {view.mfu:.1%} MFU"
        return f"{speed}; {format_count(view.curve['tokens'][-1])} tokens trained on".lstrip("; ")


def _amount(amount: Amount) -> str:
    """`1.25 kWh (measured)`, `3.1 kWh (estimated, 2.5 kWh to 3.9 kWh)`."""
    if amount.source == "measured":
        return f"{format_energy(amount.joules)} (measured)"
    low, high = format_energy(amount.low), format_energy(amount.high)
    return f"{format_energy(amount.joules)} (estimated, {low} to {high})"


def _with_rest(amount: float, to_go: float | None, say: Callable[[float], str]) -> str:
    """`$0.12`, or `$0.12, $0.30 to go`."""
    return f"{say(amount)}, {say(to_go)} to go" if to_go else say(amount)
