"""`[cluster]`: the machines a run uses."""

from typing import Self

from pydantic import Field, model_validator

from penstock.catalog import sites
from penstock.errors import PenstockError
from penstock.run.schema.engines import (
    KubernetesSection,
    Launcher,
    SkySection,
    SlurmSection,
    SshSection,
)
from penstock.run.schema.section import (
    CountOrAll,
    InvalidFields,
    NotNegative,
    PositiveCount,
    Seconds,
    Section,
    Text,
)


class ClusterSection(Section):
    """The machines a run uses."""

    use: Text = Field(
        "here",
        description='"here" is this machine, as last probed; or a catalog name, or a cluster file.',
    )
    accelerators: CountOrAll = Field(
        "all", description="Accelerators to use on each node; the box may be shared."
    )
    nodes: PositiveCount = Field(1, description="Number of nodes.")
    wait: Seconds = Field(
        30.0, description="How long a start waits for all nodes; then it begins with those there."
    )
    interface: Text | None = Field(
        None,
        description='Network interface by which nodes reach each other, such as "eth0"; nothing '
        "listens on others. Left out, all of them do.",
    )
    launcher: Launcher = Field("local", description="Where the processes of the run come from.")
    usd_per_hour: NotNegative | None = Field(
        None,
        description="Price of one accelerator for an hour; wins over a cluster file's. "
        "Without any price there are no USD.",
    )
    site: Text | None = Field(
        None,
        description="Where the machines stand, as in `penstock catalog sites`: carbon, PUE and "
        "price of electricity.",
    )
    carbon: NotNegative | None = Field(
        None, description="gCO2e per kWh, where you know better than the catalog."
    )
    slurm: SlurmSection = Field(SlurmSection(), description="Submission to Slurm.")
    ssh: SshSection = Field(SshSection(), description="Hosts that are reached by ssh.")
    kubernetes: KubernetesSection = Field(
        KubernetesSection(), description="A JobSet on Kubernetes."
    )
    sky: SkySection = Field(SkySection(), description="A SkyPilot task on a rented cloud.")

    @model_validator(mode="after")
    def _a_known_site(self) -> Self:
        try:
            if self.site is not None:
                sites.find(self.site)
        except PenstockError as error:
            raise InvalidFields(
                ("site", f"{error} Or write carbon = ... in gCO2e per kWh")
            ) from None
        return self
