"""A real API server that knows JobSet. No pod runs: controller and kubelets are played."""

import copy
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[1] / "scripts" / "kube_apiserver.sh"
PROGRAMS = Path(os.environ.get("KUBE_SERVER", Path.home() / ".cache" / "penstock-kube"))
has_server = (PROGRAMS / "kube-apiserver").exists()
Table = dict[str, Any]


@contextmanager
def serving(folder: Path) -> Iterator[Path]:
    """Start a server; yield its kubeconfig."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = min(free.getsockname()[1], 65000)
    subprocess.run([SCRIPT, "start", folder, str(port)], check=True, timeout=200)
    try:
        yield folder / "kubeconfig"
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=True)


class Kubectl:
    """The cluster as kubectl sees it."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def __call__(self, *words: str, given: str | None = None) -> str:
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, kind: str, name: str) -> Table:
        found: Table = json.loads(self("get", kind, name, "-o", "json"))
        return found

    def names(self, kind: str) -> set[str]:
        return {word.partition("/")[2] for word in self("get", kind, "-o", "name").split()}

    def apply(self, *objects: Table) -> None:
        for one in objects:
            self("apply", "-f", "-", given=json.dumps(one))


def job_set_crd() -> Table:
    """Return JobSet's definition, with the schema of its models; any template of a Job goes."""
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set_spec import JobsetV1alpha2JobSetSpec

    schema = JobsetV1alpha2JobSetSpec.model_json_schema(by_alias=True)
    spec = _structural(schema, schema.get("$defs", {}))
    open_ = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1alpha2",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": open_}}
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "jobsets.jobset.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a copy for tests"},
        },
        "spec": {
            "group": "jobset.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "jobsets", "singular": "jobset", "kind": "JobSet"},
            "versions": [version],
        },
    }


def _structural(schema: Table, defs: Table) -> Table:
    """Return the part of a JSON schema that a definition may have, without references."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if not name.startswith("Jobset"):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        return _structural(defs[name], defs)
    if "anyOf" in schema:
        return _structural(next(one for one in schema["anyOf"] if one != {"type": "null"}), defs)
    found: Table = {"type": schema["type"]}
    if "properties" in schema:
        inner = schema["properties"]
        found["properties"] = {name: _structural(one, defs) for name, one in inner.items()}
        found["required"] = schema.get("required", [])
    if "items" in schema:
        found["items"] = _structural(schema["items"], defs)
    return found


class Controllers:
    """The JobSet controller and the kubelets, played: they make pods and set their state."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl

    def make_pods(self, name: str, mark: str = "abcde", only: int | None = None) -> list[str]:
        """Create the pods of a JobSet, owned by it; `only` is the one Job that gets a pod."""
        job_set = self.kubectl.get("jobset", name)
        (jobs,) = job_set["spec"]["replicatedJobs"]
        names = []
        for index in range(jobs["replicas"]) if only is None else [only]:
            pod = copy.deepcopy(jobs["template"]["spec"]["template"])
            pod["metadata"]["name"] = f"{name}-node-{index}-0-{mark}"
            pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = name
            owner = {key: job_set["metadata"][key] for key in ("name", "uid")}
            owner |= {"apiVersion": job_set["apiVersion"], "kind": "JobSet"}
            pod["metadata"]["ownerReferences"] = [owner | {"blockOwnerDeletion": True}]
            self.kubectl(
                "create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "Pod"} | pod)
            )
            names.append(pod["metadata"]["name"])
        return names

    def bind(self, pod: str, machine: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": machine}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod},
            "target": target,
        }
        path = f"/api/v1/namespaces/default/pods/{pod}/binding"
        self.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(binding))

    def set_status(self, kind: str, name: str, status: Table) -> None:
        plural = {"pod": "api/v1", "jobset": "apis/jobset.x-k8s.io/v1alpha2"}[kind]
        path = f"/{plural}/namespaces/default/{kind}s/{name}/status"
        found = self.kubectl.get(kind, name) | {"status": status}
        self.kubectl("replace", "--raw", path, "-f", "-", given=json.dumps(found))

    def end_pods(self, until: Callable[[], bool]) -> None:
        """End every pod that is told to go, as kubelets do, until there is nothing left to do."""
        deadline = time.monotonic() + 60
        while not until() and time.monotonic() < deadline:
            pods = json.loads(self.kubectl("get", "pods", "-o", "json"))["items"]
            for pod in pods:
                if "deletionTimestamp" in pod["metadata"]:
                    name = pod["metadata"]["name"]
                    self.kubectl(
                        "delete", "pod", name, "--force", "--ignore-not-found", "--wait=false"
                    )
            time.sleep(0.2)


class Kubelet:
    """Pods as processes of this machine: a pod's own command, files and variables; no container.

    `folder` stands for the volumes: what pods know as /work is one folder for all of them.
    """

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        self.kubectl, self.folder = kubectl, folder
        self.started: list[subprocess.Popen[bytes]] = []
        self.paths = {"/work": str(folder / "work"), "/etc/penstock": str(folder / "files")}
        (folder / "work").mkdir(parents=True)
        (folder / "bin").mkdir()
        program = folder / "bin" / "penstock"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock "$@"\n')
        program.chmod(0o755)

    def start(self, pod: str) -> "subprocess.Popen[bytes]":
        """Start the container of a pod that the server has."""
        found = self.kubectl.get("pod", pod)
        (container,) = found["spec"]["containers"]
        self._mount(found["spec"]["volumes"])
        env = {one["name"]: self._here(one.get("value", pod)) for one in container["env"]}
        env |= {"PENSTOCK_MEMORY": str(self.folder / pod), "PENSTOCK_ADDRESS": "127.0.0.1"}
        env["PATH"] = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        command = [self._here(word) for word in (*container["command"], *container["args"])]
        (self.folder / pod).mkdir(mode=0o700)
        with (self.folder / f"{pod}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self._here(container["workingDir"]),
                env=os.environ | env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def close(self) -> None:
        """End what a failed test left: every process of a pod's session."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(60)

    def probe(self, pod: str, kind: str) -> int:
        """Run a probe of a pod; return its exit code."""
        (container,) = self.kubectl.get("pod", pod)["spec"]["containers"]
        command = [self._here(word) for word in container[kind]["exec"]["command"]]
        env = {"PENSTOCK_MEMORY": str(self.folder / pod), "PENSTOCK_NODE": pod}
        return subprocess.run([sys.executable, *command[1:]], env=os.environ | env).returncode

    def _here(self, word: str) -> str:
        for there, here in self.paths.items():
            word = word.replace(there, here)
        return word

    def _mount(self, volumes: list[Table]) -> None:
        (files,) = [one["configMap"] for one in volumes if "configMap" in one]
        data = self.kubectl.get("configmap", files["name"])["data"]
        shutil.rmtree(self.folder / "files", ignore_errors=True)
        for item in files["items"]:
            path = self.folder / "files" / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(data[item["key"]])
