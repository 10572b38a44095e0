"""`penstock catalog`: the facts that plans are made from, each with its source."""

from dataclasses import dataclass, fields
from typing import Annotated

import typer
from rich.table import Table as Grid
from rich.text import Text

from penstock.catalog import (
    accelerators,
    cooling,
    costs,
    facilities,
    failures,
    models,
    networks,
    nodes,
    open_weights,
    power,
    prices,
    rounds,
    scaling_laws,
    sites,
    trainings,
)
from penstock.catalog.fact import Fact
from penstock.catalog.models import ModelPreset
from penstock.catalog.open.generic import EXTRA, known_architectures
from penstock.catalog.open.models import FAMILIES
from penstock.catalog.table import Table
from penstock.cli.show import Json, out, print_json
from penstock.errors import PenstockError, nearest

NATIVE_HAS = (
    "every layout (tensor, pipeline, context and expert parallel too), fp8, kernels of our own, "
    "plans of the exact shape, weights checked before a process starts"
)
GENERIC_HAS = (
    "replicate × shard, compile, recompute, all weights, LoRA and QLoRA, packed documents where "
    "attention takes a mask, export; a plan with an estimated shape and counted parameters"
)
Value = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True)
class Kind:
    """One catalog table: what it is about, and the columns of its list (heading → field)."""

    table: Table
    about: str
    columns: dict[str, str]


KINDS = {
    "accelerators": Kind(
        accelerators.TABLE,
        "peak rates, memory, links and power",
        {
            "name": "name",
            "bf16 TFLOP/s": "bf16_tflops",
            "fp8": "fp8_tflops",
            "GiB": "memory_gib",
            "mem GB/s": "memory_gb_per_s",
            "link GB/s": "link_gb_per_s",
            "domain": "domain",
            "TDP W": "tdp_w",
        },
    ),
    "nodes": Kind(
        nodes.TABLE,
        "systems and cloud instances",
        {
            "name": "name",
            "accelerator": "accelerator",
            "count": "accelerators",
            "Gbit/s out": "scaleout_gbit_per_s",
            "host GiB": "host_memory_gib",
            "rated W": "rated_w",
        },
    ),
    "networks": Kind(
        networks.TABLE,
        "links: line rate, latency, measured all-reduce",
        {
            "name": "name",
            "scope": "scope",
            "GB/s": "gb_per_s",
            "per": "per",
            "latency µs": "latency_us",
            "all-reduce": "allreduce_gb_per_s",
        },
    ),
    "sites": Kind(
        sites.TABLE,
        "carbon, electricity price, PUE and water by place",
        {
            "name": "name",
            "place": "place",
            "kind": "kind",
            "gCO2e/kWh": "carbon_gco2_per_kwh",
            "PUE": "pue",
            "USD/kWh": "electricity_usd_per_kwh",
        },
    ),
    "prices": Kind(
        prices.TABLE,
        "USD per accelerator-hour by term, with date",
        {
            "accelerator": "accelerator",
            "term": "term",
            "low": "usd_per_hour_low",
            "USD/h": "usd_per_hour",
            "high": "usd_per_hour_high",
            "providers": "providers",
            "as of": "as_of",
        },
    ),
    "costs": Kind(
        costs.TABLE,
        "what owning costs beside the purchase: capital, upkeep, people",
        {
            "name": "name",
            "low": "low",
            "usual": "value",
            "high": "high",
            "unit": "unit",
            "as of": "as_of",
        },
    ),
    "rounds": Kind(
        rounds.TABLE,
        "what local steps and codecs cost in loss, measured",
        {
            "name": "name",
            "replicas": "replicas",
            "steps": "local_steps",
            "codec": "codec",
            "late": "late",
            "loss %": "loss_percent",
            "± %": "spread_percent",
            "seeds": "seeds",
        },
    ),
    "power": Kind(
        power.TABLE,
        "what metered nodes drew while they trained",
        {
            "name": "name",
            "accelerator": "accelerator",
            "count": "accelerators",
            "nodes": "nodes",
            "cooling": "cooling",
            "W a node": "node_w",
            "busy": "busy",
        },
    ),
    "draws": Kind(
        power.DRAWS,
        "what one accelerator drew under known loads, measured",
        {
            "name": "name",
            "load": "load",
            "W": "watts",
            "limit W": "limit_w",
            "MHz": "clock_mhz",
            "°C": "temperature_c",
            "rate": "rate",
            "unit": "rate_unit",
        },
    ),
    "caps": Kind(
        power.CAPS,
        "speed and power of one accelerator under power limits, measured",
        {
            "name": "name",
            "load": "load",
            "limit W": "limit_w",
            "W": "watts",
            "MHz": "clock_mhz",
            "speed": "speed",
        },
    ),
    "cooling": Kind(
        cooling.TABLE,
        "heat of a rack that a hall takes away, and its PUE",
        {
            "name": "name",
            "machines": "node_cooling",
            "W a rack, low": "rack_w_low",
            "usual": "rack_w",
            "high": "rack_w_high",
            "PUE": "pue",
        },
    ),
    "facilities": Kind(
        facilities.TABLE,
        "lead times, building costs, colocation, water, embodied carbon",
        {
            "name": "name",
            "topic": "topic",
            "low": "low",
            "typical": "typical",
            "high": "high",
            "unit": "unit",
            "year": "year",
        },
    ),
    "failures": Kind(
        failures.TABLE,
        "what breaks, how often, and how much it costs",
        {
            "name": "name",
            "measure": "measure",
            "value": "value",
            "devices": "accelerators",
        },
    ),
    "models": Kind(
        models.TABLE,
        "model presets for `model.preset`",
        {
            "name": "name",
            "title": "title",
            "parameters": "params",
            "active": "active_params",
            "layers": "layers",
        },
    ),
    "trainings": Kind(
        trainings.TABLE,
        "how published models were trained, for `penstock backtest`",
        {
            "name": "name",
            "program": "framework",
            "accelerators": "num_gpus",
            "sequence": "seq_len",
            "sequences a step": "global_batch_seqs",
        },
    ),
    "laws": Kind(
        scaling_laws.TABLE,
        "published scaling laws, for `penstock plan --within`",
        {
            "name": "name",
            "kind": "kind",
            "floor": "floor",
            "tokens to the": "tokens_exponent",
        },
    ),
    "weights": Kind(
        open_weights.TABLE,
        "open models to adapt, and how long they were trained",
        {
            "name": "name",
            "preset": "preset",
            "tokens": "tokens",
            "licence": "licence",
        },
    ),
}

# By the end of a field's name, longest first.
UNITS = {
    "gco2_per_kwh": "gCO2e/kWh",
    "usd_per_kwh": "USD/kWh",
    "usd_per_hour": "USD/h",
    "gbit_per_s": "Gbit/s",
    "l_per_kwh": "L/kWh",
    "gb_per_s": "GB/s",
    "_tflops": "TFLOP/s",
    "context": "tokens",
    "_gib": "GiB",
    "_usd": "USD",
    "_tb": "TB",
    "_us": "µs",
    "_w": "W",
}


def catalog(
    kind: Annotated[str | None, typer.Argument(help=f"One of {', '.join(KINDS)}.")] = None,
    name: Annotated[
        str | None, typer.Argument(help="One record; case and dashes are free.")
    ] = None,
    json: Json = False,
) -> None:
    """Facts with sources: accelerators, nodes, networks, sites, prices, power, failures, models."""
    if kind is None:
        _show_kinds(json)
        return
    if kind not in KINDS:
        parts = [f"no catalog of '{kind}'.", nearest(kind, KINDS), f"There are {', '.join(KINDS)}."]
        raise PenstockError(" ".join(filter(None, parts)))
    table = KINDS[kind].table
    records = list(table) if name is None else table.matches(name) or [table.find(name)]
    if json:
        told: dict[str, object] = {"kind": kind, "records": [_plain(one) for one in records]}
        if kind == "models" and name is None:
            others = known_architectures()
            through = None if others is None else sorted(others - FAMILIES.keys())
            told |= {"native": list(FAMILIES), "through_transformers": through}
        print_json(told)
    elif name is None:
        _show_list(KINDS[kind], records)
        if kind == "models":
            _show_architectures()
    else:
        for i, record in enumerate(records):
            _show_record(record, blank_before=i > 0)


def _show_kinds(json: bool) -> None:
    rows = [{"kind": k, "records": len(v.table), "about": v.about} for k, v in KINDS.items()]
    if json:
        print_json({"kinds": rows})
        return
    grid = Grid.grid(padding=(0, 2))
    for row in rows:
        grid.add_row(
            str(row["kind"]), Text(str(row["records"]), justify="right"), str(row["about"])
        )
    out.print(grid)
    out.print("\n`penstock catalog KIND` lists one, `penstock catalog KIND NAME` shows a record.")


def _show_list(kind: Kind, records: list[Fact]) -> None:
    rows = [_values(record) for record in records]
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for heading, field in kind.columns.items():
        numeric = any(isinstance(row.get(field), int | float) for row in rows)
        whole = field == "name"  # a name cut over two lines cannot be copied
        grid.add_column(
            heading, justify="right" if numeric else "left", no_wrap=whole, overflow="fold"
        )
    for row in rows:
        grid.add_row(*(Text(_text(field, row.get(field))) for field in kind.columns.values()))
    out.print(grid)


def _show_architectures() -> None:
    """Say which architectures `model.from` takes, and what a native one has more."""
    others = known_architectures()
    if others is None:
        through = f"any causal language model of transformers, once it is installed: {EXTRA}"
    else:
        through = f"{len(others - FAMILIES.keys())} more of the installed transformers"
    grid = Grid.grid(padding=(0, 2))
    grid.add_row(Text("model.from", style="bold"), "")
    grid.add_row("native", Text(", ".join(FAMILIES)))
    grid.add_row("", Text(NATIVE_HAS))
    grid.add_row("through transformers", Text(through))
    grid.add_row("", Text(GENERIC_HAS))
    out.print()
    out.print(grid)


def _show_record(record: Fact, blank_before: bool) -> None:
    if blank_before:
        out.print()
    model = isinstance(record, ModelPreset)
    grid = Grid.grid(padding=(0, 2))
    for field, value in _values(record).items():
        # A shape's zeros are parts that this model does not have.
        if field != "source" and value not in ("", ()) and not (model and not value):
            mark = "" if model else _mark(record, field, value)
            words = (_text(field, value), _unit(field, value), mark)
            grid.add_row(Text(field), Text(" ".join(filter(None, words))))
    fields_by_source: dict[str, list[str]] = {}
    for field, source in record.sources().items():
        fields_by_source.setdefault(source, []).append(field)
    for source, owners in fields_by_source.items():
        of = "" if "" in owners else f"{', '.join(owners)}: "
        grid.add_row("" if of else "source", Text(of + source))
    out.print(grid)


def _mark(record: Fact, field: str, value: Value) -> str:
    """Return the word behind numbers that nobody published."""
    basis = record.basis_of(field)
    return f"({basis})" if isinstance(value, int | float) and basis != "published" else ""


def _plain(record: Fact) -> dict[str, object]:
    """Return a record for programs; `sources` holds the fields that have a source of their own."""
    sources = record.sources()
    own = {field: source for field, source in sources.items() if field}
    return _values(record) | {"source": sources.get("", ""), "sources": own}


def _values(record: Fact) -> dict[str, Value]:
    """Return field by field, name first. A model shows its shape as built and its counts."""
    names = [f.name for f in fields(record)]
    names.sort(key=lambda n: (n != "name", n in ("note", "source")))
    if not isinstance(record, ModelPreset):
        return {n: getattr(record, n) for n in names}
    shape, active = record.shape, record.published_active
    parts = {f.name: getattr(shape, f.name) for f in fields(shape)} | {"head_dim": shape.head_width}
    return {
        "name": record.name,
        "title": record.title,
        "aliases": record.aliases,
        "params": shape.params(),
        "active_params": shape.params(active=True) if shape.moe else None,
        "published_params": record.published.params,
        "published_active_params": active.params if active else None,
        **parts,
        "note": record.note,
        "source": record.source,
    }


def _unit(field: str, value: Value) -> str:
    if not isinstance(value, int | float):
        return ""
    stem = field.removesuffix("_low").removesuffix("_high")
    return next((unit for end, unit in UNITS.items() if stem.endswith(end)), "")


def _text(field: str, value: Value) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case tuple():
            return ", ".join(value)
        case float() if "usd_per_hour" in field:
            return f"{value:.2f}"
        case int() | float():
            return f"{value:,.12g}" if abs(value) >= 10_000 else f"{value:.12g}"
        case _:
            return value
