"""Kubernetes' client against a real API server: submit, state, cancel, and what is refused."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from engine_runs import job_of
from kubernetes_lab import Controllers, Kubectl, has_server, job_set_crd, serving
from kubernetes_packages import needs_kubernetes
from penstock.errors import PenstockError
from penstock.launch.engines.engine import JobPhase
from penstock.launch.engines.kubernetes import Kubernetes

pytestmark = [
    *needs_kubernetes,
    pytest.mark.skipif(not has_server, reason="no server: scripts/kube_apiserver.sh build"),
]
SECTION = "cluster.kubernetes"
UNSCHEDULED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    with serving(tmp_path_factory.mktemp("server") / "server") as kubeconfig:
        found = Kubectl(kubeconfig)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(kubeconfig))
            (line,) = Kubernetes().refusals(job_of("kubernetes"))
            assert "this cluster has no JobSet" in line
            found.apply(job_set_crd())
            found("wait", "--for=condition=established", "crd/jobsets.jobset.x-k8s.io")
            yield found


@pytest.fixture
def controllers(kubectl: Kubectl) -> Iterator[Controllers]:
    """A cluster without JobSets, before the test and after it."""
    yield Controllers(kubectl)
    kubectl("delete", "jobsets", "--all", "--cascade=orphan")
    kubectl("delete", "pods", "--all", "--force")
    kubectl("delete", "configmaps", "--all")


def every_key(given: object, kept: object) -> bool:
    """Return whether all that was given is still there; the server may add to it."""
    if isinstance(given, dict):
        return isinstance(kept, dict) and all(every_key(given[k], kept.get(k)) for k in given)
    if isinstance(given, list):
        return len(given) == len(kept) and all(map(every_key, given, kept))
    return given == kept


def test_what_is_submitted_is_what_the_dry_run_shows_and_nothing_is_dropped(kubectl, controllers):
    job = job_of("kubernetes", "cluster.nodes=2", "guard.spares=1")
    assert Kubernetes().refusals(job) == []
    submission = Kubernetes().submit(job)
    config, job_set = yaml.safe_load_all(Kubernetes().text(job))
    assert submission.job == "a-run"
    assert every_key(config, kubectl.get("configmap", "a-run"))
    assert every_key(job_set, kubectl.get("jobset", "a-run"))
    kubectl("delete", "jobset", "a-run")
    kubectl("apply", "--validate=false", "-f", "-", given=Kubernetes().text(job))  # by hand
    assert every_key(job_set, kubectl.get("jobset", "a-run"))


def test_the_life_of_a_job_in_words(kubectl, controllers):
    engine = Kubernetes()
    submission = engine.submit(job_of("kubernetes", "cluster.nodes=2"))
    assert engine.state(submission).phase is JobPhase.QUEUED
    first, second = controllers.make_pods("a-run")
    controllers.set_status("pod", first, {"phase": "Pending", "conditions": [UNSCHEDULED]})
    state = engine.state(submission)
    assert (state.phase, state.words) == (
        JobPhase.QUEUED,
        f"{first} waits for a machine: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    )
    controllers.bind(second, "machine-2")
    controllers.set_status("pod", second, {"phase": "Running"})
    state = engine.state(submission)
    assert state.phase is JobPhase.RUNNING
    assert state.words.startswith(f"1 of 2 nodes run; {first} waits for a machine")
    assert state.nodes == ("machine-2",)
    done = {"type": "Completed", "status": "True", "reason": "AllJobsCompleted", "message": "done"}
    controllers.set_status("jobset", "a-run", {"conditions": [done]})
    state = engine.state(submission)
    assert (state.phase, state.words, state.well) == (JobPhase.ENDED, "ended: done", True)


def test_why_a_pod_does_not_start_is_in_its_events(kubectl, controllers):
    engine = Kubernetes()
    submission = engine.submit(job_of("kubernetes"))
    (pod,) = controllers.make_pods("a-run")
    about = {"kind": "Pod", "name": pod, "namespace": "default"}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e1"}, "type": "Warning"}
    event |= {"involvedObject": about, "reason": "FailedMount"}
    event |= {"message": 'configmap "a-run" not found', "lastTimestamp": "2026-01-01T00:00:00Z"}
    kubectl("create", "-f", "-", given=json.dumps(event))
    assert engine.state(submission).words == 'FailedMount: configmap "a-run" not found'


def test_cancel_returns_when_nothing_is_left(kubectl, controllers):
    engine = Kubernetes()
    submission = engine.submit(job_of("kubernetes", "cluster.nodes=2", "guard.grace=1 s"))
    for pod in controllers.make_pods("a-run"):
        controllers.bind(pod, "machine")
        controllers.set_status("pod", pod, {"phase": "Running"})
    cancelled = threading.Event()

    def cancel() -> None:
        engine.cancel(submission)
        cancelled.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    controllers.end_pods(until=cancelled.is_set)
    thread.join(60)
    assert cancelled.is_set()
    assert kubectl.names("pods") == kubectl.names("jobsets") == set()
    assert "a-run" not in kubectl.names("configmaps")
    state = engine.state(submission)
    assert (state.phase, state.words) == (
        JobPhase.UNKNOWN,
        "there is no JobSet a-run in namespace default",
    )
    engine.cancel(submission)  # nothing to do


def test_a_name_is_taken_while_its_run_is_there_and_free_when_it_has_ended(kubectl, controllers):
    engine, job = Kubernetes(), job_of("kubernetes")
    engine.submit(job)
    (line,) = engine.refusals(job)
    assert line.startswith('name = "a-run": a run of this name is queued or running in namespace')
    with pytest.raises(PenstockError, match="queued or running"):
        engine.submit(job)
    before = kubectl.get("jobset", "a-run")["metadata"]["uid"]
    ended = {"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "jobs failed"}
    controllers.set_status("jobset", "a-run", {"conditions": [ended]})
    assert engine.refusals(job) == []
    engine.submit(job)
    assert kubectl.get("jobset", "a-run")["metadata"]["uid"] != before


def test_the_jobset_of_somebody_else_is_left_alone(kubectl, controllers):
    kubectl.apply(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "a-run", "namespace": "default"},
            "spec": {},
        }
    )
    (line,) = Kubernetes().refusals(job_of("kubernetes"))
    assert "a JobSet a-run that is not of Penstock is in namespace default" in line


ABSENT = {
    f"{SECTION}.namespace=nowhere": f'{SECTION}.namespace = "nowhere": there is none; see `kubectl',
    f'{SECTION}.secrets=["bucket"]': f'{SECTION}.secrets = "bucket": not in namespace default',
    f'{SECTION}.pull_secrets=["pull"]': f'{SECTION}.pull_secrets = "pull": not in namespace',
    f"{SECTION}.service_account=nobody": f'{SECTION}.service_account = "nobody": not in namespace',
    f"{SECTION}.claim=shared": f'{SECTION}.claim = "shared": not in namespace default',
    f"{SECTION}.priority=high": f'{SECTION}.priority = "high": there is none; see `kubectl get',
    f"{SECTION}.queue=team-a": f'{SECTION}.queue = "team-a": not in namespace default',
}


@pytest.mark.parametrize(("override", "words"), ABSENT.items())
def test_what_the_cluster_does_not_have_is_refused_before_submission(kubectl, override, words):
    (line,) = Kubernetes().refusals(job_of("kubernetes", override))
    assert words in line
    assert "; see `kubectl get" in line


def test_what_the_cluster_has_is_not_refused(kubectl, controllers):
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "there"}, "stringData": {}},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "one"},
            "spec": claim,
        },
    )
    there = [f'{SECTION}.secrets=["there"]', f"{SECTION}.claim=one"]
    assert Kubernetes().refusals(job_of("kubernetes", *there)) == []
    (line,) = Kubernetes().refusals(job_of("kubernetes", *there, "cluster.nodes=2"))
    assert "2 nodes cannot write to it (ReadWriteOnce); name one with ReadWriteMany" in line


def test_a_server_that_is_away_is_told_by_submit_and_does_not_hold_up_a_dry_run(
    kubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    away, text = tmp_path / "config", kubectl.kubeconfig.read_text()
    port = text.partition("127.0.0.1:")[2].partition('"')[0]
    away.write_text(text.replace(port, "1"))
    monkeypatch.setenv("KUBECONFIG", str(away))
    assert Kubernetes().refusals(job_of("kubernetes")) == []
    with pytest.raises(PenstockError, match=r"Kubernetes does not answer at https://127.0.0.1:1"):
        Kubernetes().submit(job_of("kubernetes"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(PenstockError, match=r"no cluster is configured.*kubectl apply -f"):
        Kubernetes().submit(job_of("kubernetes"))
    with pytest.raises(PenstockError, match=r'cluster.kubernetes.context = "lab": no cluster'):
        Kubernetes().submit(job_of("kubernetes", f"{SECTION}.context=lab"))
