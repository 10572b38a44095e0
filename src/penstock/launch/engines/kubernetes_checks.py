"""Checks before a run goes to Kubernetes: bad fields, and objects that do not exist."""

from collections.abc import Callable, Iterator
from functools import partial

from penstock.data.store.objects import is_url
from penstock.errors import PenstockError
from penstock.launch.engines import kubernetes_fields as fields
from penstock.launch.engines.carry import carry, refused_places, refused_secrets
from penstock.launch.engines.jobset import MANAGER, RUN_NAME, WORK
from penstock.launch.engines.kubernetes_client import Cluster, KubernetesError
from penstock.launch.engines.kubernetes_state import ended_words
from penstock.launch.prepare.nodes import devices_of_nodes
from penstock.run.schema.run import Run


def static_problems(run: Run) -> Iterator[str]:
    section = run.cluster.kubernetes
    if not section.image:
        yield (
            "cluster.kubernetes.image: missing; build one from the Containerfile (`podman build -t "
            "REGISTRY/penstock:TAG .`), push it, and write its name"
        )
    yield from fields.refused_fields(section)
    yield from _storage_problems(run)
    yield from _gpu_problems(run)
    how = "write cluster.kubernetes.claim with a volume that has it"
    yield from refused_places(run, WORK if section.claim else None, how)
    yield from refused_secrets(run, "cluster.kubernetes.secrets")
    try:
        carry(run)
    except PenstockError as error:
        yield str(error)


def _storage_problems(run: Run) -> Iterator[str]:
    durable, claim = run.guard.durable, run.cluster.kubernetes.claim
    if durable is None and not claim:
        yield (
            "guard.durable: missing, and a pod loses its disk when it ends; write durable = "
            '"s3://BUCKET/runs", or cluster.kubernetes.claim = "NAME" of a ReadWriteMany claim'
        )
    elif durable is not None and (not is_url(durable) or durable.startswith("file:")):
        fix = "leave it out: runs are on the claim" if claim else 'write "s3://BUCKET/runs"'
        yield f'guard.durable = "{durable}": a folder of this machine, which pods do not see; {fix}'


def _gpu_problems(run: Run) -> Iterator[str]:
    section = run.cluster.kubernetes
    try:
        named = {k: int(v) for k, v in fields.resources(section).items() if fields.is_gpu(k)}
        devices = devices_of_nodes(run)
        ranks = devices.ranks(run.cluster.accelerators)
    except ValueError:
        return  # said already
    except PenstockError as error:
        yield str(error)
        return
    asked = sum(named.values())
    if devices.kind == "cuda" and named and asked != ranks:
        listed = ", ".join(f'"{name}={amount}"' for name, amount in named.items())
        yield (
            f"cluster.kubernetes.resources: {listed}, but a node is planned with {ranks} "
            f"({devices}); make cluster.accelerators equal, or leave the resource out"
        )
    elif devices.kind != "cuda" and (asked or not named):
        yield (
            f'cluster.use = "{run.cluster.use}": a machine without GPUs, by which the pods would '
            'be planned; write what they run on, such as cluster.use = "H100" (`penstock catalog '
            'nodes`) or a cluster file, or cluster.kubernetes.resources = ["nvidia.com/gpu=0"] '
            "for pods without"
        )


def missing_objects(run: Run, cluster: Cluster) -> Iterator[str]:
    """Say what the cluster does not have, as far as this user may ask."""
    section, where = run.cluster.kubernetes, f"in namespace {cluster.namespace}"
    if not _known(cluster.has_job_sets):
        yield (
            "cluster.launcher: this cluster has no JobSet (jobset.x-k8s.io/v1alpha2); its "
            "administrator installs it: https://jobset.sigs.k8s.io/docs/installation"
        )
        return
    if not _known(cluster.get_namespace):
        yield (
            f'cluster.kubernetes.namespace = "{cluster.namespace}": there is none; see `kubectl '
            "get namespaces`"
        )
        return
    for field, kind, name in _named_objects(run):
        if not _known(partial(cluster.get, kind, name)):
            shown = kind.replace("_", "")
            yield (
                f'cluster.kubernetes.{field} = "{name}": not {where}; see `kubectl get {shown} '
                f"-n {cluster.namespace}`"
            )
    if section.priority and not _known(lambda: cluster.get_priority_class(section.priority or "")):
        yield (
            f'cluster.kubernetes.priority = "{section.priority}": there is none; see `kubectl get '
            "priorityclass`"
        )
    if section.queue and not _known(lambda: cluster.get_queue(section.queue or "")):
        yield (
            f'cluster.kubernetes.queue = "{section.queue}": not {where}; see `kubectl get '
            f"localqueues -n {cluster.namespace}`"
        )
    yield from _claim_problems(run, cluster)
    yield from _name_problems(run, cluster)


def _named_objects(run: Run) -> Iterator[tuple[str, str, str]]:
    section = run.cluster.kubernetes
    yield from (("secrets", "secret", name) for name in section.secrets)
    yield from (("pull_secrets", "secret", name) for name in section.pull_secrets)
    if section.service_account:
        yield "service_account", "service_account", section.service_account
    if section.claim:
        yield "claim", "persistent_volume_claim", section.claim


def _claim_problems(run: Run, cluster: Cluster) -> Iterator[str]:
    claim, hosts = run.cluster.kubernetes.claim, run.cluster.nodes + run.guard.spares
    if not claim or hosts == 1:
        return
    try:
        found = cluster.get("persistent_volume_claim", claim)
    except KubernetesError:
        return
    if found and "ReadWriteMany" not in (modes := found["spec"].get("accessModes", [])):
        yield (
            f'cluster.kubernetes.claim = "{claim}": {hosts} nodes cannot write to it ('
            f"{', '.join(modes)}); name one with ReadWriteMany"
        )


def _name_problems(run: Run, cluster: Cluster) -> Iterator[str]:
    """Refuse a name that another run has, or that this one still runs under."""
    name = fields.object_name(run.name)
    found = cluster.get_job_set(name)
    if found is None:
        return
    labels = found["metadata"].get("labels", {})
    if labels.get("app.kubernetes.io/managed-by") != MANAGER:
        what = f"a JobSet {name} that is not of Penstock is"
    elif found["metadata"].get("annotations", {}).get(RUN_NAME) != run.name:
        what = f"a JobSet {name} of another run is"
    elif ended_words(found) is None:
        what = "a run of this name is queued or running"
    else:
        return
    yield (
        f'name = "{run.name}": {what} in namespace {cluster.namespace}; give the run another name, '
        f"or `kubectl delete jobset {name} -n {cluster.namespace}`"
    )


def _known(ask: Callable[[], object]) -> bool:
    """Return whether something is there; True also where this user may not ask."""
    try:
        return bool(ask())
    except KubernetesError as error:
        if error.status in (401, 403):
            return True
        raise
