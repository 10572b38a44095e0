"""The energy of a run: of its accelerators, its machines and their site, and by cause.

Accelerators are metered if a meter can be read; the rest of the machines is estimated. Each amount
says which, with its band. Nothing is counted twice. Gaps are filled, and a note says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce

import numpy as np

from penstock.ledger import joules as joule_spans
from penstock.ledger.causes import Cause
from penstock.ledger.joules import EnergySpans
from penstock.ledger.journal.energy import MeteredDevice, NodeEnergy, read_nodes
from penstock.ledger.journal.events import (
    HostsAssigned,
    JournalEvent,
    MeterOdd,
    MetersClosed,
    MetersOpened,
)
from penstock.ledger.journal.read import lines_of
from penstock.meter.clock import now
from penstock.style import format_percent
from penstock.watch.facts.energy_amounts import (
    DeviceEnergy,
    Energy,
    EnergyAmount,
    EnergyByTime,
)
from penstock.watch.facts.energy_model import HOST_BAND, PowerModel, power_model
from penstock.watch.facts.hourly import hours_of
from penstock.watch.facts.run_view import RunView

MOST_MOMENTS = 100_000  # × ranks, at which causes are read
PER_NODE_UP_TO = 16  # nodes; with more, each is treated as the mean of all
FRESH_S = 90.0  # an older reading does not count as the power now
METER = (0.95, 1.05)  # NVML states 5 % for the power of Kepler parts; assumed for all others
WHOLE = 0.95  # share of metered joules from which an amount counts as measured


def energy_of(view: RunView) -> Energy | None:
    """Compute the energy of a run.

    None before it has any time, and for devices with neither a meter nor a known power.
    """
    if not view.account.ledger.total:
        return None
    nodes = read_nodes(view.folder.journal)
    model = power_model(view, nodes)
    cpu = view.launch.device != "cuda"
    hours = hours_of(view)
    cuts = hours.cuts(view) if hours else np.empty(0)
    return _EnergyCalculation(
        view, nodes, model, ("package", "dram") if cpu else ("gpu",), cuts
    ).compute()


@dataclass
class _EnergyCalculation:
    """The steps of `energy_of`, with the values that they share."""

    view: RunView
    nodes: list[NodeEnergy]
    model: PowerModel | None
    accelerators: tuple[str, ...]  # kinds
    cuts: np.ndarray  # moments between which energy is asked for; none without hours
    devices: list[DeviceEnergy] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _done: dict[range | None, np.ndarray] = field(default_factory=dict)

    @cached_property
    def windows(self) -> list[tuple[float, float]]:
        """Start and end of each invocation."""
        return [(i.start, i.end) for i in self.view.account.invocations]

    @cached_property
    def own_and_others(self) -> tuple[list[tuple[NodeEnergy, EnergySpans]], EnergySpans]:
        return self._metered()

    @cached_property
    def metered(self) -> EnergySpans:
        """The metered spans of all accelerators."""
        own, _ = self.own_and_others
        return reduce(lambda a, b: a + b, (spans for _, spans in own), joule_spans.no_spans())

    @cached_property
    def edges(self) -> np.ndarray:
        return self._edges(self.metered)

    def compute(self) -> Energy | None:
        """Compute the energy, or None if it cannot be known."""
        (own, others), metered = self.own_and_others, self.metered
        bare = [w for w in self.windows if not _within(metered, w)]
        if self.model is None and (bare or not len(metered.known.start)):
            return None
        by_cause = self._by_cause(own)
        estimated = self._modelled(bare, self.model.chip_w) if self.model and bare else {}
        for cause, joules in estimated.items():
            by_cause[cause] += joules
        accelerator = self._amount(metered, sum(estimated.values()))
        rest, host = self._beside(accelerator, by_cause, others)
        node = accelerator + host
        self._add_notes(metered, bare)
        pue = self.model.pue if self.model else None
        return Energy(
            accelerator,
            host,
            node,
            node.scaled(pue) if pue else None,
            {cause: by_cause[cause] + rest[cause] for cause in Cause},
            by_cause,
            self._watts_now(),
            tuple(self.devices),
            tuple(self.notes),
            self._by_time(own, others, bare) if len(self.cuts) > 1 else None,
        )

    # Meters

    def _metered(self) -> tuple[list[tuple[NodeEnergy, EnergySpans]], EnergySpans]:
        """Return metered spans: of the accelerators by node, and of the CPUs beside GPUs."""
        own: list[tuple[NodeEnergy, EnergySpans]] = []
        others = joule_spans.no_spans()
        for node, device, records in self._each_device():
            closed = [line.t for line in lines_of(node.lines, MetersClosed)]
            spans = self._guessed(
                joule_spans.fill_gaps(joule_spans.spans_of_records(records), self.windows, closed)
            )
            if device.kind in self.accelerators:
                own.append((node, spans))
            else:
                others = others + spans
            self.devices.append(_device(node, device, records, spans))
        return own, others

    def _each_device(self) -> Iterable[tuple[NodeEnergy, MeteredDevice, np.ndarray]]:
        """Yield the records of each device by UUID: two writers may read the same counter."""
        by_uuid: dict[str, tuple[NodeEnergy, MeteredDevice, list[np.ndarray]]] = {}
        for node in self.nodes:
            for number, device in node.devices.items():
                records = node.records[node.records["device"] == number]
                if len(records):
                    by_uuid.setdefault(device.uuid, (node, device, []))[2].append(records)
        for node, device, parts in by_uuid.values():
            yield node, device, np.concatenate(parts)

    def _guessed(self, spans: EnergySpans) -> EnergySpans:
        """Fill the spans of a device whose meter never worked with the power model."""
        unknown = ~np.isfinite(spans.joules)
        if not unknown.any() or self.model is None:
            return spans
        seconds = self.view.account.ledger.seconds
        mean_w = sum(seconds[c] * self.model.chip_w[c] for c in Cause) / sum(seconds.values())
        joules = np.where(unknown, mean_w * spans.seconds, spans.joules)
        return EnergySpans(spans.start, spans.end, joules, spans.measured & ~unknown)

    def _amount(self, metered: EnergySpans, modelled_j: float) -> EnergyAmount:
        measured_j = metered.measured_j
        guessed_j = metered.total_j - measured_j + modelled_j
        band = self.model.band if self.model else HOST_BAND
        total_j = measured_j + guessed_j
        return EnergyAmount(
            total_j,
            "measured" if total_j > 0 and measured_j >= WHOLE * total_j else "estimated",
            METER[0] * measured_j + band.low * guessed_j,
            METER[1] * measured_j + band.high * guessed_j,
        )

    # Causes

    def _edges(self, metered: EnergySpans) -> np.ndarray:
        """Return the borders of the spans, or a part of them if there are very many."""
        edges = np.unique(np.concatenate([metered.start, metered.end]))
        most = max(100, min(2000, MOST_MOMENTS // self.view.account.ranks))
        thinned = edges[:: -(-len(edges) // most)] if len(edges) else edges
        return np.unique(np.concatenate([thinned, np.array(self.windows).ravel(), self.cuts]))

    def _ranks_did(self, ranks: range | None) -> np.ndarray:
        if ranks not in self._done:
            self._done[ranks] = self.view.rank_seconds_before(self.edges, ranks)
        return self._done[ranks]

    def _by_cause(self, own: list[tuple[NodeEnergy, EnergySpans]]) -> dict[Cause, float]:
        watts = self.model.chip_w if self.model else dict.fromkeys(Cause, 1.0)
        totals = dict.fromkeys(Cause, 0.0)
        for node, spans in own:
            for ranks, part in self._by_ranks(node, spans):
                parts = joule_spans.joules_by_cause(part, self.edges, self._ranks_did(ranks), watts)
                for cause, joules in parts.items():
                    totals[cause] += joules
        return totals

    def _by_ranks(
        self, node: NodeEnergy, spans: EnergySpans
    ) -> Iterable[tuple[range | None, EnergySpans]]:
        """Split the spans of a node by the ranks that were on it then; None is all ranks."""
        lines = self.view.supervisor_events_of(HostsAssigned) if len(self.nodes) > 1 else []
        if not lines or len(self.nodes) > PER_NODE_UP_TO:
            return [(None, spans)]
        starts = np.array([line.t for line in lines])
        place = np.searchsorted(starts, (spans.start + spans.end) / 2, side="right") - 1
        return [
            (_ranks_of(lines[i].event, node.name) if i >= 0 else None, spans.where(place == i))
            for i in np.unique(place)
        ]

    def _modelled(
        self, windows: list[tuple[float, float]], watts: Mapping[Cause, float]
    ) -> dict[Cause, float]:
        """Return the energy of the ranks in these windows by the power model."""
        done = self._ranks_did(None)
        totals = dict.fromkeys(Cause, 0.0)
        for place, cause in enumerate(Cause):
            for start, end in windows:
                seconds = np.diff(np.interp([start, end], self.edges, done[:, place]))[0]
                totals[cause] += float(seconds) * watts[cause]
        return totals

    def _by_time(
        self,
        own: list[tuple[NodeEnergy, EnergySpans]],
        others: EnergySpans,
        bare: list[tuple[float, float]],
    ) -> EnergyByTime:
        """Return the energy of the nodes between the cuts: what `by_cause` has in all."""
        cuts, model = self.cuts, self.model
        start, end = cuts[:-1], cuts[1:]
        watts = model.chip_w if model else dict.fromkeys(Cause, 1.0)
        joules = np.zeros((len(start), len(Cause)))
        for node, spans in own:
            for ranks, part in self._by_ranks(node, spans):
                known = joule_spans.cut_at(part.known, cuts)
                if len(known.start):
                    shares = joule_spans.cause_shares(
                        known, self.edges, self._ranks_did(ranks), watts
                    )
                    middle = (known.start + known.end) / 2
                    place = np.searchsorted(cuts, middle, side="right") - 1
                    place = np.clip(place, 0, len(start) - 1)
                    np.add.at(joules, place, known.joules[:, None] * shares)
        done = self._ranks_did(None)

        def seconds(low: np.ndarray, high: np.ndarray) -> np.ndarray:
            both = [
                [np.interp(t, self.edges, column) for column in done.T]
                for t in (low, np.maximum(low, high))
            ]
            return (np.array(both[1]) - np.array(both[0])).T

        level = np.array([watts[cause] for cause in Cause])
        for low, high in bare if model else []:
            joules += seconds(np.maximum(start, low), np.minimum(end, high)) * level
        if model is not None:
            rest, total_s = self._beside_w(others), sum(self.view.account.ledger.seconds.values())
            cpu_w = others.total_j * (1 + model.losses) / total_s
            beside = np.array([rest[cause] + cpu_w for cause in Cause])
            joules += seconds(start, end) * beside + joules * model.losses
        middles = (start + end) / 2
        paused = np.zeros(len(start), bool)
        for invocation in self.view.account.invocations:
            for one in invocation.pauses:
                paused |= (middles > one.start) & (middles < one.end)
        return EnergyByTime(start, end, paused, joules)

    # The rest of the machines

    def _beside_w(self, others: EnergySpans) -> Mapping[Cause, float]:
        """Return the watts of a rank's share of the machines, without CPUs that are metered."""
        assert self.model is not None
        if not others.total_j:
            return self.model.beside_w
        return {
            cause: max(0.0, watts - self.model.processors_w)
            for cause, watts in self.model.beside_w.items()
        }

    def _beside(
        self, accelerator: EnergyAmount, by_cause: Mapping[Cause, float], others: EnergySpans
    ) -> tuple[dict[Cause, float], EnergyAmount]:
        model = self.model
        seconds = self.view.account.ledger.seconds
        if model is None:
            return dict.fromkeys(Cause, 0.0), EnergyAmount(0.0, "estimated", 0.0, 0.0)
        cpu_j, total_s = others.total_j, sum(seconds.values())
        beside = self._beside_w(others)
        by_cause_j = {
            c: seconds[c] * (beside[c] + cpu_j * (1 + model.losses) / total_s)
            + by_cause[c] * model.losses
            for c in Cause
        }
        total_j = sum(by_cause_j.values())
        return by_cause_j, EnergyAmount(
            total_j, "estimated", HOST_BAND.low * total_j, HOST_BAND.high * total_j
        )

    # The power now, and notes

    def _watts_now(self) -> float | None:
        if not self.view.running:
            return None
        own = [d for d in self.devices if d.kind in self.accelerators]
        fresh = [d.watts for d in own if d.watts is not None and d.t and now() - d.t < FRESH_S]
        return sum(fresh) if fresh and len(fresh) == len(own) else None

    def _add_notes(self, metered: EnergySpans, bare: list[tuple[float, float]]) -> None:
        for node in self.nodes:
            for line in node.lines:
                self.notes += _meter_notes(node, line.event)
        own = [device for device in self.devices if device.kind in self.accelerators]
        if own and metered.total_j:
            share = metered.measured_j / metered.total_j
            names = ", ".join(sorted({device.name for device in own}))
            self.notes.append(
                f"accelerators: {format_percent(share)} metered at {len(own)} ({names})"
            )
        if own and bare:
            self.notes.append(f"{len(bare)} of {len(self.windows)} starts of the run not metered")
        self.notes += self.model.notes if self.model else ("the rest of the machines is not known",)
        if not (self.model and self.model.pue):
            self.notes.append("no PUE is known: cooling of the site is not included")
        self.notes[:] = dict.fromkeys(self.notes)


def _meter_notes(node: NodeEnergy, event: JournalEvent) -> list[str]:
    if isinstance(event, MetersOpened):
        cores, all_cores = event.cores, event.cores_of_machine
        shared = bool(node.devices) and isinstance(cores, int) and isinstance(all_cores, int)
        packages = any(device.kind == "package" for device in node.devices.values())
        texts = [str(note) for note in event.notes] if isinstance(event.notes, list) else []
        if shared and packages and cores != all_cores:
            texts.append(f"meters count whole CPUs; the run had {cores} of {all_cores} cores")
        return texts
    if isinstance(event, MeterOdd) and event.what != "reads again":
        device = node.devices.get(event.device) if isinstance(event.device, int) else None
        return [f"{device.name if device else node.name}: {event.what}; filled by power"]
    return []


def _ranks_of(assigned: HostsAssigned, node: str) -> range | None:
    for host in assigned.hosts if isinstance(assigned.hosts, list) else []:
        match host:
            case {"node": name, "ranks": [*ranks]} if name == node and ranks:
                return range(min(ranks), max(ranks) + 1)
    return None  # a spare: its energy goes to what the others did


def _within(spans: EnergySpans, window: tuple[float, float]) -> bool:
    return bool(((spans.end > window[0]) & (spans.start < window[1])).any())


def _device(
    node: NodeEnergy, device: MeteredDevice, records: np.ndarray, spans: EnergySpans
) -> DeviceEnergy:
    last = records[np.argmax(records["t"])]

    def number(name: str) -> float | None:
        return float(last[name]) if np.isfinite(last[name]) else None

    seconds = float(last["seconds"])
    mean_w = float(last["joules"]) / seconds if np.isfinite(last["joules"]) else None
    total_j = spans.total_j
    return DeviceEnergy(
        node.name,
        device.uuid,
        device.name,
        device.kind,
        total_j,
        spans.measured_j / total_j if total_j else 0.0,
        number("t"),
        number("watts") if number("watts") is not None else mean_w,
        number("limit_w"),
        number("clock_mhz"),
        number("temperature_c"),
    )
