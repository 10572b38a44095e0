"""The power of a run's machines where there is no meter: the planner's power model, for a run.

A CPU without a meter counts as a share of a server by its hardware threads.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.catalog import accelerators
from penstock.errors import PenstockError
from penstock.found import expanded_path
from penstock.ledger.causes import Cause
from penstock.ledger.journal.energy import NodeEnergy
from penstock.ledger.journal.events import MetersOpened
from penstock.ledger.journal.read import lines_of
from penstock.ledger.journal.values import whole
from penstock.meter.inventory import take_inventory
from penstock.plan.hardware.cluster import here_file, machine_for
from penstock.plan.hardware.machine import Machine, of_catalog
from penstock.plan.job.outcome import Band
from penstock.plan.power import power
from penstock.plan.power.host import host_power
from penstock.plan.power.server import SERVER_BAND, server_w, server_words
from penstock.watch.facts.rates import rates_of
from penstock.watch.facts.run_view import RunView

# Share of CPUs and memory in the power of a server: 61 and 18 % at the peak of Google's servers
# (estimated, recalled from The Datacenter as a Computer, third edition), less at part load.
CPU_SHARE = 0.75
HOST_BAND = Band(0.7, 1.3)


@dataclass(frozen=True)
class PowerModel:
    """Watts of each rank by cause."""

    chip_w: Mapping[Cause, float]
    beside_w: Mapping[Cause, float]  # the rank's share of the rest of the machines
    band: Band  # of `chip_w`
    processors_w: float = 0.0  # the part of `beside_w` that a meter of the CPUs replaces
    losses: float = 0.0  # in the power supplies, per joule of the accelerators (and CPUs)
    pue: float | None = None
    notes: tuple[str, ...] = ()


def power_model(view: RunView, nodes: list[NodeEnergy]) -> PowerModel | None:
    """Return the power model of a run; None if neither TDP nor limit of the device is known."""
    cpu, machine = view.launch.device != "cuda", machine_of_run(view)
    model: PowerModel | None
    if cpu and (machine is None or machine.tdp_w is None):
        model = _cpu(view, nodes)
    else:
        model = _accelerators(machine or _by_limit(nodes), _planned_parts(view))
    pue = rates_of(view).pue  # the one that costs go by
    if model is None or pue is None:
        return model
    return replace(model, pue=pue.value, notes=(*model.notes, f"PUE {pue.value:g} ({pue.source})"))


def _by_limit(nodes: list[NodeEnergy]) -> Machine | None:
    """Describe devices that are not in the catalog by the power limit that they report."""
    limits = [float(watts) for node in nodes for watts in node.records["limit_w"][-1:]]
    known = [watts for watts in limits if 0 < watts < 1e5]
    if not known:
        return None
    gpus = [sum(d.kind == "gpu" for d in node.devices.values()) for node in nodes]
    return Machine(
        name="metered",
        accelerator="",
        kind="cuda",
        per_node=max(1, *gpus),
        nodes=len(nodes),
        memory_bytes=0,
        memory_bytes_per_s=0.0,
        peak_flops={},
        matmul_flops={},
        tiers=(),
        tdp_w=sum(known) / len(known),
    )


def _planned_parts(view: RunView) -> Mapping[str, float]:
    """Return the seconds of a step by part, as planned: they say what computing draws."""
    parts = view.launch.predicted.get("step")
    found = parts if isinstance(parts, dict) else {}
    return {str(name): float(s) for name, s in found.items() if isinstance(s, int | float)}


def _accelerators(machine: Machine | None, parts: Mapping[str, float]) -> PowerModel | None:
    """Return the plan's power model for what is not metered: one function, so one number."""
    if machine is None or machine.tdp_w is None:
        return None
    chip = power.chip_power(machine, machine.tdp_w)
    chip_w = power.by_cause(chip, power.computing(machine, parts).share)
    count, network_w = machine.per_node, power.network_watts(machine)
    note = (
        f"accelerators, where not metered: {chip.rest_w:.0f} W at rest, "
        f"{chip_w[Cause.COMPUTE]:.0f} W at work"
    )
    if machine.host_w is not None:
        beside = dict.fromkeys(Cause, machine.host_w / count + network_w)
        words = f"the rest of a node: {machine.host_w:g} W (given)"
        return PowerModel(chip_w, beside, power.BAND, notes=(note, words))
    cooling = power.cooling_class(machine.cooling) or "air"
    host = host_power(machine.fact)
    whole = power.node(chip, count, cooling, host=host)
    at_plug = [
        (node_w - count * chip_w / power.SUPPLIES) / count + network_w
        for node_w, chip_w in (
            (whole.rest_w, chip.rest_w),
            (whole.wait_w, chip.wait_w),
            (whole.busy_w, chip.busy_w),
        )
    ]
    words = (
        f"the rest of a node of {count}: about {count * at_plug[2]:.0f} W at work, {cooling}, and "
        f"{1 - power.SUPPLIES:.0%} lost in supplies (estimated)"
    )
    return PowerModel(
        chip_w,
        power.by_cause(power.PowerLevels(*at_plug)),
        power.BAND,
        host.processors_w(count) / power.SUPPLIES / count,
        1 / power.SUPPLIES - 1,
        notes=(note, words),
    )


def _cpu(view: RunView, nodes: list[NodeEnergy]) -> PowerModel:
    cores, ranks = _cores(view, nodes), max(1, view.account.ranks)
    hosts = max(1, len(view.launch.hosts))
    server = server_w(cores * hosts / ranks)
    note = f"where not metered: {server_words(cores)}; CPUs and memory are {CPU_SHARE:.0%} of it"
    rest_of_it = 1 / CPU_SHARE - 1
    return PowerModel(
        chip_w={cause: CPU_SHARE * watts for cause, watts in server.items()},
        beside_w=dict.fromkeys(Cause, 0.0),
        band=SERVER_BAND,
        losses=rest_of_it,
        notes=(note,),
    )


def _cores(view: RunView, nodes: list[NodeEnergy]) -> int:
    """Return the cores of a host; older runs have them only in the text of the machine."""
    opened = [line.event for node in nodes for line in lines_of(node.lines, MetersOpened)]
    reported = [whole(event.cores) for event in opened]
    words = str(view.launch.machine)
    match = re.search(r"(\d+) CPU core", words)
    known = [cores for cores in reported if cores]
    return known[-1] if known else int(match[1]) if match else max(1, view.account.ranks)


_machines: dict[tuple[object, ...], Machine | None] = {}


def machine_of_run(view: RunView) -> Machine | None:
    """Return the machine of `[cluster]`; cached, because pages ask every second."""
    cluster, device = view.run.cluster, view.launch.device_name
    file = here_file() if cluster.use == "here" else expanded_path(cluster.use)
    changed = file.stat().st_mtime if file.is_file() else 0.0
    ranks = view.launch.ranks
    key = (str(file), cluster.accelerators, cluster.nodes, device, ranks, changed)
    if key not in _machines:
        _machines[key] = _find_machine(view, device)
    return _machines[key]


def _find_machine(view: RunView, device: str) -> Machine | None:
    """Find the machine of a run; one that ran on another machine is known by its device."""
    try:
        if view.run.cluster.use != "here" or take_inventory().devices.name == device:
            return machine_for(view.run).machine
    except PenstockError:  # a cluster file that is gone, a device that nobody has measured
        pass
    chip = accelerators.for_device(device)
    return of_catalog(chip.name, view.launch.ranks or 1) if chip else None
