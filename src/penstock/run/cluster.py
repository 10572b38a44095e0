"""`[cluster]`: the machines a run uses."""

from typing import Literal

from pydantic import Field

from penstock.run.section import Seconds, Section, Some, SomeOrAll, Text


class ClusterSection(Section):
    """The machines a run uses."""

    use: Text = Field(
        "here",
        description='"here" is this machine, as last probed; or a catalog name, or a cluster file.',
    )
    accelerators: SomeOrAll = Field(
        "all", description="Accelerators to use on each node; the box may be shared."
    )
    nodes: Some = Field(1, description="Number of nodes.")
    wait: Seconds = Field(
        30.0, description="How long a start waits for all nodes; then it begins with those there."
    )
    launcher: Literal["local", "slurm", "kubernetes", "sky", "ssh"] = Field(
        "local", description="Where the processes of the run come from."
    )
