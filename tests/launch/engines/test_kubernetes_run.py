"""A whole run by `penstock train` on a real API server; its pods are processes of this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kubernetes_lab import Controllers, Kubectl, Kubelet, has_server, job_set_crd, serving
from kubernetes_packages import PACKAGES, needs_kubernetes

pytestmark = [
    *needs_kubernetes,
    pytest.mark.skipif(not has_server, reason="no server: scripts/kube_apiserver.sh build"),
    pytest.mark.timeout(900),
]
RUN = """
name = "pods"
[model]
preset = "llama-3m"
[data]
dataset = "tiny"
sequence = 64
[train]
steps = 100
batch_tokens = 512
precision = "fp32"
[evaluate]
every = "never"
[cluster]
launcher = "kubernetes"
nodes = 2
accelerators = 1
wait = "2 min"
[cluster.kubernetes]
image = "registry.example/penstock:1"
claim = "shared"
resources = ["nvidia.com/gpu=0"]
[guard]
checkpoint = "10 steps"
"""
SHARED = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "shared"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}
DONE = {"type": "Completed", "status": "True", "reason": "AllJobsCompleted", "message": "done"}


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[Kubectl]:
    with serving(tmp_path / "server") as kubeconfig:
        found = Kubectl(kubeconfig)
        found.apply(job_set_crd(), SHARED)
        found("wait", "--for=condition=established", "crd/jobsets.jobset.x-k8s.io")
        yield found


def wait_for(what: Callable[[], object], told: str) -> None:
    until = time.monotonic() + 400
    while not what():
        assert time.monotonic() < until, told
        time.sleep(0.2)


@pytest.fixture
def kubelet(kubectl: Kubectl, tmp_path: Path) -> Iterator[Kubelet]:
    with closing(Kubelet(kubectl, tmp_path / "cluster")) as found:
        yield found


def test_a_run_is_submitted_loses_a_pod_gets_another_and_ends(
    kubectl, kubelet, tmp_path, home, tiny
):
    here = tmp_path / "laptop"
    here.mkdir()
    (here / "run.toml").write_text(RUN)
    env = os.environ | {"KUBECONFIG": str(kubectl.kubeconfig)}
    env["PYTHONPATH"] = os.pathsep.join([*filter(None, [env.get("PYTHONPATH")]), str(PACKAGES)])
    command = [sys.executable, "-m", "penstock", "train", "run.toml"]
    train = subprocess.Popen(command, cwd=here, env=env, stdout=subprocess.PIPE, text=True)
    controllers = Controllers(kubectl)
    (tmp_path / "cluster" / "work" / "home").symlink_to(home)  # the dataset is on the volume
    wait_for(lambda: "pods" in kubectl.names("jobsets"), "nothing was submitted")
    first, second = controllers.make_pods("pods")
    processes = {pod: kubelet.start(pod) for pod in (first, second)}
    for pod in processes:
        controllers.bind(pod, f"machine-of-{pod}")
        controllers.set_status("pod", pod, {"phase": "Running"})
    folder = tmp_path / "cluster" / "work" / "runs" / "pods"
    wait_for(lambda: any(folder.glob("checkpoints/step-*")), "no checkpoint came")
    assert kubelet.probe(first, "startupProbe") == kubelet.probe(first, "livenessProbe") == 0

    processes[second].send_signal(signal.SIGTERM)  # drained
    assert processes.pop(second).wait(200) == 143
    (third,) = controllers.make_pods("pods", mark="fghij", only=1)
    processes[third] = kubelet.start(third)
    assert [process.wait(400) for process in processes.values()] == [0, 0]
    assert (folder / "checkpoints" / "step-00000100").exists()

    controllers.set_status("jobset", "pods", {"conditions": [DONE]})
    said, _ = train.communicate(timeout=200)
    assert train.returncode == 0
    assert "ended: done" in said
