"""A real, quick probe of this machine's CPUs, and the parts that it stands on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.errors import PenstockError, RunFailed
from penstock.meter import probe, storage
from penstock.meter.inventory import take_inventory
from penstock.meter.probe_list import PRECISIONS, ProbeItem, items
from penstock.plan.hardware.cluster import machine_of
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.step.probed import exchange_s, step_compute_s
from penstock.run.clusters.file import ClusterFile
from penstock.run.clusters.load import load_cluster, save_cluster
from penstock.run.clusters.probe import BY_PRECISION
from penstock.run.clusters.summary import probe_lines
from penstock.run.schema.model import ModelSection


@pytest.fixture(scope="module", params=[60.0, 0.0], ids=["whole", "without time"])
def probed(request: pytest.FixtureRequest) -> ClusterFile:
    """A quick probe with time for all of it, as other tests may run beside it, or for nothing."""
    told: list[str] = []
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    patch = pytest.MonkeyPatch()
    patch.setitem(probe.LIMIT_S, True, request.param)
    try:
        file = probe.probe(lambda what, done, of: told.append(what), quick=True)
    finally:
        patch.undo()
        os.environ.pop("CUDA_VISIBLE_DEVICES")
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
    assert "storage" in told
    assert len(set(told)) > 2
    return file


def test_no_reading_is_missing(probed: ClusterFile) -> None:
    found = probed.probe
    assert found is not None
    # The probe measures whether bf16 is slow here, and then leaves most of it out.
    slow = () if found.attention_s.bf16 else ("bf16",)
    asked = items("cpu", found.ranks, quick=True, slow=slow)
    for precision in PRECISIONS:
        assert getattr(found.matmul_s, precision), precision
        for table in BY_PRECISION:
            there = getattr(getattr(found, table), precision)
            wanted = [i for i in asked if i.table == table and i.precision == precision]
            assert bool(there) == bool(wanted), (table, precision)
    assert found.update_s
    assert found.fresh_bytes_per_s
    assert bool(found.all_reduce_s) == (found.ranks > 1)
    products = [i for i in asked if i.table == "matmul_s" and i.precision == "bf16"]
    assert len(found.matmul_s.bf16) in (1, len(products))
    assert found.seen == take_inventory().fingerprint
    assert found.torch


def test_it_is_a_machine_that_a_step_can_be_planned_on(probed: ClusterFile, tmp_path: Path) -> None:
    save_cluster(probed, tmp_path / "here.toml")
    assert not list(tmp_path.glob(".*"))
    machine = machine_of(load_cluster(tmp_path / "here.toml"))
    shape = ModelSection.model_validate({"preset": "llama-3m"}).shape(4096)
    ranks = machine.per_node
    for precision in PRECISIONS:
        job = Job(shape, 256, 2 * ranks, Layout(ranks, microbatch=2), machine, precision)
        parts = step_compute_s(job)
        assert 1e-3 < sum(parts.values()) < 60
        assert parts["matmul"] > parts["overhead"]
        assert exchange_s(job) > 0 or ranks == 1
    assert machine.sources["matmul_flops"].startswith("measured")


def test_one_screen_says_what_was_found(probed: ClusterFile) -> None:
    text = list(probe_lines(probed))
    assert len(text) <= 20
    for word in ("machine", "matmul", "memory", "storage", "power", "torch"):
        assert any(word in line for line in text), word


def test_a_rank_that_fails_is_told_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        probe, "_environment", lambda *a: os.environ | {"PENSTOCK_PARENT": str(os.getpid())}
    )
    with pytest.raises(RunFailed, match=r"rank 0 ended with: .*KeyError"):
        probe._from_ranks(1, 1, True, lambda what, done, of: None)


def test_a_killed_probe_leaves_no_ranks(tmp_path: Path) -> None:
    code = (
        "from penstock.meter import probe\n"
        "real = probe.subprocess.Popen\n"
        "def popen(command, *a, **k):\n"
        "    p = real(command, *a, **k)\n"
        "    if 'penstock.meter.probe_rank' in command: print(p.pid, flush=True)\n"
        "    return p\n"
        "probe.subprocess.Popen = popen\n"
        "probe._from_ranks(2, 1, False, lambda *a: print('measuring', flush=True))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    first = [parent.stdout.readline().strip() for _ in range(3)]
    assert first[-1] == "measuring"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    ranks = [int(pid) for pid in first[:2]]
    deadline = time.monotonic() + 60
    while any(_alive(pid) for pid in ranks):
        assert time.monotonic() < deadline, "ranks outlived the probe"


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_list_goes_from_small_to_large_and_knows_the_device() -> None:
    one, two = items("cpu", 1), items("cpu", 2)
    assert ProbeItem("all_reduce_s", (4096,)) in two
    assert not [i for i in one if i.table == "all_reduce_s"]
    products = [i.at[0] * i.at[1] * i.at[2] for i in two if i.table == "matmul_s"]
    assert products == sorted(products)
    assert not [i for i in two if i.precision == "fp8"]
    gpu = items("cuda", 1, fp8=True)
    assert [i for i in gpu if i.precision == "fp8"]
    assert not [i for i in gpu if i.table == "fresh_s"]
    assert len(items("cpu", 2, quick=True)) < len(two) / 2


def test_storage_leaves_nothing_and_names_a_folder_it_cannot_use(tmp_path: Path) -> None:
    rates = storage.measure(tmp_path / "new", 1 << 20)
    assert rates.write_bytes_per_s > 0
    assert rates.read_bytes_per_s > 0
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError, match="PENSTOCK_HOME"):
        storage.measure(tmp_path / "file", 1 << 20)
