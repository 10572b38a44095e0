"""The metrics of runs for Prometheus, by its conventions: base units, `_total` for counters.

The seconds of the ledger are gauges: a second can change its cause when a later record explains it,
and a counter must never go down. Step and tokens are gauges because a rollback reduces them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.ledger.causes import Cause
from penstock.ledger.journal.events import ReplicaGone, SaveFailed
from penstock.run.folder import RunFolder
from penstock.secret import redact
from penstock.style import STATUS_LEVELS
from penstock.watch.facts.energy_amounts import Energy
from penstock.watch.facts.rank_health import WORDS
from penstock.watch.facts.rewards import recent, training_rewards
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.web.sections import UNREADABLE

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_RANKS = 64  # above it no series for each rank
MOST_DEVICES = 64
MOST_RUNS = 32
MOST_SCORES = 256
DEVICE = ("node", "device", "kind")

Sample = tuple[str, float | None, dict[str, str]]  # family without `penstock_`, value, more labels


@dataclass(frozen=True)
class MetricFamily:
    """A metric: its name without `penstock_` and `_total`, and its labels beside `run`."""

    name: str
    says: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"


FAMILIES = (
    MetricFamily(
        "run_info", "What the run is.", ("version", "model", "dataset", "machine", "layout")
    ),
    MetricFamily("run_status", "1 for the status that the run is in.", ("status",)),
    MetricFamily("step", "The last step that was passed; a rollback takes it back."),
    MetricFamily("steps_planned", "Steps until the end."),
    MetricFamily("tokens_trained", "Tokens trained on; a rollback takes it back."),
    MetricFamily("loss", "Training loss, mean of the last steps."),
    MetricFamily("validation_loss", "Loss on the held-out samples."),
    MetricFamily(
        "task_score", "Of benchmark tasks, last run in training.", ("task", "metric", "filter")
    ),
    MetricFamily("learning_rate", "Of the last step."),
    MetricFamily("gradient_norm", "Of the last step, before clipping."),
    MetricFamily("tokens_per_second", "While stepping, over all ranks."),
    MetricFamily("mfu_ratio", "Share of the accelerators' published peak."),
    MetricFamily("step_seconds", "Median time of a step."),
    MetricFamily("planned_step_seconds", "What the plan said of it.", ("bound",)),
    MetricFamily("reward", "Of both answers of the pairs.", ("answer",)),
    MetricFamily("reward_margin", "Reward of the chosen answers less that of the rejected ones."),
    MetricFamily("reward_accuracy_ratio", "Pairs whose chosen answer has the higher reward."),
    MetricFamily("left_seconds", "Until the end, at the pace of the steps."),
    MetricFamily("last_step_timestamp_seconds", "When the last step ended."),
    MetricFamily("wall_seconds", "Wall-clock time over all launches."),
    MetricFamily("ledger_seconds", "Accelerator-seconds by cause.", ("cause",)),
    MetricFamily("planned_ledger_seconds", "The plan's, for the steps that were made.", ("cause",)),
    MetricFamily("effective_ratio", "1 less the share of startup, checkpoint, down and redo."),
    MetricFamily("ranks", "Ranks by health.", ("health",)),
    MetricFamily("rank_healthy", f"1 for a rank that works; up to {MOST_RANKS} ranks.", ("rank",)),
    MetricFamily("rank_slow_ratio", "A straggler's own work over that of the others.", ("rank",)),
    MetricFamily("launches", "Times that ranks were started.", (), "counter"),
    MetricFamily("faults", "Faults that the supervisor answered.", (), "counter"),
    MetricFamily("lost_replicas", "Replicas that the others went on without.", (), "counter"),
    MetricFamily("incidents", "What the sentinels found.", ("kind",), "counter"),
    MetricFamily("checkpoints", "Checkpoints written.", ("tier",), "counter"),
    MetricFamily("checkpoint_failures", "Checkpoints that could not be written.", (), "counter"),
    MetricFamily("checkpoint_step", "Step of the newest checkpoint.", ("tier",)),
    MetricFamily("checkpoint_timestamp_seconds", "When it was written.", ("tier",)),
    MetricFamily("checkpoint_bytes", "Its size.", ("tier",)),
    MetricFamily("energy_joules", "Accelerators, hosts, nodes, facility.", ("scope", "source")),
    MetricFamily("ledger_joules", "Joules of the nodes by cause.", ("cause",)),
    MetricFamily("power_watts", "Of the accelerators, metered."),
    MetricFamily("device_joules", "That a device used, by its meter.", DEVICE, "counter"),
    MetricFamily("device_power_watts", f"Of a device; up to {MOST_DEVICES}.", DEVICE),
    MetricFamily("device_power_limit_watts", "What it may draw.", DEVICE),
    MetricFamily("device_clock_hertz", "Of its processors.", DEVICE),
    MetricFamily("device_temperature_celsius", "As it says.", DEVICE),
    MetricFamily("cost_usd", "So far and to go; absent without a price.", ("part",)),
    MetricFamily("co2e_grams", "So far and to go; absent without a site.", ("part",)),
)


def exposition(views: Sequence[RunView]) -> str:
    """Return the metrics of these runs in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Runs(views))
    return generate_latest(registry).decode()


def worth_scraping(folders: Sequence[RunFolder]) -> list[RunFolder]:
    """Choose running runs, then the newest; Prometheus keeps the series of older ones."""
    return sorted(folders, key=lambda folder: not folder.running())[:MOST_RUNS]


class _Runs(Collector):
    """The collector of the metrics of some runs."""

    def __init__(self, views: Sequence[RunView]) -> None:
        self.views = views

    def collect(self) -> Iterator[Metric]:
        metrics = {family.name: _metric(family) for family in FAMILIES}
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
                    metrics[name].add_metric([run, *(more[label] for label in labels[name])], value)
        yield from (metric for metric in metrics.values() if metric.samples)
        yield GaugeMetricFamily(
            "penstock_unreadable_runs", "Run folders that could not be read.", unreadable
        )


def _metric(family: MetricFamily) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return kind(f"penstock_{family.name}", family.says, labels=("run", *family.labels))


def _names(views: Sequence[RunView]) -> list[str]:
    """Return the name of each run, or its path if two have the same name."""
    names = [view.folder.name for view in views]
    return [
        name if names.count(name) == 1 else str(view.folder.path)
        for name, view in zip(names, views, strict=True)
    ]


def _samples(view: RunView) -> Iterator[Sample]:
    facts = RunFacts(view)
    yield from _about(view)
    yield from _progress(view)
    yield from _time(facts)
    yield from _ranks(facts)
    yield from _problems(view)
    yield from _checkpoints(facts)
    if facts.energy:
        yield from _energy(facts.energy)
    costs = facts.costs
    if costs is None:
        return
    yield "cost_usd", costs.usd, {"part": "so_far"}
    yield "cost_usd", costs.usd_to_go, {"part": "to_go"}
    yield "co2e_grams", costs.gco2e, {"part": "so_far"}
    yield "co2e_grams", costs.gco2e_to_go, {"part": "to_go"}


def _about(view: RunView) -> Iterator[Sample]:
    yield (
        "run_info",
        1,
        {
            "version": __version__,
            "model": redact(str(view.run.model.preset or view.run.model.from_ or "own")),
            "dataset": view.dataset_text,
            "machine": str(view.launch.machine or ""),
            "layout": view.layout_text,
        },
    )
    for status in STATUS_LEVELS:
        yield "run_status", float(view.status == status), {"status": status}


def _progress(view: RunView) -> Iterator[Sample]:
    curve = view.curve
    yield "step", view.step, {}
    yield "steps_planned", view.steps, {}
    yield "loss", view.loss, {}
    if view.validation:
        yield "validation_loss", view.validation[-1][1], {}
    trained = [one for one in view.task_scores if one.during]  # comparable with each other
    for score in trained[-1].scores[:MOST_SCORES] if trained else ():
        labels = {"task": score.task, "metric": score.metric, "filter": score.filter}
        yield "task_score", score.value, labels
    if len(curve):
        yield "tokens_trained", float(curve["tokens"][-1]), {}
        yield "last_step_timestamp_seconds", float(curve["t"][-1]), {}
        yield "learning_rate", float(curve["learning_rate"][-1]), {}
        yield "gradient_norm", float(curve["grad_norm"][-1]), {}
    if rewards := recent(training_rewards(view)):
        yield "reward", rewards.chosen, {"answer": "chosen"}
        yield "reward", rewards.rejected, {"answer": "rejected"}
        yield "reward_margin", rewards.margin, {}
        yield "reward_accuracy_ratio", rewards.accuracy, {}
    yield "tokens_per_second", view.tokens_per_s, {}
    yield "mfu_ratio", view.mfu, {}
    yield "step_seconds", view.step_s, {}
    yield "left_seconds", view.remaining_s, {}


def _time(facts: RunFacts) -> Iterator[Sample]:
    view = facts.view
    ledger = view.account.ledger
    yield "wall_seconds", view.account.wall_s, {}
    yield "effective_ratio", ledger.effective, {}
    for cause in Cause:
        yield "ledger_seconds", ledger.seconds[cause], {"cause": cause}
    if plan := facts.plan:
        yield "planned_step_seconds", plan.planned_step_s, {"bound": "expected"}
        if plan.band:
            yield "planned_step_seconds", plan.band[0], {"bound": "low"}
            yield "planned_step_seconds", plan.band[1], {"bound": "high"}
        for row in plan.rows:
            yield "planned_ledger_seconds", row.predicted, {"cause": row.cause}


def _ranks(facts: RunFacts) -> Iterator[Sample]:
    letters = facts.health.letters
    for letter, word in WORDS.items():
        yield "ranks", letters.count(letter), {"health": word.replace(" ", "_")}
    if len(letters) <= MOST_RANKS:
        for rank, letter in enumerate(letters):
            yield "rank_healthy", float(WORDS[letter] in ("fine", "slow")), {"rank": str(rank)}
    for slow in facts.view.stragglers[:MOST_RANKS]:
        yield "rank_slow_ratio", slow["factor"], {"rank": str(slow["rank"])}


def _problems(view: RunView) -> Iterator[Sample]:
    invocations = view.account.invocations
    yield "launches", sum(len(invocation.attempts) for invocation in invocations), {}
    yield "faults", view.fault_count, {}
    yield "lost_replicas", len(view.supervisor_events_of(ReplicaGone)), {}
    kinds = [incident.kind for incident in view.incidents]
    for kind in sorted(set(kinds)):
        yield "incidents", kinds.count(kind), {"kind": kind}


def _checkpoints(facts: RunFacts) -> Iterator[Sample]:
    failures = facts.view.rank_events_of(SaveFailed)
    yield "checkpoint_failures", len(failures), {}
    for tier in sorted({str(save.tier) for save in facts.saves}):
        saves = [save for save in facts.saves if str(save.tier) == tier]
        last, labels = saves[-1], {"tier": tier}
        yield "checkpoints", len(saves), labels
        yield "checkpoint_step", last.step, labels
        yield "checkpoint_timestamp_seconds", last.t, labels
        yield "checkpoint_bytes", last.bytes, labels


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
    for device in energy.devices[:MOST_DEVICES]:
        labels = {"node": device.node, "device": device.uuid, "kind": device.kind}
        yield "device_joules", device.joules, labels
        yield "device_power_watts", device.watts, labels
        yield "device_power_limit_watts", device.limit_w, labels
        clock_hz = None if device.clock_mhz is None else 1e6 * device.clock_mhz
        yield "device_clock_hertz", clock_hz, labels
        yield "device_temperature_celsius", device.temperature_c, labels
