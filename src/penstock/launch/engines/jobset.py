"""The Kubernetes objects of a run: a ConfigMap with its files, and a JobSet with a Job per node.

Each node of the run is a Job of one pod. The Job controller replaces the pod of a Job that fails
and leaves the other Jobs alone; the run goes on meanwhile, and takes the new pod in when it comes.
The JobSet fails as a whole only where no new pod can help. Any JobSet of v1alpha2 can do that: its
own `RestartJob`, which clusters have since JobSet 0.12, is not needed.
"""

import math
from dataclasses import dataclass

from penstock.launch.engines import kubernetes_fields as fields
from penstock.launch.engines.carry import RUN_FILE, CarriedRun
from penstock.launch.engines.yaml_text import Value
from penstock.run.schema.engines import KubernetesSection
from penstock.run.schema.run import Run

API = "jobset.x-k8s.io"
VERSION = "v1alpha2"
PLURAL = "jobsets"
MANAGER = "penstock"
RUN_NAME = "penstock/run"
"""Annotation of all objects: the name of the run."""
OF_JOBSET = "jobset.sigs.k8s.io/jobset-name"
"""Label that the JobSet controller puts on pods."""

WORK = "/work"
"""Working folder of a pod, on the claim if there is one."""
FILES = "/etc/penstock"
CONTAINER = "penstock"
USER = 1000  # of the Containerfile

REPLACEMENTS = 20
"""New pods for a node that fails by itself. Their delay grows from 10 s to 10 min, so that a node
that can never start gives up after three hours. Preempted and drained pods do not count."""
LEAVING_S = 15
"""To end the processes of a node after it has saved."""
BAD_INPUT, TOLD_TO_GO = 2, 143
START_PERIOD_S, START_S = 10, 1800
ALIVE_PERIOD_S, ALIVE_FAILURES = 60, 5

# A node that is told to go saves and exits with 0, and to Kubernetes 0 means that its part is done:
# it would not be replaced. So the shell that gets the SIGTERM turns this 0 into 143.
SCRIPT = f"""\
told=0
trap 'told={TOLD_TO_GO}; kill -TERM "$node" 2>/dev/null' TERM
"$@" &
node=$!
[ "$told" -eq 0 ] || kill -TERM "$node"
wait "$node"; code=$?
while kill -0 "$node" 2>/dev/null; do wait "$node"; code=$?; done
[ "$code" -ne 0 ] || exit "$told"
exit "$code"
"""


@dataclass(frozen=True)
class Pods:
    """Input from which the pods of a run are made."""

    run: Run
    carried: CarriedRun
    env: dict[str, str]
    """Variables of every node."""
    gpus: int
    """Of a node, where no resource of the section names any."""


def objects(pods: Pods) -> list[dict[str, Value]]:
    """Return the objects of a run in the order in which they are created."""
    return [config_map(pods.run, pods.carried), job_set(pods)]


def config_map(run: Run, carried: CarriedRun) -> dict[str, Value]:
    files: dict[str, Value] = {_key(path): text for path, text in carried.files.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(run), "data": files}


def job_set(pods: Pods) -> dict[str, Value]:
    run, metadata = pods.run, _metadata(pods.run)
    if queue := run.cluster.kubernetes.queue:
        metadata["labels"] = _labels(run) | {"kueue.x-k8s.io/queue-name": queue}
    node: dict[str, Value] = {
        "name": "node",
        "replicas": run.cluster.nodes + run.guard.spares,
        "template": {"spec": _job(pods)},
    }
    return {
        "apiVersion": f"{API}/{VERSION}",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [node],
        },
    }


def grace_s(run: Run) -> int:
    """Return how long a pod has between SIGTERM and SIGKILL."""
    return math.ceil(run.guard.grace) + LEAVING_S


def pod_resources(section: KubernetesSection, gpus: int) -> dict[str, str]:
    """Return what a pod asks for: what the section names, and GPUs unless it names some."""
    named = fields.resources(section)
    if not any(map(fields.is_gpu, named)):
        named["nvidia.com/gpu"] = str(gpus)
    return {name: amount for name, amount in named.items() if amount != "0"}


def _metadata(run: Run) -> dict[str, Value]:
    return {
        "name": fields.object_name(run.name),
        "namespace": run.cluster.kubernetes.namespace,
        "labels": _labels(run),
        "annotations": {RUN_NAME: run.name},
    }


def _labels(run: Run) -> dict[str, Value]:
    return {
        "app.kubernetes.io/name": "penstock",
        "app.kubernetes.io/instance": fields.object_name(run.name),
        "app.kubernetes.io/managed-by": MANAGER,
    }


def _key(path: str) -> str:
    """Return the key of a file: a ConfigMap's keys have no slashes."""
    return path.replace("/", "__")


def _job(pods: Pods) -> dict[str, Value]:
    run = pods.run
    preempted: Value = [{"type": "DisruptionTarget", "status": "True"}]
    return {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": REPLACEMENTS,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": preempted},
                {"action": "Ignore", "onExitCodes": _exit_code(TOLD_TO_GO)},
                # Bad input: another pod would say the same.
                {"action": "FailJob", "onExitCodes": _exit_code(BAD_INPUT)},
            ]
        },
        "template": {
            "metadata": {"labels": _labels(run), "annotations": {RUN_NAME: run.name}},
            "spec": _pod(pods),
        },
    }


def _exit_code(code: int) -> Value:
    return {"containerName": CONTAINER, "operator": "In", "values": [code]}


def _pod(pods: Pods) -> dict[str, Value]:
    run, section = pods.run, pods.run.cluster.kubernetes
    pod: dict[str, Value] = {
        "restartPolicy": "Never",  # a failed pod is replaced, on another machine if need be
        "terminationGracePeriodSeconds": grace_s(run),
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": _apart(run),
        "containers": [_container(pods)],
        "volumes": _volumes(run, pods.carried),
    }
    if section.service_account:
        pod["serviceAccountName"] = section.service_account
    else:
        pod["automountServiceAccountToken"] = False  # a run asks Kubernetes for nothing
    if section.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in section.pull_secrets]
    if tolerations := fields.tolerations(section):
        pod["tolerations"] = tolerations
    if labels := fields.node_selector(section):
        pod["nodeSelector"] = labels
    if section.priority:
        pod["priorityClassName"] = section.priority
    return pod


def _apart(run: Run) -> Value:
    """Prefer machines that no other node of the run is on: it keeps copies of its state there."""
    term: Value = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": _labels(run)},
    }
    preferred: Value = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _container(pods: Pods) -> Value:
    run, section = pods.run, pods.run.cluster.kubernetes
    resources = pod_resources(section, pods.gpus)
    folder = f"{WORK}/{run.folder}" if not run.folder.is_absolute() else f"{WORK}/runs/{run.name}"
    security: dict[str, Value] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    if any(_is_rdma(name) for name in resources):
        security["capabilities"] = {"drop": ["ALL"], "add": ["IPC_LOCK"]}  # pinned memory
    container: dict[str, Value] = {
        "name": CONTAINER,
        "image": section.image or "",
        "command": ["sh", "-c", SCRIPT, "penstock"],
        "args": ["penstock", "train", f"{FILES}/{RUN_FILE}"],
        "workingDir": WORK,
        "env": _env(pods.env),
        "resources": _amounts(resources),
        "securityContext": security,
        "startupProbe": {
            "exec": {"command": _alive(folder, "--started")},
            "periodSeconds": START_PERIOD_S,
            "timeoutSeconds": ALIVE_PERIOD_S,
            "failureThreshold": START_S // START_PERIOD_S,
        },
        "livenessProbe": {
            "exec": {"command": _alive(folder)},
            "periodSeconds": ALIVE_PERIOD_S,
            "timeoutSeconds": ALIVE_PERIOD_S,
            "failureThreshold": ALIVE_FAILURES,
        },
        # The last output of a pod is then part of its status, and of `penstock status`.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "work", "mountPath": WORK},
            {"name": "files", "mountPath": FILES, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    if section.secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in section.secrets]
    return container


def _alive(folder: str, *options: str) -> list[Value]:
    return ["python3", "-m", "penstock.launch.engines.alive", *options, folder]


def _env(env: dict[str, str]) -> list[Value]:
    own: Value = {"fieldRef": {"fieldPath": "metadata.name"}}
    fixed: list[Value] = [{"name": name, "value": value} for name, value in env.items()]
    return [
        {"name": "PENSTOCK_NODE", "valueFrom": own},
        {"name": "PENSTOCK_HOME", "value": f"{WORK}/home"},
        *fixed,
    ]


def _amounts(resources: dict[str, str]) -> Value:
    # Equal requests and limits: devices need that, and a node gets what it was planned with.
    amounts: dict[str, Value] = dict(resources)
    return {"requests": amounts, "limits": dict(amounts)} if amounts else {}


def _is_rdma(resource: str) -> bool:
    return any(word in resource for word in ("rdma", "infiniband", "efa", "roce", "hca"))


def _volumes(run: Run, carried: CarriedRun) -> list[Value]:
    section: KubernetesSection = run.cluster.kubernetes
    items: list[Value] = [{"key": _key(path), "path": path} for path in carried.files]
    work: dict[str, Value] = {"emptyDir": {}}
    if section.claim:
        work = {"persistentVolumeClaim": {"claimName": section.claim}}
    files: Value = {"name": fields.object_name(run.name), "items": items}
    memory: Value = {"medium": "Memory", "sizeLimit": _binary(section.shared_memory)}
    return [
        {"name": "work", **work},
        {"name": "files", "configMap": files},
        {"name": "shared-memory", "emptyDir": memory},
    ]


def _binary(size_bytes: int) -> str:
    for unit, factor in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)
