"""`Machine`: the hardware as the planner sees it, from the catalog, a cluster file or a probe.

All rates are what one accelerator sustains, not what a data sheet prints; `sources` says for each
where it came from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TypeVar

from penstock.catalog import accelerators, networks, nodes
from penstock.catalog.accelerators import Accelerator
from penstock.catalog.fact import Fact
from penstock.catalog.table import Table, fold
from penstock.errors import PenstockError
from penstock.run.clusters.price import PriceSection

F = TypeVar("F", bound=Fact)

# Share of the line rate that collectives reach across nodes, large messages: EFA v4 36.95 of 50
# GB/s per accelerator (catalog, "EFA v4"), RoCE about 0.8.
SCALE_OUT_SHARE = 0.74
# The same of a scale-up link without a published collective: the mean of NVLink 3, 4 and 5.
SCALE_UP_SHARE = 0.79
# Scale-out Gbit/s per accelerator of the systems of each generation, for a machine that names an
# accelerator and no node. Catalog: DGX A100 200, DGX H100 400, DGX B300 800.
DEFAULT_SCALE_OUT_GBIT = 400.0
INSIDE = ("scale-up", "node")  # tiers that do not leave the node or the rack-scale domain
WAN = "wan"  # the tier between sites
BRIDGED = 2  # cards that a bridge may join
MOST_CARDS = 8  # in one host
MOST_IN_A_NODE = 16
# One hop: NCCL's own constants for the Simple protocol, which large messages use (catalog).
SCALE_UP_HOP_S = 3.4e-6
SCALE_OUT_HOP_S = 14e-6


@dataclass(frozen=True)
class NetworkTier:
    """One level of the network. `size` accelerators reach each other at this rate or better."""

    name: str  # "scale-up", "node", "rack", "spine", "wan"
    size: int  # accelerators
    bytes_per_s: float  # per accelerator and direction, what large collectives get
    hop_s: float  # latency of one hop


@dataclass(frozen=True)
class SiteLink:
    """The link of a site to the bucket in which sites meet. All its ranks share it."""

    name: str
    upload_bytes_per_s: float
    download_bytes_per_s: float
    round_trip_s: float  # of a request


@dataclass(frozen=True)
class MatmulPoint:
    """One measured point: an m × k by k × n product."""

    m: int
    k: int
    n: int
    flops: float  # FLOP/s


@dataclass(frozen=True)
class Machine:
    """`nodes` equal nodes of `per_node` accelerators."""

    name: str
    accelerator: str  # a catalog name, or what the probe calls it
    kind: str  # "cuda", "cpu", or the vendor's own
    per_node: int
    nodes: int
    memory_bytes: int  # usable, of one accelerator
    memory_bytes_per_s: float
    peak_flops: Mapping[str, float]  # published, dense, by precision: MFU is measured against this
    matmul_flops: Mapping[str, float]  # best sustained matmul, by precision
    tiers: tuple[
        NetworkTier, ...
    ]  # from the smallest to the largest; the last holds every accelerator
    matmuls: Mapping[str, tuple[MatmulPoint, ...]] = field(
        default_factory=dict
    )  # probed, by precision
    probed: Mapping[str, float] = field(default_factory=dict)  # other probed readings, by name
    # Probed seconds by size, by name: sizes, then seconds. `plan/step/probed.py` reads them.
    curves: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)
    site_links: tuple[SiteLink, ...] = ()  # those that meet in a bucket, where a file names them
    tdp_w: float | None = None
    idle_w: float | None = None
    cap_w: float | None = None  # the power limit that is set on each accelerator
    capped: float = 1.0  # speed of matmuls under it
    cpu_threads: float | None = None  # of a node whose ranks compute on its CPUs
    host_w: float | None = None  # the node without its accelerators, while training
    read_bytes_per_s: float | None = None  # storage, per node
    write_bytes_per_s: float | None = None
    pue: float | None = None
    gco2e_per_kwh: float | None = None
    water_l_per_kwh: float | None = None  # of the machines
    usd_per_kwh: float | None = None
    usd_per_hour: float | None = None  # of one accelerator, as somebody stated it
    price: PriceSection | None = None  # of a cluster file: how the machines are paid for
    node_mtbf_s: float | None = None
    software_mtbf_s: float | None = None  # of a run, whatever its size
    repair_s: float | None = None  # until a lost node is back
    spare_trays: int = 0  # compute trays of each rack-scale node that stand by
    stall_s: float | None = None  # measured, from a failure until steps go on
    start_factor: float = 1.0  # starts of earlier runs on it, over the model's
    evaluate_factor: float = 1.0
    rated_w: float | None = None  # of the supplies of a node
    cooling: str = "air"  # of the nodes, as they stand
    built_for: str = ""  # the cooling that a node is sold with
    power_limit_w: float | None = None  # of the site
    rack_limit_w: float | None = None  # of one rack, by its feed
    racks: int | None = None  # places for racks
    sites: int = 1  # equal ones that the nodes stand in
    site_bytes_per_s: float | None = None  # from one site to the others
    site_hop_s: float = 5e-3
    hall: str = ""  # the cooling of the hall, in the words of its owner; "" where nobody said
    sources: Mapping[str, str] = field(default_factory=dict)  # by field; "" holds for the rest

    @property
    def accelerators(self) -> int:
        return self.nodes * self.per_node

    @cached_property
    def fact(self) -> Accelerator | None:
        """Return the catalog's row, when it has one."""
        return only(accelerators.TABLE, self.accelerator)

    def tier(self, ways: int, stride: int = 1) -> NetworkTier:
        """Return the level that a group of `ways` ranks, `stride` apart, has to cross."""
        span = ways * stride
        for tier in self.tiers:
            if span <= tier.size:
                return tier
        return self.tiers[-1]


def only(table: Table[F], name: str) -> F | None:
    """Return the one row that answers to `name`, if there is exactly one."""
    found = table.matches(name)
    return found[0] if len(found) == 1 else None


def of_catalog(
    name: str,
    count: int,
    per_node: int | None = None,
    scale_out_gbit: float | None = None,
) -> Machine:
    """Return `count` accelerators by the name of an accelerator or a node; blanks are the
    catalog's.
    """
    node = node_named(name)
    chip = accelerators.find(node.accelerator if node else name)
    if count < 1:
        raise PenstockError(f"{name}: {count} accelerators; a machine has at least one")
    if node is None and not is_card(chip):
        node = _usual_node(chip.name)
    if per_node is None:
        alone = 1 if is_card(chip) else max(1, min(chip.domain, 8))
        per_node = min(count, node.accelerators if node else alone)
    if scale_out_gbit is None:
        total = node.scaleout_gbit_per_s if node else None
        scale_out_gbit = total / node.accelerators if node and total else DEFAULT_SCALE_OUT_GBIT
    peaks = {
        kind: peak
        for kind in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
        if (peak := chip.peak_flops(kind))
    }
    return Machine(
        name=f"{count} × {chip.name}",
        accelerator=chip.name,
        kind="cpu" if chip.link == "none" else "cuda",
        per_node=per_node,
        nodes=-(-count // per_node),
        memory_bytes=chip.memory_bytes,
        memory_bytes_per_s=chip.memory_gb_per_s * 1e9,
        peak_flops=peaks,
        matmul_flops=_sustained(chip, peaks),
        tiers=_tiers(chip, per_node, count, scale_out_gbit),
        tdp_w=chip.tdp_w,
        rated_w=node.rated_w if node and node.accelerators == per_node else None,
        cooling=node.cooling if node and node.cooling else "air",
        built_for=node.cooling if node else "",
        sources={"": f"catalog: {chip.source_of('bf16_tflops')}"},
    )


def node_named(name: str) -> nodes.Node | None:
    """Find the node of this name. "RTX 4090" is the card, not the box of 6x RTX 4090."""
    node = only(nodes.TABLE, name)
    if node is None or fold(name) in map(fold, node.known_as()):
        return node
    return node if only(accelerators.TABLE, name) is None else None


def is_card(chip: Accelerator) -> bool:
    """Tell whether the accelerator is sold as a card, so that any host may have any number of them.

    Boards and racks have more than a bridge between two; of those the catalog knows the usual node.
    """
    return chip.domain <= BRIDGED


def _sustained(chip: Accelerator, peaks: Mapping[str, float]) -> dict[str, float]:
    """Return the best matmul by precision: the published bf16 one, and its share of the peak for
    the rest.
    """
    share = _matmul_share(chip)
    return {kind: peak * share for kind, peak in peaks.items()}


def _matmul_share(chip: Accelerator) -> float:
    if chip.matmul_bf16_tflops and chip.bf16_tflops:
        return chip.matmul_bf16_tflops / chip.bf16_tflops
    return _usual_matmul_share(chip.vendor, chip.year)


@cache
def _usual_matmul_share(vendor: str, year: int) -> float:
    """Return the mean share over the vendor's measured parts of the time, for a part that nobody
    measured.
    """
    rows = [
        (a, a.matmul_bf16_tflops / a.bf16_tflops)
        for a in accelerators.TABLE
        if a.matmul_bf16_tflops and a.bf16_tflops
    ]
    own = [share for a, share in rows if a.vendor == vendor and abs(a.year - year) <= 1]
    shares = own or [share for a, share in rows if a.vendor == vendor] or [s for _, s in rows]
    return sum(shares) / len(shares)


@cache
def _usual_node(chip: str) -> nodes.Node | None:
    """Return a system that is sold with this accelerator, for its network."""
    rows = [n for n in nodes.TABLE if accelerators.find(n.accelerator).name == chip]
    owned = [n for n in rows if n.setting != "cloud"]
    return next(iter(owned or rows), None)


def _tiers(
    chip: Accelerator, per_node: int, count: int, scale_out_gbit: float
) -> tuple[NetworkTier, ...]:
    if count == 1:
        return (NetworkTier("scale-up", 1, float("inf"), 0.0),)
    up, hop_s = _scale_up(chip)
    # A rack-scale domain spans nodes; any other ends with its node.
    domain = chip.domain if chip.domain > MOST_IN_A_NODE else max(1, min(chip.domain, per_node))
    tiers = []
    if domain > 1:
        tiers.append(NetworkTier("scale-up", min(domain, count), up, hop_s))
    elif per_node > 1:
        tiers.append(NetworkTier("node", min(per_node, count), up, hop_s))
    if count > tiers[-1].size if tiers else True:
        out = scale_out_gbit / 8 * 1e9 * SCALE_OUT_SHARE
        tiers.append(NetworkTier("scale-out", count, out, SCALE_OUT_HOP_S))
    return tuple(tiers)


def _scale_up(chip: Accelerator) -> tuple[float, float]:
    """Return the bytes per second of large collectives inside the domain, and the latency of a
    hop.
    """
    network = only(networks.TABLE, chip.link) or only(networks.TABLE, f"{chip.link} {chip.name}")
    if network and network.allreduce_gb_per_s and network.gb_per_s:
        reached = min(network.allreduce_gb_per_s, network.gb_per_s * 0.82)
        return reached * 1e9, SCALE_UP_HOP_S
    wire = chip.link_gb_per_s or 31.0
    return wire * 1e9 * SCALE_UP_SHARE, SCALE_UP_HOP_S
