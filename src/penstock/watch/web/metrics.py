"""A run's figures for Prometheus, by its conventions: base units, `_total` for what only grows.

The seconds of the ledger are a gauge: a second may change its cause when a later fact explains it,
and a counter must never go down. So are step and tokens, which a rollback takes back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.ledger.causes import Cause
from penstock.plan.job.layout import Layout
from penstock.policy.restart import EARLY
from penstock.run.folder import RunFolder
from penstock.secret import redact
from penstock.watch.facts.costs import costs_with
from penstock.watch.facts.energy import energy_of
from penstock.watch.facts.energy_amounts import Energy
from penstock.watch.facts.health import WORDS, health
from penstock.watch.facts.plan_vs_actual import held
from penstock.watch.facts.view import View
from penstock.watch.style.text import dataset_text
from penstock.watch.web.snapshot import UNREADABLE

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_RANKS = 64  # above it no series for each rank
MOST_DEVICES = 64
MOST_RUNS = 32
DEVICE = ("node", "device", "kind")
STATUSES = ("new", "running", "done", "stopped", EARLY, "failed", "killed", "left")

Sample = tuple[str, float | None, dict[str, str]]  # family without `penstock_`, value, more labels


@dataclass(frozen=True)
class Family:
    """A metric: its name without `penstock_` and `_total`, and its labels beside `run`."""

    name: str
    says: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"


FAMILIES = (
    Family("run_info", "What the run is.", ("version", "model", "dataset", "machine", "layout")),
    Family("run_status", "1 for the status that the run is in.", ("status",)),
    Family("step", "The last step that was passed; a rollback takes it back."),
    Family("steps_planned", "Steps until the end."),
    Family("tokens_trained", "Tokens trained on; a rollback takes it back."),
    Family("loss", "Training loss, mean of the last steps."),
    Family("validation_loss", "Loss on the held-out samples."),
    Family("learning_rate", "Of the last step."),
    Family("gradient_norm", "Of the last step, before clipping."),
    Family("tokens_per_second", "While stepping, over all ranks."),
    Family("mfu_ratio", "Share of the accelerators' published peak."),
    Family("step_seconds", "Median time of a step."),
    Family("planned_step_seconds", "What the plan said of it.", ("bound",)),
    Family("left_seconds", "Until the end, at the pace of the steps."),
    Family("last_step_timestamp_seconds", "When the last step ended."),
    Family("wall_seconds", "Wall-clock time over all launches."),
    Family("ledger_seconds", "Accelerator-seconds by cause.", ("cause",)),
    Family("planned_ledger_seconds", "The plan's, for the steps that were made.", ("cause",)),
    Family("effective_ratio", "1 less the share of startup, checkpoint, down and redo."),
    Family("ranks", "Ranks by health.", ("health",)),
    Family("rank_healthy", f"1 for a rank that works; up to {MOST_RANKS} ranks.", ("rank",)),
    Family("rank_slow_ratio", "A straggler's own work over that of the others.", ("rank",)),
    Family("launches", "Times that ranks were started.", (), "counter"),
    Family("faults", "Faults that the supervisor answered.", (), "counter"),
    Family("lost_replicas", "Replicas that the others went on without.", (), "counter"),
    Family("incidents", "What the sentinels found.", ("kind",), "counter"),
    Family("checkpoints", "Checkpoints written.", ("tier",), "counter"),
    Family("checkpoint_failures", "Checkpoints that could not be written.", (), "counter"),
    Family("checkpoint_step", "Step of the newest checkpoint.", ("tier",)),
    Family("checkpoint_timestamp_seconds", "When it was written.", ("tier",)),
    Family("checkpoint_bytes", "Its size.", ("tier",)),
    Family("energy_joules", "Accelerators, hosts, nodes, facility.", ("scope", "source")),
    Family("ledger_joules", "Joules of the nodes by cause.", ("cause",)),
    Family("power_watts", "Of the accelerators, metered."),
    Family("device_joules", "That a device used, by its meter.", DEVICE, "counter"),
    Family("device_power_watts", f"Of a device; up to {MOST_DEVICES}.", DEVICE),
    Family("device_power_limit_watts", "What it may draw.", DEVICE),
    Family("device_clock_hertz", "Of its processors.", DEVICE),
    Family("device_temperature_celsius", "As it says.", DEVICE),
    Family("cost_usd", "So far and to go; absent without a price.", ("part",)),
    Family("co2e_grams", "So far and to go; absent without a site.", ("part",)),
)


def exposition(views: Sequence[View]) -> str:
    """The metrics of these runs, in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Runs(views))
    return generate_latest(registry).decode()


def worth_scraping(folders: Sequence[RunFolder]) -> list[RunFolder]:
    """Those that run, then the newest; the series of old runs stay in Prometheus."""
    return sorted(folders, key=lambda folder: not folder.running())[:MOST_RUNS]


class _Runs(Collector):
    def __init__(self, views: Sequence[View]) -> None:
        self.views = views

    def collect(self) -> Iterator[Metric]:
        made = {family.name: _metric(family) for family in FAMILIES}
        labels = {family.name: family.labels for family in FAMILIES}
        unreadable = 0
        for view, run in zip(self.views, _names(self.views), strict=True):
            try:
                samples = list(_samples(view))
            except UNREADABLE:
                unreadable += 1
                continue
            for name, value, more in samples:
                if value is not None:
                    made[name].add_metric([run, *(more[label] for label in labels[name])], value)
        yield from (metric for metric in made.values() if metric.samples)
        yield GaugeMetricFamily(
            "penstock_unreadable_runs", "Run folders that could not be read.", unreadable
        )


def _metric(family: Family) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return kind(f"penstock_{family.name}", family.says, labels=("run", *family.labels))


def _names(views: Sequence[View]) -> list[str]:
    """A run's name; its path where two are called the same."""
    names = [view.folder.name for view in views]
    return [
        name if names.count(name) == 1 else str(view.folder.path)
        for name, view in zip(names, views, strict=True)
    ]


def _samples(view: View) -> Iterator[Sample]:
    yield from _about(view)
    yield from _progress(view)
    yield from _time(view)
    yield from _ranks(view)
    yield from _troubles(view)
    yield from _checkpoints(view)
    energy = energy_of(view)
    if energy:
        yield from _energy(energy)
    costs = costs_with(view, energy)
    yield "cost_usd", costs.usd, {"part": "so_far"}
    yield "cost_usd", costs.usd_to_go, {"part": "to_go"}
    yield "co2e_grams", costs.gco2e, {"part": "so_far"}
    yield "co2e_grams", costs.gco2e_to_go, {"part": "to_go"}


def _about(view: View) -> Iterator[Sample]:
    plan, layout = view.plan, view.plan.get("layout")
    yield (
        "run_info",
        1,
        {
            "version": __version__,
            "model": redact(str(view.run.model.preset or view.run.model.from_ or "own")),
            "dataset": dataset_text(plan["dataset"]) if "dataset" in plan else "",
            "machine": str(plan.get("machine") or ""),
            "layout": Layout(**layout).ways if layout else "",
        },
    )
    for status in STATUSES:
        yield "run_status", float(view.status == status), {"status": status}


def _progress(view: View) -> Iterator[Sample]:
    curve = view.curve
    yield "step", view.step, {}
    yield "steps_planned", view.steps, {}
    yield "loss", view.loss, {}
    if view.validation:
        yield "validation_loss", view.validation[-1][1], {}
    if len(curve):
        yield "tokens_trained", float(curve["tokens"][-1]), {}
        yield "last_step_timestamp_seconds", float(curve["t"][-1]), {}
        yield "learning_rate", float(curve["learning_rate"][-1]), {}
        yield "gradient_norm", float(curve["grad_norm"][-1]), {}
    yield "tokens_per_second", view.tokens_per_s, {}
    yield "mfu_ratio", view.mfu, {}
    yield "step_seconds", view.step_s, {}
    yield "left_seconds", view.left_s, {}


def _time(view: View) -> Iterator[Sample]:
    ledger = view.account.ledger
    yield "wall_seconds", view.account.wall_s, {}
    yield "effective_ratio", ledger.effective, {}
    for cause in Cause:
        yield "ledger_seconds", ledger.seconds[cause], {"cause": cause}
    if plan := held(view):
        yield "planned_step_seconds", plan.planned_step_s, {"bound": "expected"}
        if plan.band:
            yield "planned_step_seconds", plan.band[0], {"bound": "low"}
            yield "planned_step_seconds", plan.band[1], {"bound": "high"}
        for row in plan.rows:
            yield "planned_ledger_seconds", row.predicted, {"cause": row.cause}


def _ranks(view: View) -> Iterator[Sample]:
    letters = health(view).letters
    for letter, word in WORDS.items():
        yield "ranks", letters.count(letter), {"health": word.replace(" ", "_")}
    if len(letters) <= MOST_RANKS:
        for rank, letter in enumerate(letters):
            yield "rank_healthy", float(WORDS[letter] in ("fine", "slow")), {"rank": str(rank)}
    for slow in view.stragglers[:MOST_RANKS]:
        yield "rank_slow_ratio", slow["factor"], {"rank": str(slow["rank"])}


def _troubles(view: View) -> Iterator[Sample]:
    invocations = view.account.invocations
    yield "launches", sum(len(one.attempts) for one in invocations), {}
    yield "faults", sum(len(one.faults) for one in invocations), {}
    yield "lost_replicas", len(view.supervised("lost")), {}
    kinds = [one["kind"] for one in view.incidents]
    for kind in sorted(set(kinds)):
        yield "incidents", kinds.count(kind), {"kind": kind}


def _checkpoints(view: View) -> Iterator[Sample]:
    saved = [e for e in view.events if e.kind == "saved"]
    yield "checkpoint_failures", sum(e.kind == "save_failed" for e in view.events), {}
    for tier in sorted({str(e.payload.get("tier")) for e in saved}):
        of_tier = [e for e in saved if str(e.payload.get("tier")) == tier]
        last, labels = of_tier[-1], {"tier": tier}
        yield "checkpoints", len(of_tier), labels
        yield "checkpoint_step", last.whole("step"), labels
        yield "checkpoint_timestamp_seconds", last.t, labels
        yield "checkpoint_bytes", last.whole("bytes"), labels


def _energy(energy: Energy) -> Iterator[Sample]:
    scopes = {
        "accelerator": energy.accelerator_j,
        "host": energy.host_j,
        "node": energy.node_j,
        "facility": energy.facility_j,
    }
    for scope, amount in scopes.items():
        if amount:
            yield "energy_joules", amount.joules, {"scope": scope, "source": amount.source}
    for cause, joules in energy.by_cause.items():
        yield "ledger_joules", joules, {"cause": cause}
    yield "power_watts", energy.watts_now, {}
    for one in energy.devices[:MOST_DEVICES]:
        labels = {"node": one.node, "device": one.uuid, "kind": one.kind}
        yield "device_joules", one.joules, labels
        yield "device_power_watts", one.watts, labels
        yield "device_power_limit_watts", one.limit_w, labels
        yield "device_clock_hertz", None if one.clock_mhz is None else 1e6 * one.clock_mhz, labels
        yield "device_temperature_celsius", one.temperature_c, labels
