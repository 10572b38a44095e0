"""`[cluster.slurm]`, `[cluster.ssh]`, `[cluster.kubernetes]`, `[cluster.sky]`: settings of engines.

An engine starts `penstock train` once per node. A cluster file has the same sections, without the
`cluster.` in front; where both set a field, the run file wins.
"""

from typing import Literal

from pydantic import Field

from penstock.run.schema.machine_fields import Size
from penstock.run.schema.section import Flag, PositiveCount, Seconds, Section, Text

Launcher = Literal["local", "slurm", "ssh", "kubernetes", "sky"]


class SlurmSection(Section):
    """Submission to Slurm."""

    partition: Text | None = Field(None, description="Partition; Slurm's default if left out.")
    account: Text | None = Field(None, description="Account that pays.")
    qos: Text | None = Field(None, description="Quality of service.")
    constraint: Text | None = Field(None, description='Features that nodes need: "h100&ib".')
    time: Seconds | None = Field(
        None, description="Time limit of the job; at its end the run saves and is queued again."
    )
    elastic: Flag = Field(
        False, description="One job per node: the scheduler replaces only what died."
    )
    gpus: Text | None = Field(
        None, description='Generic resource of a node: "gpu:8"; by the accelerators if left out.'
    )
    container: Text | None = Field(None, description="Image that the run starts in.")
    container_by: Literal["apptainer", "pyxis"] = Field(
        "apptainer", description="What starts the image."
    )
    setup: tuple[Text, ...] = Field(
        (), description="Shell lines before the run starts, such as `module load cuda`."
    )
    lines: tuple[Text, ...] = Field(
        (), description='More options of `sbatch`, one each, such as "-C bigmem".'
    )


class SshSection(Section):
    """Hosts that are reached by ssh."""

    hosts: tuple[Text, ...] = Field((), description='Hosts: "name", "user@name" or "name:port".')
    key: Text | None = Field(None, description="File of the private key; ssh's own choice if none.")
    config: Text | None = Field(None, description="Configuration file of ssh.")
    python: Text = Field("python3", description="Python of the hosts, or of a venv there.")
    folder: Text | None = Field(
        None, description="Folder on the hosts that the run works in; the same as here if left out."
    )


class KubernetesSection(Section):
    """A JobSet on Kubernetes."""

    context: Text | None = Field(None, description="Context of the kubeconfig; the current one.")
    namespace: Text = Field("default", description="Namespace of the run's objects.")
    image: Text | None = Field(None, description="Image with Penstock in it (`Containerfile`).")
    service_account: Text | None = Field(None, description="Service account of the pods.")
    pull_secrets: tuple[Text, ...] = Field((), description="Secrets to pull the image with.")
    secrets: tuple[Text, ...] = Field(
        (), description="Secrets whose keys become environment variables: the bucket's credentials."
    )
    claim: Text | None = Field(
        None, description="Persistent volume claim for runs and datasets, shared by the nodes."
    )
    shared_memory: Size = Field(16 * 2**30, description="Size of /dev/shm of a pod.")
    resources: tuple[Text, ...] = Field(
        (), description='More resources of a pod: "rdma/ib=8", "memory=512Gi".'
    )
    tolerations: tuple[Text, ...] = Field(
        (), description='Taints to tolerate: "nvidia.com/gpu=present:NoSchedule".'
    )
    node_selector: tuple[Text, ...] = Field((), description='Labels of nodes: "pool=h100".')
    priority: Text | None = Field(None, description="Priority class of the pods.")
    queue: Text | None = Field(None, description="Queue of Kueue that the JobSet is put in.")


class SkySection(Section):
    """A SkyPilot task on a rented cloud."""

    infra: Text | None = Field(None, description='Where: "aws/us-east-1"; any if left out.')
    accelerators: Text | None = Field(None, description='Of a node: "H100:8".')
    spot: Flag = Field(True, description="Rent capacity that may vanish; the run recovers.")
    image: Text | None = Field(None, description='Machine or "docker:…" image.')
    setup: tuple[Text, ...] = Field((), description="Shell lines that prepare a new machine.")
    disk: PositiveCount = Field(256, description="GB of disk of a node.")
    secrets: tuple[Text, ...] = Field(
        (), description="Environment variables that are handed on: the bucket's credentials."
    )
