"""The doctor on nodes behind real sshd: every planted fault is named, healthy nodes are not.

Run with `make test-ssh`, which needs root, openssh-server, iproute2 and faketime. TIMES says how
often healthy nodes are examined; the figures in docs/log.md are of TIMES=20.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.run import toml
from ssh_lab import FAKETIME, SOURCE, SshLab, lab_or_skip

pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(1800)]

TIMES = int(os.environ.get("TIMES", "2"))
RATE, SLOW_RATE = "1gbit", "40mbit"
BAD = "h3"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, home: Path, tiny: str) -> Iterator[SshLab]:
    with lab_or_skip(tmp_path_factory.mktemp("doctor"), hosts=4) as lab:
        for host in lab.hosts:
            lab.shape(host, RATE)
            shutil.copytree(home / "datasets", lab.home(host) / "datasets")
            (lab.own(host) / "work").mkdir()
        yield lab


@pytest.fixture
def examined(lab: SshLab, run_file: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """What `penstock doctor RUN --on CLUSTER --json` says."""
    file = lab.folder / "cluster.toml"
    table = {
        "launcher": "ssh",
        "nodes": len(lab.hosts),
        "accelerator": {"name": "a core"},
        "node": {"accelerators": 1},
        "tier": [{"name": "switch", "size": len(lab.hosts), "bandwidth": "0.11 GB/s"}],
        "ssh": {**lab.section(), "folder": str(lab.at / "work")},
    }
    file.write_text("\n".join(toml.format_document(table)) + "\n")
    run = run_file("examined", **{"guard.durable": str(lab.shared), "cluster.nodes": 4})

    def examine(*more: str) -> dict[str, Any]:
        words = ("doctor", str(run), "dir=runs", "--on", str(file), "--json", *more)
        done = lab.call(*words)
        assert done.stdout, done.stderr
        said = json.loads(done.stdout)
        assert done.returncode == (0 if said["ok"] else 1), done.stderr
        return dict(said)

    return examine


def named(said: dict[str, Any]) -> list[tuple[str, list[str]]]:
    return [(one["check"], one["nodes"]) for one in said["findings"] if one["level"] == "bad"]


def test_healthy_nodes_pass(lab: SshLab, examined: Callable[..., dict[str, Any]]) -> None:
    took = []
    for _ in range(TIMES):
        said = examined()
        assert named(said) == [], said["findings"]
        checks = {one["check"] for one in said["findings"] if one["level"] == "ok"}
        assert checks >= {"versions", "clocks", "disk", "data", "links"}
        assert checks >= {"accelerators", "collectives", "layouts"}
        took.append(said["took_s"])
    print(f"{TIMES} examinations of 4 healthy nodes, no alarm; seconds: {sorted(took)}")
    assert all(lab.of_penstock(host) == {} for host in lab.hosts)


def other_version(lab: SshLab) -> Callable[[], None]:
    source = lab.own(BAD) / "src"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    face = source / "penstock" / "__init__.py"
    face.write_text(face.read_text().replace('__version__ = "', '__version__ = "0.0.'))
    lab.write_python(BAD, PYTHONPATH=str(lab.at / "src"))
    return lambda: (lab.write_python(BAD), shutil.rmtree(source))[0]


def wrong_clock(lab: SshLab) -> Callable[[], None]:
    if not Path(FAKETIME).exists():
        pytest.skip("libfaketime is not installed: apt-get install faketime")
    lab.write_python(BAD, LD_PRELOAD=FAKETIME, FAKETIME="+180s", DONT_FAKE_MONOTONIC="1")
    return lambda: lab.write_python(BAD)


def full_disk(lab: SshLab) -> Callable[[], None]:
    work = str(lab.at / "work")
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "penstock-test", work]
    subprocess.run([*lab.inside(BAD), *mount], check=True)
    return lambda: subprocess.run([*lab.inside(BAD), "umount", work], check=True)


def slow_link(lab: SshLab) -> Callable[[], None]:
    lab.shape(BAD, SLOW_RATE)
    return lambda: lab.shape(BAD, RATE)


def bad_dataset(lab: SshLab) -> Callable[[], None]:
    shard = next((lab.home(BAD) / "datasets").glob("*/shards/*.bin"))
    before = shard.read_bytes()
    shard.write_bytes(before[:1000] + bytes([before[1000] ^ 1]) + before[1001:])
    return lambda: shard.write_bytes(before)


def wrong_answer(lab: SshLab) -> Callable[[], None]:
    folder = lab.home(BAD) / "doctor" / "traps"
    arm(folder, Failpoint("wrong", "flip", "matmul", rank=0))
    return lambda: shutil.rmtree(folder)


FAULTS = {
    "versions": other_version,
    "clocks": wrong_clock,
    "disk": full_disk,
    "links": slow_link,
    "data": bad_dataset,
    "accelerators": wrong_answer,
}


@pytest.mark.parametrize("check", FAULTS)
def test_a_planted_fault_is_named(
    check: str, lab: SshLab, examined: Callable[..., dict[str, Any]]
) -> None:
    mend = FAULTS[check](lab)
    try:
        said = examined()
    finally:
        mend()
    assert named(said) == [(check, [BAD])], said["findings"]
    assert said["bad_nodes"] == [BAD]
    fault = next(one for one in said["findings"] if one["level"] == "bad")
    assert fault["fix"], "it says what to do"
    print(f"{check}: {fault['words']}; {fault['fix']}")


def test_a_dead_node_is_named_and_the_others_are_examined(
    lab: SshLab, examined: Callable[..., dict[str, Any]]
) -> None:
    lab.kill(BAD)
    try:
        said = examined("--short")
    finally:
        lab.start_sshd(BAD)
    assert named(said) == [("reach", [BAD])], said["findings"]
    links = next(one for one in said["findings"] if one["check"] == "links")
    assert links["words"].startswith("3 measured")
