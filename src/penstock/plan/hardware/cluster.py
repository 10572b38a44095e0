"""The `Machine` that the planner reads, from a cluster file, a catalog name or "here"."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.catalog import accelerators, cooling, sites
from penstock.catalog.prices import refuse_other_unit
from penstock.catalog.sites import Site
from penstock.errors import PenstockError
from penstock.found import expanded_path
from penstock.home import home
from penstock.meter.inventory import MachineInventory, take_inventory
from penstock.meter.precision import estimate
from penstock.plan.hardware.cap import capped
from penstock.plan.hardware.machine import (
    MOST_CARDS,
    Machine,
    MatmulPoint,
    NetworkTier,
    SiteLink,
    is_card,
    node_named,
    of_catalog,
    only,
)
from penstock.plan.hardware.scale import grows, over_sites, scaled
from penstock.run.clusters.file import PRECISIONS, ClusterFile
from penstock.run.clusters.load import load_cluster
from penstock.run.clusters.probe import BY_PRECISION, ProbeSection
from penstock.run.schema.cluster import ClusterSection
from penstock.run.schema.run import Run

PROBE = "`penstock probe` measures it"
# Fields that no probe measures: the user wrote them.
STATED = frozenset(
    {"pue", "gco2e_per_kwh", "usd_per_kwh", "usd_per_hour", "price", "water_l_per_kwh"}
    | {"node_mtbf_s", "software_mtbf_s", "repair_s", "stall_s", "spare_trays"}
    | {"power_limit_w", "rack_limit_w", "racks", "cooling", "hall", "host_w"}
    | {"site_bytes_per_s", "site_hop_s"}
)
# Fields of a machine that a site gives: its column in the catalog, and the one with the year.
OF_SITE = {
    "pue": ("pue", "pue_year"),
    "gco2e_per_kwh": ("carbon_gco2_per_kwh", "carbon_year"),
    "usd_per_kwh": ("electricity_usd_per_kwh", "electricity_year"),
    "water_l_per_kwh": ("water_l_per_kwh", "pue_year"),
}
# A core of a CPU that nobody has measured, within a factor of two or so of today's servers.
CORE_FLOPS = 60e9  # in fp32
CORE_BYTES_PER_S = 8e9
# Rate and latency of gloo between processes of one machine.
SOCKET_BYTES_PER_S, SOCKET_HOP_S = 1.5e9, 200e-6


@dataclass(frozen=True)
class ResolvedMachine:
    """The machine of a run, and warnings about how it was found."""

    machine: Machine
    warnings: tuple[str, ...] = ()


def here_file() -> Path:
    """Return the file with the probe of this machine."""
    return home() / "clusters" / "here.toml"


def machine_for(run: Run) -> ResolvedMachine:
    """Resolve `[cluster]` to a machine."""
    found = _machine_for(run)
    return replace(found, machine=over_sites(placed(found.machine, run.cluster)))


def placed(machine: Machine, own: ClusterSection) -> Machine:
    """Return the machine with the place and the price that the run file itself gives."""
    if own.site is not None:
        place = sites.find(own.site)
        changed = {field: getattr(place, column) for field, (column, _) in OF_SITE.items()}
        # All of one place: nothing is left of where a cluster file puts the machines.
        sources = {k: v for k, v in machine.sources.items() if k not in OF_SITE}
        sources |= {f: _site_source(place, f) for f, value in changed.items() if value is not None}
        machine = replace(machine, **changed, sources=sources)
    given = {"usd_per_hour": own.usd_per_hour, "gco2e_per_kwh": own.carbon}
    known: dict[str, Any] = dict(_known(given))
    if own.usd_per_hour is not None:
        refuse_other_unit(own.usd_per_hour, machine.accelerator, "cluster.usd_per_hour")
        machine = replace(machine, price=None)  # the run file's price is all that counts
    sources = {**machine.sources, **dict.fromkeys(known, "given in the run file")}
    return replace(machine, **known, sources=sources)


def _machine_for(run: Run) -> ResolvedMachine:
    use = run.cluster.use
    if use == "here":
        return _here(run)
    if use.endswith(".toml"):
        return _resized(machine_of(load_cluster(expanded_path(use))), run)
    asked = run.cluster.accelerators
    try:
        usual = _usual_per_node(use)
        card = node_named(use) is None and is_card(accelerators.find(use))
        most = MOST_CARDS if card else usual
        per_node = usual if asked == "all" else int(asked)
        if per_node > most:
            raise PenstockError(
                f"cluster.accelerators = {per_node}: a node has {most} of them; write "
                f"cluster.nodes = {-(-per_node // most)}."
            )
        machine = of_catalog(use, per_node * run.cluster.nodes, per_node)
        note = f"{machine.accelerator} is a card: one in a node; cluster.accelerators asks for more"
        return ResolvedMachine(machine, (note,) if card and asked == "all" else ())
    except PenstockError as error:
        raise PenstockError(
            f'cluster.use = "{use}": {error} Or name a node of `penstock catalog nodes`, a cluster '
            'file that ends in .toml, or "here".'
        ) from None


def _usual_per_node(name: str) -> int:
    """Return the accelerators of the node, or of the node that this accelerator is usually sold
    in.
    """
    return of_catalog(name, 10**6).per_node


def _here(run: Run) -> ResolvedMachine:
    seen = take_inventory()
    if here_file().is_file():
        file = load_cluster(here_file())
        if file.probe and file.probe.seen == seen.fingerprint:
            return _resized(machine_of(file), run)
        date = file.probe.date if file.probe else file.date
        why = f"the probe of {date} is of another machine ({file.probe.seen if file.probe else ''})"
    else:
        why = "this machine has not been probed"
    return _not_probed(seen, run, why)


def _not_probed(seen: MachineInventory, run: Run, why: str) -> ResolvedMachine:
    found = seen.devices
    ranks = found.ranks(run.cluster.accelerators)
    if found.kind == "cpu":
        warning = f"{why}: its speed is a rough estimate for any CPU; {PROBE}"
        return ResolvedMachine(_any_cpu(seen, ranks, run.cluster.nodes), (warning,))
    chip = accelerators.for_device(found.name)
    if chip is None:
        raise PenstockError(
            f'cluster.use = "here": {why}, and the catalog has no {found.name}; {PROBE}'
        )
    warning = f"{why}: used the catalog's figures for {chip.name}; {PROBE}"
    machine = of_catalog(chip.name, ranks * run.cluster.nodes, ranks)
    return ResolvedMachine(replace(machine, name="here"), (warning,))


def _any_cpu(seen: MachineInventory, ranks: int, count: int) -> Machine:
    cores, bf16 = seen.devices.count / ranks, estimate(seen.cpu)
    assert bf16.speedup
    return Machine(
        name="here",
        accelerator=seen.cpu,
        kind="cpu",
        per_node=ranks,
        nodes=count,
        memory_bytes=seen.devices.memory_bytes // ranks,
        memory_bytes_per_s=CORE_BYTES_PER_S * cores,
        peak_flops={},
        matmul_flops={"fp32": CORE_FLOPS * cores, "bf16": CORE_FLOPS * cores * bf16.speedup},
        tiers=(NetworkTier("node", ranks * count, SOCKET_BYTES_PER_S, SOCKET_HOP_S),),
        cpu_threads=float(seen.devices.count),
        sources={"": "estimated: a core of a server's CPU, within a factor of two"},
    )


def _resized(machine: Machine, run: Run) -> ResolvedMachine:
    """Return the machine with as many nodes and accelerators as the run asks for."""
    asked, section = run.cluster.accelerators, run.cluster
    per_node = machine.per_node if asked == "all" else int(asked)
    count = section.nodes if "nodes" in section.model_fields_set else machine.nodes
    warnings = []
    if machine.curves and per_node != machine.probed["ranks"] and machine.kind == "cpu":
        warnings.append(
            f"cluster.accelerators = {per_node}: the probe ran {machine.probed['ranks']:.0f} ranks "
            "together, and ranks of one CPU share it; the plan is less sure"
        )
    total = per_node * count
    tiers = machine.tiers
    if total > tiers[-1].size:
        if not machine.curves and "tiers" not in machine.sources and grows(machine):
            warnings.append(
                f"{machine.name} has {machine.accelerators} accelerators; the network to "
                f"{total} is taken from the catalog"
            )
            return ResolvedMachine(
                replace(scaled(machine, total), name=machine.name), tuple(warnings)
            )
        if not machine.curves:
            raise PenstockError(
                f"cluster: {total} accelerators, but the largest [[tier]] of {machine.name} holds "
                f"{tiers[-1].size}; add a [[tier]] with size = {total}"
            )
        warnings.append(
            f"{total} accelerators: only {tiers[-1].size} were probed together; the network beyond "
            "them is taken to be the same"
        )
        tiers = (*tiers[:-1], replace(tiers[-1], size=total))
    changed = replace(machine, per_node=per_node, nodes=count, tiers=tiers)
    return ResolvedMachine(changed, tuple(warnings))


def machine_of(file: ClusterFile) -> Machine:
    """Return the machine of a cluster file, with its blanks filled from the catalog."""
    known = _from_catalog(file)
    measured = (
        f"measured: probe of {file.probe.date}" if file.probe else f"cluster file {file.name}"
    )
    chip, given = file.accelerator, _given(file)
    if known is None:
        known, per_node = _blank(file), file.node.accelerators or 1
    else:
        per_node = known.per_node
    rates = {kind: rate for kind in PRECISIONS if (rate := getattr(chip.matmul, kind))}
    tiers = tuple(
        NetworkTier(
            # Inside a node it is one network whatever the file calls it.
            "scale-up" if t.size <= per_node else t.name,
            t.size,
            t.bandwidth / t.oversubscription,
            t.latency,
        )
        for t in file.tier
    )
    if machine_usd := given.get("usd_per_hour"):
        refuse_other_unit(machine_usd, known.accelerator, f"{file.name}: price.usd_per_hour")
    own = set(given) | ({"tiers"} if tiers else set()) | ({"matmul_flops"} if rates else set())
    total = per_node * file.nodes
    if tiers and tiers[-1].size < total:
        raise PenstockError(
            f"{file.name}: {total} accelerators, but the largest [[tier]] holds {tiers[-1].size}; "
            f"add a [[tier]] with size = {total}"
        )
    machine = replace(
        known,
        name=file.name or known.name,
        matmul_flops={**known.matmul_flops, **rates},
        tiers=tiers or known.tiers,
        site_links=tuple(
            SiteLink(one.name, one.upload, one.download, one.round_trip) for one in file.sites
        ),
        sources={
            **known.sources,
            **dict.fromkeys(own, measured),
            **dict.fromkeys(own & STATED, f"cluster file {file.name}"),
            **_site_sources(file),
        },
        **given,
    )
    machine = replace(machine, sites=file.failures.sites)
    if file.probe:
        machine = replace(machine, **_readings(file.probe))
    return capped(machine, chip.cap_w) if chip.cap_w is not None else machine


def _from_catalog(file: ClusterFile) -> Machine | None:
    """Return the catalog's machine; None where the file describes an accelerator of its own."""
    chip = file.accelerator
    name = file.node.name or chip.name or ""
    if not file.node.name and only(accelerators.TABLE, name) is None:
        if chip.memory and chip.memory_bandwidth and any(chip.matmul.model_dump().values()):
            return None
        try:
            accelerators.find(name)
        except PenstockError as error:
            what = "memory, memory_bandwidth and a rate in [accelerator.matmul]"
            raise PenstockError(
                f"{file.name}: accelerator.name: {error} For one of your own, write {what} too."
            ) from None
    per_node = file.node.accelerators or _usual_per_node(name)
    return of_catalog(name, per_node * file.nodes, per_node)


def _blank(file: ClusterFile) -> Machine:
    """Return a machine with an accelerator that the catalog does not know; the file says what
    matters.
    """
    chip, per_node = file.accelerator, file.node.accelerators or 1
    assert chip.name
    assert chip.memory
    assert chip.memory_bandwidth
    total = per_node * file.nodes
    if total > 1 and not file.tier:
        raise PenstockError(
            f"{file.name}: {total} accelerators and no network; add a [[tier]] with name, "
            f"size = {total} and bandwidth"
        )
    return Machine(
        name=file.name or chip.name,
        accelerator=chip.name,
        kind=chip.kind or "cuda",
        per_node=per_node,
        nodes=file.nodes,
        memory_bytes=chip.memory,
        memory_bytes_per_s=chip.memory_bandwidth,
        peak_flops={},
        matmul_flops={},
        tiers=(NetworkTier("scale-up", 1, float("inf"), 0.0),),
    )


def _given(file: ClusterFile) -> dict[str, Any]:
    """Return the fields of the machine that the file or its site states."""
    chip = file.accelerator
    place = _place(file)
    if file.site.cooling:
        cooling.stated(file.site.cooling)
    found: dict[str, Any] = {
        "kind": chip.kind,
        "memory_bytes": chip.memory,
        "memory_bytes_per_s": chip.memory_bandwidth,
        "tdp_w": chip.tdp_w,
        "idle_w": chip.idle_w,
        "host_w": file.node.host_w,
        "read_bytes_per_s": file.storage.read,
        "write_bytes_per_s": file.storage.write,
        "pue": _first(file.site.pue, place.pue if place else None),
        "gco2e_per_kwh": _first(file.site.carbon, place.carbon_gco2_per_kwh if place else None),
        "usd_per_kwh": _first(
            file.site.usd_per_kwh, place.electricity_usd_per_kwh if place else None
        ),
        "water_l_per_kwh": _first(file.site.water, place.water_l_per_kwh if place else None),
        "usd_per_hour": file.price.usd(file.price.usd_per_hour),
        "price": file.price if file.price.model_fields_set else None,
        "node_mtbf_s": file.failures.node_mtbf,
        "software_mtbf_s": file.failures.software_mtbf,
        "repair_s": file.failures.repair,
        "stall_s": file.failures.stall,
        "spare_trays": file.failures.spare_trays,
        "power_limit_w": file.site.power_limit_w,
        "rack_limit_w": file.site.rack_limit_w,
        "racks": file.site.racks,
        "cooling": file.site.cooling,
        "hall": file.site.cooling,
        "site_bytes_per_s": file.site.link,
        "site_hop_s": file.site.link_latency,
    }
    return {name: value for name, value in found.items() if value is not None}


def _place(file: ClusterFile) -> Site | None:
    """Return the catalog's row of the file's site."""
    if not file.site.name:
        return None
    try:
        return sites.find(file.site.name)
    except PenstockError as error:
        raise PenstockError(f"{file.name}: site.name: {error}") from None


def _site_sources(file: ClusterFile) -> dict[str, str]:
    """Return the sources of what the catalog filled in for the site."""
    if not file.site.name:
        return {}
    place, site = sites.find(file.site.name), file.site
    own = {
        "pue": site.pue,
        "gco2e_per_kwh": site.carbon,
        "usd_per_kwh": site.usd_per_kwh,
        "water_l_per_kwh": site.water,
    }
    return {
        field: _site_source(place, field)
        for field, (column, _) in OF_SITE.items()
        if own[field] is None and getattr(place, column) is not None
    }


def _site_source(place: Site, field: str) -> str:
    """Return the source of a figure of a site, with its year."""
    column, of_year = OF_SITE[field]
    year = getattr(place, of_year)
    when = f" in {year}" if year else ""
    return f"catalog: {place.name}{when}, {place.source_of(column)}"


def _first(own: float | None, other: float | None) -> float | None:
    return other if own is None else own


def _readings(probe: ProbeSection) -> dict[str, Any]:
    """Return a probe as the planner reads it: `matmuls`, `curves` and `probed`."""
    matmuls = {
        kind: tuple(
            MatmulPoint(int(m), int(k), int(n), 2 * m * k * n / seconds)
            for m, k, n, seconds in rows
        )
        for kind in ("fp32", "bf16", "fp8")
        if (rows := getattr(probe.matmul_s, kind))
    }
    curves = {"update_s": probe.update_s, "all_reduce_s": probe.all_reduce_s}
    for table in BY_PRECISION:
        for kind in ("fp32", "bf16"):
            curves[f"{table}.{kind}"] = getattr(getattr(probe, table), kind)
    for kind in ("fp32", "bf16"):
        rows = curves[f"attention_s.{kind}"]
        # For one head, so that only sequence and head width are left to interpolate.
        curves[f"attention_s.{kind}"] = tuple((s, e, t / heads) for s, e, heads, t in rows)
    probed = {
        "ranks": float(probe.ranks),
        "threads": float(probe.threads),
        "op_s": probe.op_s,
        "fresh_bytes_per_s": probe.fresh_bytes_per_s,
        "idle_w": probe.idle_w,
        "loaded_w": probe.loaded_w,
    }
    return {
        "cpu_threads": float(probe.ranks * probe.threads),
        "matmuls": matmuls,
        "curves": {name: rows for name, rows in curves.items() if rows},
        "probed": _known(probed),
    }


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
