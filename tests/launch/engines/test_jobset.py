"""The objects of a run on Kubernetes: what they ask for, and how a pod ends."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from engine_runs import job_of
from penstock.launch.engines import jobset
from penstock.launch.engines.carry import carry
from penstock.launch.engines.kubernetes import Kubernetes
from penstock.launch.engines.kubernetes_fields import object_name
from penstock.run.schema.run import NAME


def submitted(*overrides):
    """Return the ConfigMap and the JobSet of a run, as another parser reads them."""
    return list(yaml.safe_load_all(Kubernetes().text(job_of("kubernetes", *overrides))))


def pod_of(job_set):
    return job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def test_every_node_is_a_job_of_one_pod_and_spares_are_nodes_too():
    _, job_set = submitted("cluster.nodes=4", "guard.spares=1")
    (jobs,) = job_set["spec"]["replicatedJobs"]
    assert jobs["replicas"] == 5
    job = jobs["template"]["spec"]
    assert (job["parallelism"], job["completions"]) == (1, 1)
    assert job_set["spec"]["network"]["enableDNSHostnames"]


def test_a_failed_pod_is_replaced_alone_and_bad_input_ends_the_whole_set():
    _, job_set = submitted()
    job = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    rules = job["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "Ignore", "FailJob"]
    assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert [rule["onExitCodes"]["values"] for rule in rules[1:]] == [[143], [2]]
    assert job["backoffLimit"] > 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert job_set["spec"]["failurePolicy"] == {"maxRestarts": 0}


def test_a_pod_has_longer_than_the_grace_of_the_run():
    _, job_set = submitted("guard.grace=90.5 s")
    assert pod_of(job_set)["terminationGracePeriodSeconds"] == 91 + jobset.LEAVING_S


def test_no_probe_ends_a_start_of_less_than_half_an_hour():
    _, job_set = submitted("cluster.nodes=2")
    (container,) = pod_of(job_set)["containers"]
    start, live = container["startupProbe"], container["livenessProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 1800
    assert start["exec"]["command"][-2:] == ["--started", "/work/runs/a-run"]
    assert live["exec"]["command"][-1] == "/work/runs/a-run"
    assert live["failureThreshold"] > 1


def test_the_pods_name_is_the_nodes_name():
    _, job_set = submitted()
    env = {one["name"]: one for one in pod_of(job_set)["containers"][0]["env"]}
    assert env["PENSTOCK_NODE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert env["PENSTOCK_NODE_OF"]["value"] == "kubernetes"
    assert env["PENSTOCK_SUBMISSION"]["value"] == "a-token"


def test_a_claim_holds_runs_and_datasets_and_needs_no_bucket():
    _, job_set = submitted("guard.durable=null", "cluster.kubernetes.claim=shared")
    pod = pod_of(job_set)
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes["work"]["persistentVolumeClaim"] == {"claimName": "shared"}
    (container,) = pod["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert env["PENSTOCK_HOME"].startswith(f"{container['workingDir']}/")
    assert "PENSTOCK_SUBMISSION" not in env  # nobody here can write that word to the claim


def test_settings_become_fields_of_the_pod():
    _, job_set = submitted(
        "cluster.accelerators=8",
        'cluster.kubernetes.resources=["rdma/ib=8", "memory=512Gi"]',
        'cluster.kubernetes.tolerations=["nvidia.com/gpu=present:NoSchedule", "spot", "a:NoExecute"'
        "]",
        'cluster.kubernetes.node_selector=["pool=h100"]',
        'cluster.kubernetes.secrets=["bucket"]',
        'cluster.kubernetes.pull_secrets=["registry"]',
        "cluster.kubernetes.service_account=trainer",
        "cluster.kubernetes.priority=high",
        "cluster.kubernetes.queue=team-a",
        "cluster.kubernetes.namespace=lab",
        "cluster.kubernetes.shared_memory=64 GiB",
    )
    pod = pod_of(job_set)
    (container,) = pod["containers"]
    asked = {"rdma/ib": "8", "memory": "512Gi", "nvidia.com/gpu": "8"}
    assert container["resources"] == {"requests": asked, "limits": asked}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists"},
        {"key": "a", "operator": "Exists", "effect": "NoExecute"},
    ]
    assert pod["nodeSelector"] == {"pool": "h100"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["serviceAccountName"] == "trainer"
    assert pod["priorityClassName"] == "high"
    memory = {one["name"]: one for one in pod["volumes"]}["shared-memory"]["emptyDir"]
    assert memory == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert job_set["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert job_set["metadata"]["namespace"] == "lab"


def test_a_pod_is_no_root_and_asks_kubernetes_for_nothing():
    _, job_set = submitted()
    pod = pod_of(job_set)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        ([], {"nvidia.com/gpu": "8"}),
        (["cluster.accelerators=2"], {"nvidia.com/gpu": "2"}),
        (['cluster.kubernetes.resources=["amd.com/gpu=8"]'], {"amd.com/gpu": "8"}),
        (['cluster.kubernetes.resources=["nvidia.com/gpu=0", "cpu=4"]'], {"cpu": "4"}),
    ],
)
def test_a_pod_asks_for_the_gpus_of_its_node_unless_a_resource_names_them(overrides, asked):
    _, job_set = submitted(*overrides)
    assert pod_of(job_set)["containers"][0]["resources"]["limits"] == asked


def test_the_files_of_the_run_are_mounted_where_the_command_reads_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_loss.py").write_text("def smooth(logits, targets):\n\treturn 0\n")
    config, job_set = submitted("train.loss=code/my_loss.py:smooth")
    pod = pod_of(job_set)
    items = {one["name"]: one for one in pod["volumes"]}["files"]["configMap"]["items"]
    mounted = {one["path"]: config["data"][one["key"]] for one in items}
    assert mounted["code/my_loss.py"] == (tmp_path / "code" / "my_loss.py").read_text()
    assert 'loss = "code/my_loss.py:smooth"' in mounted["run.toml"]
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in config["data"])
    assert pod["containers"][0]["args"][-1] == "/etc/penstock/run.toml"


@given(st.from_regex(NAME, fullmatch=True))
def test_any_name_of_a_run_is_a_name_in_kubernetes(name):
    found = object_name(name)
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", found)
    assert len(f"{found}-node-99999-0-abcde") <= 63


def test_two_runs_never_share_a_name_in_kubernetes():
    names = ["a.b", "a-b", "a_b", "A-b", "9", "run-9", "x" * 50, "x" * 51, "x" * 40]
    assert len({object_name(name) for name in names}) == len(names)
    assert object_name("code-1b") == "code-1b"


class Pod:
    """The command of a container, started as a kubelet does, with another program inside."""

    def __init__(self, tmp_path: Path, program: str) -> None:
        self.ready = tmp_path / "ready"
        (container,) = pod_of(submitted()[1])["containers"]
        inside = ["sh", "-c", program.replace("READY", str(self.ready))]
        self.process = subprocess.Popen([*container["command"], *inside])

    def told_to_go(self) -> int:
        """Send the signal of a kubelet once the program is there; return the exit code."""
        while not self.ready.exists():
            time.sleep(0.01)
        os.kill(self.process.pid, signal.SIGTERM)
        return self.process.wait(30)


SAVES = "trap 'sleep 0.2; exit 0' TERM; touch READY; while :; do sleep 0.05; done"
FAILS = "trap 'exit 1' TERM; touch READY; while :; do sleep 0.05; done"


@pytest.mark.parametrize(("program", "code"), [(SAVES, 143), (FAILS, 1)])
def test_a_pod_that_is_told_to_go_does_not_count_as_done(tmp_path, program, code):
    assert Pod(tmp_path, program).told_to_go() == code


@pytest.mark.parametrize("code", [0, 1, 2, 137])
def test_a_pod_that_ends_by_itself_exits_as_penstock_does(tmp_path, code):
    assert Pod(tmp_path, f"exit {code}").process.wait(30) == code


def test_what_is_carried_is_the_run(tmp_path):
    job = job_of("kubernetes", f"dir={tmp_path}")
    assert 'dir = "runs"' in carry(job.run).files["run.toml"]
