"""Bad input for Kubernetes: refused before anything is submitted, with field, value and fix."""

import pytest

from engine_runs import job_of
from penstock.errors import PenstockError
from penstock.launch.engines import kubernetes
from penstock.launch.engines.kubernetes import Kubernetes
from penstock.launch.prepare import nodes
from penstock.meter.devices import Devices

SECTION = "cluster.kubernetes"
GPUS = f"{SECTION}.resources"

REFUSED = [
    ([f"{SECTION}.image=null"], f"{SECTION}.image: missing; build one from the Containerfile"),
    ([f"{SECTION}.image=a b"], f'{SECTION}.image = "a b": no name of an image'),
    (["guard.durable=null"], "guard.durable: missing, and a pod loses its disk"),
    (["guard.durable=/data/runs"], 'guard.durable = "/data/runs": a folder of this machine'),
    (
        ["guard.durable=/data/runs", f"{SECTION}.claim=shared"],
        "which pods do not see; leave it out: runs are on the claim",
    ),
    (["cluster.use=here"], 'cluster.use = "here": a machine without GPUs, by which the pods'),
    (
        ["cluster.use=here", f'{GPUS}=["nvidia.com/gpu=8"]'],
        'cluster.use = "here": a machine without GPUs, by which the pods',
    ),
    (["cluster.use=HH100"], 'cluster.use = "HH100": '),
    (["cluster.accelerators=9"], "cluster.accelerators = 9: a node has 8 of them; write"),
    (
        [f'{GPUS}=["nvidia.com/gpu=4"]'],
        'cluster.kubernetes.resources: "nvidia.com/gpu=4", but a node is planned with 8',
    ),
    ([f'{GPUS}=["memory"]'], f'{GPUS}: "memory": no resource; write "rdma/ib=8"'),
    ([f'{GPUS}=["memory=lots"]'], f'{GPUS}: "memory=lots": no resource'),
    ([f'{GPUS}=["memory=-4Gi"]'], f'{GPUS}: "memory=-4Gi": no resource'),
    ([f'{GPUS}=["rdma/ib=1.5"]'], f'{GPUS}: "rdma/ib=1.5": a whole number of a device'),
    ([f'{GPUS}=["cpu=1", "cpu=2"]'], "cpu stands there twice"),
    ([f'{SECTION}.tolerations=["a:Never"]'], 'tolerations: "a:Never": no effect "Never"; write'),
    ([f'{SECTION}.tolerations=["=b:NoSchedule"]'], '"=b:NoSchedule": no taint; write'),
    ([f'{SECTION}.tolerations=["a b"]'], '"a b": no taint; write "KEY=VALUE:EFFECT"'),
    ([f'{SECTION}.node_selector=["pool"]'], 'node_selector: "pool": no label; write'),
    ([f"{SECTION}.namespace=My_Lab"], f'{SECTION}.namespace = "My_Lab": no name in Kubernetes'),
    ([f'{SECTION}.secrets=["Bucket Key"]'], f'{SECTION}.secrets = "Bucket Key": no name'),
    ([f"{SECTION}.claim=a/b"], f'{SECTION}.claim = "a/b": no name in Kubernetes'),
    (
        ["data.dataset=pages"],
        'data.dataset = "pages": the nodes do not see this machine; `penstock',
    ),
    (["data.dataset=/data/pages"], "write cluster.kubernetes.claim with a volume that has it"),
    (["data.dataset=file:///data/pages"], "the nodes do not see this machine"),
    (
        ["data.dataset=/data/pages", f"{SECTION}.claim=shared"],
        'data.dataset = "/data/pages": not on the volume of the nodes, which is /work there',
    ),
    (["log.webhook=https://hooks.example/s3cret"], "log.webhook: holds a secret"),
    (["train.loss=gone.py:smooth"], 'train.loss = "gone.py:smooth": gone.py cannot be sent'),
]


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this file asks a cluster that is configured here, or the GPUs of this machine."""

    def refuse(run):
        raise kubernetes.NoCluster("none")

    monkeypatch.setattr(kubernetes, "_cluster", refuse)
    monkeypatch.setattr(nodes, "find_devices", lambda: Devices("cpu", 2, "", "", 2**30))


@pytest.mark.parametrize(("overrides", "words"), REFUSED)
def test_bad_input_is_refused_with_field_value_and_fix(overrides, words):
    (line,) = Kubernetes().refusals(job_of("kubernetes", *overrides))
    assert words in line
    assert "; " in line or "Did you mean" in line


def test_all_that_is_wrong_is_said_at_once():
    overrides = ["guard.durable=null", f"{SECTION}.image=null", f'{GPUS}=["x"]']
    assert len(Kubernetes().refusals(job_of("kubernetes", *overrides))) == 3


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["guard.durable=null", f"{SECTION}.claim=shared", "data.dataset=pages@12"],
        [f"{SECTION}.claim=shared", "data.dataset=/work/pages"],
        ["cluster.accelerators=4", f'{GPUS}=["nvidia.com/gpu=4"]'],
        ["cluster.use=here", f'{GPUS}=["nvidia.com/gpu=0"]'],
        ["log.webhook=$HOOK"],
        ["data.dataset=gs://bucket/datasets/pages@12"],
        ["data.dataset=hf:org/name"],
    ],
)
def test_what_can_run_is_not_refused(overrides):
    assert Kubernetes().refusals(job_of("kubernetes", *overrides)) == []


def test_a_secret_never_stands_in_what_is_shown_of_a_refusal():
    lines = Kubernetes().refusals(job_of("kubernetes", "log.webhook=https://hooks.example/s3cret"))
    assert "s3cret" not in "\n".join(lines)


def test_code_that_is_too_large_to_travel_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "big.py").write_text("# " + "x" * 1_000_000 + "\n")
    (line,) = Kubernetes().refusals(job_of("kubernetes", "train.loss=big.py:smooth"))
    assert "big.py, run.toml: 1,00" in line
    assert "put large code into the image" in line


def test_without_a_client_the_way_by_hand_is_told(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "kubernetes", None)  # cannot be imported
    with pytest.raises(PenstockError, match=r"pip install 'penstock\[kubernetes\]'.*kubectl apply"):
        Kubernetes().submit(job_of("kubernetes"))
