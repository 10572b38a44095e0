"""Everything that is known of a run, computed once for all that show it.

The terminal, the page, the reports, the metrics and the outlets lay out these values; none of them
computes its own. Lines of text that two of them share are made here too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from penstock.ledger.journal.events import ABSENT, BudgetReached, CheckpointSaved, StoppedEarly
from penstock.ledger.journal.values import whole
from penstock.secret import redact
from penstock.style import (
    format_count,
    format_duration,
    format_energy,
    format_loss,
    format_mass,
    format_percent,
    format_usd,
    plural,
)
from penstock.watch.facts.advice import Advice, advice
from penstock.watch.facts.costs import Costs, costs_with
from penstock.watch.facts.deliveries import read_deliveries
from penstock.watch.facts.energy import energy_of
from penstock.watch.facts.energy_amounts import Energy, EnergyAmount
from penstock.watch.facts.incidents import incident_text, newest_incidents
from penstock.watch.facts.plan_vs_actual import (
    CauseTime,
    PlanVsActual,
    plan_vs_actual,
    time_by_cause,
)
from penstock.watch.facts.rank_health import RankHealth, rank_health
from penstock.watch.facts.rounds import RoundFacts, round_facts
from penstock.watch.facts.run_view import RunView
from penstock.watch.facts.timeline import Disruption, disruptions

MOST_DISRUPTIONS = 20  # lines in a report
MOST_FILES = 5  # damaged files in a report


@dataclass(frozen=True)
class JournaledSave:
    """A checkpoint on a disk or in another place, as the journal tells of it."""

    t: float
    step: int | None
    tier: str | None
    bytes: int | None
    path: str | None


@dataclass(frozen=True)
class ReportLine:
    """A line of a report with its name; `level` is a key of `style.LEVEL_STYLES`."""

    name: str
    text: str
    level: str = "plain"

    def __post_init__(self) -> None:
        # An earlier version may have journaled secrets.
        object.__setattr__(self, "text", redact(self.text))


@dataclass
class RunFacts:
    """The facts of one reading of a run folder, each computed on first use."""

    view: RunView

    @cached_property
    def plan(self) -> PlanVsActual | None:
        return plan_vs_actual(self.view)

    @cached_property
    def by_cause(self) -> list[CauseTime]:
        return time_by_cause(self.view, self.plan)

    @cached_property
    def largest_shares(self) -> list[CauseTime]:
        """Causes with at least half a per cent of the time, the largest first."""
        large = [row for row in self.by_cause if row.share >= 0.005]
        return sorted(large, key=lambda row: -row.share)

    @cached_property
    def energy(self) -> Energy | None:
        return energy_of(self.view) if self.view.run_or_none else None

    @cached_property
    def costs(self) -> Costs | None:
        return costs_with(self.view, self.energy) if self.view.run_or_none else None

    @cached_property
    def rounds(self) -> RoundFacts | None:
        return round_facts(self.view)

    @cached_property
    def advice(self) -> list[Advice]:
        return advice(self.view)

    @cached_property
    def disruptions(self) -> list[Disruption]:
        return disruptions(self.view)

    @cached_property
    def health(self) -> RankHealth:
        return rank_health(self.view)

    @cached_property
    def saves(self) -> list[JournaledSave]:
        """Durable saves that the journal tells of, by time."""
        return [
            JournaledSave(
                line.t,
                whole(line.event.step),
                _text_or_none(line.event.tier),
                whole(line.event.bytes),
                _text_or_none(line.event.path),
            )
            for line in self.view.rank_events_of(CheckpointSaved)
        ]

    # Text

    @property
    def model_text(self) -> str:
        """The model, its precision, machine and layout; empty before the first launch."""
        view = self.view
        if not view.layout_text:
            return ""
        precision = f", {view.run_or_none.train.precision}" if view.run_or_none else ""
        machine = view.launch.machine or "?"
        return f"{view.model_text}{precision} on {machine}, {view.layout_text}"

    @property
    def precision_text(self) -> str:
        """The reason for the number format that "auto" chose; empty if the run file names one."""
        why = self.view.launch.precision_why
        return f"chosen by this machine: {why}" if why else ""

    @property
    def passes_text(self) -> str:
        """`1.3 passes over 780K tokens`; empty if that is not known."""
        passes, tokens = self.view.passes, self.view.epoch_tokens
        if passes is None or tokens is None:
            return ""
        if passes < 1:
            count = f"{passes:.2g}"
        else:
            count = f"{passes:,.1f}" if passes < 100 else f"{passes:,.0f}"
        noun = "pass" if count in ("1", "1.0") else "passes"
        return f"{count} {noun} over {format_count(tokens)} tokens"

    @property
    def speed_text(self) -> str:
        """`12,345 tokens/s while stepping, 38.1% MFU; 2.1B tokens trained on`."""
        view = self.view
        speed = f"{view.tokens_per_s:,.0f} tokens/s while stepping" if view.tokens_per_s else ""
        if view.mfu is not None:
            speed += f", {format_percent(view.mfu)} MFU"
        return f"{speed}; {format_count(view.tokens)} tokens trained on".lstrip("; ")

    @property
    def shares_text(self) -> str:
        """`× 8 ranks; useful 91.2%, effective 97.0%`; empty before there is any time."""
        ledger = self.view.account.ledger
        if ledger.useful is None or ledger.effective is None:
            return ""
        shares = (
            f"useful {format_percent(ledger.useful)}, effective {format_percent(ledger.effective)}"
        )
        return f"× {plural(self.view.account.ranks, 'rank')}; {shares}"

    @property
    def skipped_text(self) -> str:
        """`2 damaged blocks skipped`; empty if there are none."""
        count = len(self.view.skipped_blocks)
        return f"{plural(count, 'damaged block')} skipped" if count else ""

    # Lines of a report

    def spending_lines(self) -> list[ReportLine]:
        """Return energy, money and carbon, each with where the number comes from."""
        lines = []
        if self.energy:
            own, node = self.energy.accelerator_j, self.energy.node_j
            text = f"{_amount(node)} the machines, {_amount(own)} of it the accelerators"
            site = self.energy.facility_j
            text += f"; {_amount(site)} the site" if site else ""
            lines.append(ReportLine("energy", text))
        if self.costs is None:
            return lines
        costs = self.costs
        if costs.usd is not None:
            lines.append(ReportLine("cost", _with_rest(costs.usd, costs.usd_to_go, format_usd)))
        if costs.gco2e is not None:
            text = _with_rest(costs.gco2e, costs.gco2e_to_go, format_mass)
            lines.append(ReportLine("CO2e", text))
        if costs.market_gco2e is not None:
            text = _with_rest(costs.market_gco2e, costs.market_gco2e_to_go, format_mass)
            lines.append(ReportLine("", f"{text} by contracts"))
        return lines + [ReportLine("", note, "dim") for note in costs.notes]

    def output_lines(self) -> list[ReportLine]:
        """Return what the run leaves: newest and best checkpoint, hash of the weights."""
        view, lines = self.view, []
        if view.newest_checkpoint:
            lines.append(ReportLine("saved", view.newest_checkpoint))
        if best := view.best_checkpoint:
            text = f"{best.checkpoint} (step {best.step}, validation {format_loss(best.val_loss)})"
            lines.append(ReportLine("best", text))
        if view.weights_hash:
            lines.append(ReportLine("weights", f"{view.weights_hash[:16]}…", "dim"))
        return lines

    def problem_lines(self) -> list[ReportLine]:
        """Return what went wrong and how the run answered."""
        view = self.view
        lines = [ReportLine("skipped", text, "warning") for text in self._skipped_files()]
        earlier, newest = newest_incidents(view.incidents)
        if earlier:
            lines.append(ReportLine("guard", plural(earlier, "earlier incident"), "warning"))
        for incident in newest:
            text = f"step {incident.event.step}: {incident_text(incident.event)}"
            lines.append(ReportLine("guard", text, "warning"))
        for reached in view.supervisor_events_of(BudgetReached):
            text = f"{reached.event.budget} was reached"
            lines.append(ReportLine("stopped", text, "warning"))
        if view.pause:
            lines.append(ReportLine("paused", view.pause.removeprefix("paused "), "warning"))
        if view.paused_s:
            text = f"{format_duration(view.paused_s)} in all, in hours of budget.hours_csv"
            lines.append(ReportLine("paused", f"{text}; it is in `down`"))
        if view.fewer:
            lines.append(ReportLine("hours", view.fewer, "warning"))
        if view.fewer_s:
            text = f"{format_duration(view.fewer_s)} on some accelerators, in hours without power"
            lines.append(ReportLine("hours", f"{text} for all; those that wait are in `down`"))
        for stop in view.rank_events_of(StoppedEarly):
            lines.append(ReportLine("stopped", f"early: {stop.event.why}"))
        for outlet, delivery in read_deliveries(view.folder).items():
            if delivery.problem:
                lines.append(ReportLine("unsent", f"{outlet}: {delivery.problem}", "warning"))
        for slow in view.stragglers:
            text = f"{slow['factor']:.2f} times the others' time for its own work in a step"
            lines.append(ReportLine("slow", f"rank {slow['rank']}: {text}", "warning"))
        return lines + [_disruption_line(one) for one in self.disruptions[-MOST_DISRUPTIONS:]]

    def _skipped_files(self) -> list[str]:
        """Return damaged or missing files with the blocks that are not trained on."""
        files: dict[tuple[str, str], list[int]] = {}
        for skipped in [line.event for line in self.view.skipped_blocks]:
            files.setdefault((skipped.dataset, skipped.shard), []).append(skipped.block)
        lines = []
        for (dataset, file), blocks in list(files.items())[:MOST_FILES]:
            which = f"block{'s' if len(blocks) > 1 else ''} {', '.join(map(str, sorted(blocks)))}"
            lines.append(f"{dataset}: samples that need {which} of {file} count nothing")
        if len(files) > MOST_FILES:
            more = plural(len(files) - MOST_FILES, "more file")
            lines.append(f"{more}; `penstock report {self.view.folder.name} --json` names them")
        return lines


def _text_or_none(value: object) -> str | None:
    return None if value is None or value is ABSENT else str(value)


def _disruption_line(disruption: Disruption) -> ReportLine:
    who = "the run" if disruption.rank is None else f"rank {disruption.rank}"
    down_s = None if disruption.back is None else max(0.0, disruption.back - disruption.since)
    after = "" if down_s is None else f" after {format_duration(down_s)}"
    if disruption.live:
        whole = f"; whole again{after}" if after else ""
        text = f"{who}: {disruption.reason}; the others went on{whole}"
        return ReportLine("lost", text, "warning")
    at = f" at step {disruption.step}" if disruption.step is not None else ""
    went_on = f"; went on{at}{after}" if after else ""
    return ReportLine("fault", f"{who}: {disruption.reason}{went_on}", "bad")


def _amount(amount: EnergyAmount) -> str:
    """Format as `1.25 kWh (measured)` or `3.10 kWh (estimated, 2.50 kWh to 3.90 kWh)`."""
    if amount.source == "measured":
        return f"{format_energy(amount.joules)} (measured)"
    low, high = format_energy(amount.low), format_energy(amount.high)
    return f"{format_energy(amount.joules)} (estimated, {low} to {high})"


def _with_rest(amount: float, to_go: float | None, to_text: Callable[[float], str]) -> str:
    """Format as `$0.12`, or `$0.12, $0.30 to go`."""
    return f"{to_text(amount)}, {to_text(to_go)} to go" if to_go else to_text(amount)
