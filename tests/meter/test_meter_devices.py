"""What the machine has, and how many ranks `cluster.accelerators` means on it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.meter import devices
from penstock.meter.devices import Devices, cpu_cores, find

H100 = Devices("cuda", 8, "NVIDIA H100 80GB HBM3", "13.0", 80 << 30, ("8d6b",) * 8)


def cpu(cores: int) -> Devices:
    return Devices("cpu", cores, "", "", 16 << 30)


def test_in_words() -> None:
    assert str(H100) == "8 × H100 80GB HBM3, CUDA 13.0"
    assert str(cpu(2)) == "2 CPU cores"
    assert str(cpu(1)) == "1 CPU core"


def test_all_is_every_accelerator_and_at_most_four_ranks_on_a_cpu() -> None:
    assert H100.ranks("all") == 8
    assert [cpu(cores).ranks("all") for cores in (1, 2, 4, 64)] == [1, 2, 4, 4]


def test_more_accelerators_than_there_are_is_refused_with_what_there_is() -> None:
    assert H100.ranks(3) == 3
    with pytest.raises(PenstockError, match=r"accelerators = 9: .*8 × H100.*ask for 8 or fewer"):
        H100.ranks(9)


def test_a_cpu_may_have_more_ranks_than_cores() -> None:
    """Slow, but how a layout is tried out without the machine for it."""
    assert cpu(2).ranks(8) == 8


@given(st.integers(1, 256), st.integers(1, 64), st.sampled_from([H100, cpu(4)]))
def test_threads_of_all_ranks_fit_the_cores(cores: int, ranks: int, machine: Devices) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "cpu_cores", lambda: cores)
        threads = machine.threads(ranks)
    assert threads >= 1
    assert threads == 1 or threads * ranks <= cores
    if machine.kind == "cuda":
        assert threads <= 8  # the rest is for reading data
    else:
        assert (threads + 1) * ranks > cores  # no core is left idle by rounding twice


def test_cores_are_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert cpu_cores() == 2
    monkeypatch.delattr(devices.os, "sched_getaffinity")
    monkeypatch.setattr(devices.os, "cpu_count", lambda: None)
    assert cpu_cores() == 1


def test_find_on_a_machine_without_and_with_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    here = find()
    assert (here.kind, here.count, here.name) == ("cpu", cpu_cores(), "")
    assert here.memory_bytes > 256 << 20

    class Properties:
        name, total_memory, uuid = "NVIDIA H100 80GB HBM3", 80 << 30, "8d6b"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert find() == H100


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({}, 8, None),
        ({"cpu.max": "150000 100000\n", "memory.max": "1048576\n"}, 2, 1 << 20),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, 8, None),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3, None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8, None),
        ({"memory/memory.limit_in_bytes": "4096"}, 8, 4096),
    ],
)
def test_the_limits_of_a_container_count(
    files: dict[str, str],
    cores: int,
    memory: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(devices, "CGROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert cpu_cores() == cores
    if memory is not None:
        assert devices.host_memory_bytes() == memory
    else:
        assert devices.host_memory_bytes() > 1 << 26
