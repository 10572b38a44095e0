"""Kubernetes: one JobSet per run, applied by the official client or, as `--dry-run`, by kubectl."""

import time

from penstock.errors import PenstockError, RunFailed
from penstock.launch.engines import kubernetes_fields as fields
from penstock.launch.engines.carry import carry
from penstock.launch.engines.engine import NODE_OF, JobPhase, JobSpec, JobState, Submission
from penstock.launch.engines.jobset import (
    OF_JOBSET,
    Pods,
    grace_s,
    objects,
)
from penstock.launch.engines.kubernetes_checks import missing_objects, static_problems
from penstock.launch.engines.kubernetes_client import Cluster, KubernetesError, NoCluster, Table
from penstock.launch.engines.kubernetes_state import describe
from penstock.launch.engines.yaml_text import to_yaml
from penstock.launch.prepare.nodes import devices_of_nodes
from penstock.run.schema.run import Run

POLL_S = 1.0
GONE_S = 120.0  # after the grace of its pods, until a JobSet must be gone


class Kubernetes:
    """JobSets of a cluster."""

    name = "kubernetes"

    def refusals(self, job: JobSpec) -> list[str]:
        """Return what is wrong by itself, and what a configured cluster does not have."""
        problems = list(static_problems(job.run))
        if problems or job.dry:
            return problems
        try:
            cluster = _cluster(job.run)
            return list(missing_objects(job.run, cluster))
        except (NoCluster, KubernetesError):
            return []  # `submit` says so

    def text(self, job: JobSpec) -> str:
        return to_yaml(*_objects(job))

    def submit(self, job: JobSpec) -> Submission:
        run, cluster = job.run, _cluster(job.run)
        name = fields.object_name(run.name)
        if problems := list(missing_objects(run, cluster)):
            raise PenstockError("\n".join(problems))
        if cluster.get_job_set(name):  # one that has ended; the run goes on
            _delete(cluster, name, grace_s(run))
        for one in _objects(job):
            cluster.create(one)
        detail = {"namespace": cluster.namespace, "grace_s": str(grace_s(run))}
        detail |= {"context": cluster.context} if cluster.context else {}
        return Submission(self.name, name, time.time(), detail)

    def state(self, submission: Submission) -> JobState:
        cluster = _cluster_of(submission)
        found = cluster.get_job_set(submission.job)
        if found is None:
            return JobState(
                JobPhase.UNKNOWN,
                f"there is no JobSet {submission.job} in namespace {cluster.namespace}",
            )
        pods = cluster.pods(f"{OF_JOBSET}={submission.job}")
        return describe(found, pods, cluster.events)

    def cancel(self, submission: Submission) -> None:
        cluster = _cluster_of(submission)
        _delete(cluster, submission.job, float(submission.detail.get("grace_s", "60")))
        cluster.delete_config_map(submission.job)


def _cluster(run: Run) -> Cluster:
    section = run.cluster.kubernetes
    return Cluster(section.context, section.namespace)


def _cluster_of(submission: Submission) -> Cluster:
    detail = submission.detail
    return Cluster(detail.get("context"), detail.get("namespace", "default"))


def _objects(job: JobSpec) -> list[Table]:
    run, devices = job.run, devices_of_nodes(job.run)
    # The word of the submission is in the bucket; a claim cannot be written from here.
    env = job.env if run.guard.durable else {NODE_OF: "kubernetes"}
    gpus = devices.ranks(run.cluster.accelerators) if devices.kind == "cuda" else 0
    return [dict(one) for one in objects(Pods(run, carry(run), env, gpus))]


def _delete(cluster: Cluster, name: str, grace: float) -> None:
    """Delete a JobSet, and wait until it and all its pods are gone."""
    until = time.monotonic() + grace + GONE_S
    cluster.delete_job_set(name)
    while True:
        pods = cluster.pods(f"{OF_JOBSET}={name}")
        if not pods and cluster.get_job_set(name) is None:
            return
        if time.monotonic() > until:
            left = ", ".join(pod["metadata"]["name"] for pod in pods) or f"JobSet {name}"
            raise RunFailed(
                f"{left}: still there {grace + GONE_S:.0f} s after the deletion; see `kubectl "
                f"describe pods -n {cluster.namespace} -l {OF_JOBSET}={name}`"
            )
        time.sleep(POLL_S)
