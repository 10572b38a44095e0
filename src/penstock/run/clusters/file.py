"""The cluster file: accelerators, nodes, network, storage, site, price, failures, and a probe.

Written by hand or by `penstock probe`. Fields that are left out come from the catalog, so that
the name of an accelerator and the number of nodes are enough.
"""

from typing import Self

from pydantic import Field, model_validator

from penstock.run.clusters.price import PriceSection
from penstock.run.clusters.probe import ProbeSection
from penstock.run.schema.engines import (
    KubernetesSection,
    Launcher,
    SkySection,
    SlurmSection,
    SshSection,
)
from penstock.run.schema.machine_fields import (
    AtLeastOne,
    Flops,
    Kind,
    Latency,
    Rate,
    Size,
    UsdPerKwh,
    Watts,
)
from penstock.run.schema.section import (
    CountOrZero,
    InvalidFields,
    NotNegative,
    PositiveCount,
    Seconds,
    Section,
    Share,
    Text,
)

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")


class MatmulSection(Section):
    """Best sustained rate of large matrix products, of one accelerator, dense."""

    fp32: Flops | None = Field(None, description='Such as "60 TFLOP/s"; a plain number is FLOP/s.')
    tf32: Flops | None = Field(None, description="On tensor cores.")
    fp16: Flops | None = Field(None, description="On tensor cores.")
    bf16: Flops | None = Field(None, description='Such as "790 TFLOP/s".')
    fp8: Flops | None = Field(None, description='Such as "1400 TFLOP/s".')
    fp4: Flops | None = Field(None, description="On tensor cores.")


class AcceleratorSection(Section):
    """One accelerator. A name that the catalog knows gives everything that is left out."""

    name: Text | None = Field(None, description="As in `penstock catalog accelerators`, or yours.")
    kind: Kind | None = Field(None, description="What torch runs on.")
    memory: Size | None = Field(None, description="Usable by one rank.")
    memory_bandwidth: Rate | None = Field(None, description="Of its own memory.")
    tdp_w: Watts | None = Field(None, description="The most it draws, in watts.")
    idle_w: Watts | None = Field(None, description="What it draws at rest, in watts.")
    cap_w: Watts | None = Field(
        None, description="Power limit that is set on it (`nvidia-smi -pl`), in watts."
    )
    matmul: MatmulSection = Field(MatmulSection(), description="Rates by precision.")


class NodeSection(Section):
    """One machine."""

    name: Text | None = Field(None, description="As in `penstock catalog nodes`.")
    accelerators: PositiveCount | None = Field(None, description="Accelerators in it.")
    host_w: Watts | None = Field(None, description="Power of the rest of it, training, in watts.")


class TierSection(Section):
    """A level of the network, from the smallest to the largest."""

    name: Text = Field(description='Such as "node", "rack", "spine" or "wan".')
    size: PositiveCount = Field(description="Accelerators that reach each other at this level.")
    bandwidth: Rate = Field(description="Per accelerator and direction, what collectives get.")
    latency: Latency = Field(5e-6, description="Of one hop; a plain number is seconds.")
    oversubscription: AtLeastOne = Field(1.0, description="Divides the bandwidth when all talk.")


class StorageSection(Section):
    """Storage of checkpoints and data; rates per node."""

    read: Rate | None = Field(None, description='Such as "2 GB/s".')
    write: Rate | None = Field(None, description='Such as "1 GB/s".')


class SiteSection(Section):
    """The site of the machines."""

    name: Text | None = Field(None, description="As in `penstock catalog sites`.")
    pue: AtLeastOne | None = Field(None, description="Power of the site over that of the machines.")
    carbon: NotNegative | None = Field(None, description="gCO2e per kWh.")
    water: NotNegative | None = Field(None, description="Litres per kWh of the machines.")
    usd_per_kwh: UsdPerKwh | None = Field(None, description="Price of electricity, 0.08.")
    power_limit_w: Watts | None = Field(None, description='Of one site: 2000000 or "2 MW".')
    rack_limit_w: Watts | None = Field(None, description='Of one rack: 40000 or "40 kW".')
    racks: PositiveCount | None = Field(None, description="Places for racks.")
    link: Rate | None = Field(
        None,
        description='From this site to the others of `failures.sites`, all of it: "10 Tbit/s".',
    )
    link_latency: Latency | None = Field(
        None, description="One way; 5 ms, some 1,000 km of fibre, if left out."
    )
    cooling: Text | None = Field(
        None,
        description='"air", "legacy air", "rear-door", "direct liquid" or "immersion": what takes '
        "the heat of a rack away (`penstock catalog cooling`).",
    )


class MeetingSiteSection(Section):
    """A site of several that meet in a bucket (`[sites]` of the run file), and its link to it."""

    name: Text = Field(description="As `sites.name` in the run file of that site.")
    nodes: PositiveCount = Field(1, description="Number of its nodes.")
    upload: Rate = Field(description='From the site to the bucket, such as "20 Mbit/s".')
    download: Rate = Field(description="From the bucket to the site.")
    round_trip: Latency = Field(
        0.05, description='Of a request to the bucket, such as "60 ms"; a plain number is seconds.'
    )


class FailuresSection(Section):
    """Failures of the machines. `penstock simulate` draws the rest from published fleets."""

    node_mtbf: Seconds | None = Field(
        None, description="Mean time between failures of one node that end a run."
    )
    software_mtbf: Seconds | None = Field(
        None, description="Mean time between failures of the software of a run, whatever its size."
    )
    stall: Seconds | None = Field(
        None, description="Measured mean time from a failure until steps go on."
    )
    repair: Seconds | None = Field(None, description="Mean time until a lost node is back.")
    spare_trays: CountOrZero = Field(
        0,
        description="Compute trays of each rack-scale node (GB200 NVL72) that stand by in its "
        "domain; they are not among its accelerators.",
    )
    lemons: Share | None = Field(
        None, description="Share of the nodes that causes half of the hardware failures."
    )
    infant: AtLeastOne = Field(
        1.0, description="Failure rate of new machines over the usual one; it fades in weeks."
    )
    sites: PositiveCount = Field(1, description="Sites that the nodes stand in.")
    cut_mtbf: Seconds | None = Field(
        None, description="Mean time between cuts of the network between sites."
    )
    cut: Seconds | None = Field(None, description="Mean length of such a cut.")


class ClusterFile(Section):
    """A cluster file."""

    name: Text | None = Field(None, description="Name of the cluster; the file's if not given.")
    date: Text | None = Field(None, description="When it was written.")
    launcher: Launcher = Field("local", description="Where processes come from.")
    nodes: PositiveCount = Field(1, description="Number of nodes.")
    accelerator: AcceleratorSection = Field(
        AcceleratorSection(), description="What it computes with."
    )
    node: NodeSection = Field(NodeSection(), description="What stands around the accelerators.")
    tier: tuple[TierSection, ...] = Field((), description="The network.")
    storage: StorageSection = Field(StorageSection(), description="The storage.")
    site: SiteSection = Field(SiteSection(), description="The place.")
    sites: tuple[MeetingSiteSection, ...] = Field(
        (), description="Sites that meet in a bucket, and their links to it."
    )
    price: PriceSection = Field(PriceSection(), description="The price.")
    failures: FailuresSection = Field(FailuresSection(), description="The failures.")
    slurm: SlurmSection = Field(SlurmSection(), description="Submission to Slurm.")
    ssh: SshSection = Field(SshSection(), description="Hosts that are reached by ssh.")
    kubernetes: KubernetesSection = Field(
        KubernetesSection(), description="A JobSet on Kubernetes."
    )
    sky: SkySection = Field(SkySection(), description="A SkyPilot task on a rented cloud.")
    probe: ProbeSection | None = Field(None, description="What a probe measured.")

    @model_validator(mode="after")
    def _says_enough(self) -> Self:
        chip = self.accelerator
        if not (chip.name or self.node.name):
            fix = '[accelerator] with name = "H100" (`penstock catalog accelerators`)'
            raise InvalidFields(("accelerator.name", f"missing; write {fix}"))
        sizes = [tier.size for tier in self.tier]
        if sizes != sorted(set(sizes)):
            raise InvalidFields(
                ("tier", "sizes must grow from one [[tier]] to the next; put them in order")
            )
        names = [site.name for site in self.sites]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidFields(("sites", f'two are named "{twice[0]}"; give each its own name'))
        return self
