"""Spot life: two hosts in network namespaces, a real S3 server between them, and hosts that go.

Each host has a disk and a memory of its own. Run with `make drill-spot`, which needs root and Ceph;
it prints what happened when.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts_lab import Lab
from penstock.drill import audit
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.policy.lease import DEAD_S
from penstock.run.load import load
from penstock.watch.report.screen import summary

pytestmark = [pytest.mark.netns, pytest.mark.timeout(1800)]

SCRIPTS = Path(__file__).parents[2] / "scripts"
STEPS = 500
LAB = f"pst{os.getpid() % 1000}"


def netns(*words: object) -> None:
    subprocess.run([SCRIPTS / "netns.sh", *map(str, words)], check=True)


def inside(host: str) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{LAB}-{host}", "--"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The hosts' network with an S3 server on its switch; what a client finds it by."""
    for needed in ("ip", "iptables", "radosgw"):
        if not shutil.which(needed, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            pytest.fail(f"{needed} is not installed: apt-get install iproute2 iptables radosgw")
    folder = tmp_path_factory.mktemp("ceph") / "c"
    ceph = [*inside("sw"), str(SCRIPTS / "ceph.sh")]
    netns("up", LAB, 2)
    try:
        subprocess.run([*ceph, "start", folder, "10.77.0.254", "9200"], check=True, timeout=120)
        subprocess.run([*ceph, "bucket", folder, "runs"], check=True, timeout=60)
        yield {
            "folder": str(folder),
            "AWS_ENDPOINT_URL": "http://10.77.0.254:9200",
            "AWS_ACCESS_KEY_ID": "penstock",
            "AWS_SECRET_ACCESS_KEY": "penstock-secret",
            "AWS_REGION": "us-east-1",
        }
    finally:
        subprocess.run([*ceph, "stop", folder], check=False, timeout=60)
        netns("down", LAB)


@pytest.fixture
def gateway(store: dict[str, str]) -> Callable[[str], None]:
    """`kill` and `again`: an outage of the store."""

    def do(verb: str) -> None:
        command = [*inside("sw"), str(SCRIPTS / "ceph.sh"), verb, store["folder"]]
        subprocess.run(command, check=True, timeout=120)

    return do


def fields(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "model.hidden": 64,
        "model.ffn": 256,
        "model.layers": 4,
        "data.sequence": 64,
        "train.batch_tokens": 4096,
        "train.steps": STEPS,
        "train.precision": "fp32",
        "evaluate.every": "never",
        "cluster.nodes": 2,
        "cluster.accelerators": 1,
        "cluster.wait": "2 min",
        "guard.timeout": "2 min",
        "guard.checkpoint": "100 steps",
        "guard.fast": "10 steps",
        "guard.durable": "s3://runs",
    }


def lab_of(folder: Path, file: Path, store: dict[str, str]) -> Lab:
    """Hosts "1" and "2". They are told no addresses: each has one interface that others see."""
    name = load(file).name
    return Lab(folder, file, name, True, inside, address=lambda node: "", env=store)


@pytest.fixture
def start_with(
    tmp_path: Path, run_file: Callable[..., Path], store: dict[str, str]
) -> Iterator[Callable[[str], Lab]]:
    labs: list[Lab] = []

    def make(name: str) -> Lab:
        folder = tmp_path / name
        folder.mkdir()
        labs.append(lab_of(folder, run_file(**fields(name)), store))
        for host in "12":
            labs[-1].run_folder(host).audit.mkdir(parents=True)
        return labs[-1]

    yield make
    for lab in labs:
        lab.close()


def used(lab: Lab) -> audit.SampleCounts:
    """From what the ranks of both hosts wrote down."""
    folders = [lab.run_folder(host).audit for host in "12"] + lab.forgotten
    lines = [line for folder in folders for line in audit.read(folder)]
    lines.sort(key=lambda line: (line.attempt, line.rank))
    return audit.count_samples(audit.final_uses(lines), STEPS, 4096 // 64)


def resumed(lab: Lab, attempt: int) -> str:
    """The tier that an attempt went on from."""
    for host in "12":
        for file in journal_files(lab.run_folder(host).journal, "events"):
            for event in read_events(file.path):
                if event.attempt == attempt and event.kind == "resumed":
                    return str(event.payload["tier"])
    return ""


class Story:
    """What was done to the hosts, and how long it took until a new step was made."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        print(f"\n{'what happened':46} {'at step':>8} {'next new step':>14} {'steps redone':>13}")

    def begin(self, what: str) -> None:
        self.what, self.t = what, time.time()

    def end(self, attempt: int) -> int:
        """In `attempt` the run gets further than it was; the steps that it made again."""
        done = max(step for number, _, step in self.lab.curve() if number < attempt)
        self.lab.until_step(done + 3)
        own = [(t, step) for number, t, step in self.lab.curve() if number == attempt]
        next_s = min(t for t, step in own if step > done) - self.t
        redone = done + 1 - min(step for _, step in own)
        print(f"{self.what:46} {done:8} {next_s:12.1f} s {redone:13}", flush=True)
        return redone


def test_hosts_that_come_and_go_lose_no_sample(start_with: Callable[[str], Lab]) -> None:
    calm = start_with("calm")
    for host in "12":
        calm.start(host)
    assert [calm.ends(host) for host in "12"] == [0, 0], str(calm)
    wanted = summary(calm.run_folder("1"))
    assert used(calm) == audit.SampleCounts(0, 0)

    lab = start_with("spot")
    for host in "12":
        lab.start(host)
    attempt = lab.until_on("1", "2")
    head = lab.leader()
    other = "2" if head == "1" else "1"
    lab.until_step(lab.reached() + 20)
    story, came = Story(lab), len(lab.events("host_came"))

    # With notice: it saves and leaves, and nothing is done twice.
    story.begin("a host is told to go")
    lab.signal(other, signal.SIGTERM)
    attempt = lab.until_on(head, after=attempt)
    assert story.end(attempt) == 0
    assert lab.ends(other) == 0
    assert not lab.events("fault")

    lab.start(other)
    lab.until(lambda: len(lab.events("host_came")) > came, "it comes back")
    story.begin("a host comes back")
    attempt = lab.until_on("1", "2", after=attempt)
    assert story.end(attempt) == 0
    lab.until_step(lab.reached() + 20)

    # Without notice, and it is the one that leads: the other takes over, from its own memory.
    story.begin("the host that leads is lost")
    netns("cut", LAB, head)
    lab.kill(head)
    attempt = lab.until_on(other, after=attempt)
    assert story.end(attempt) <= 25  # two fast copies, and what is done while one is on its way
    assert resumed(lab, attempt) == "memory", str(lab)

    # Back as a new machine: nothing in memory, nothing on its disk.
    netns("mend", LAB, head)
    lab.forget(head)
    came = len(lab.events("host_came"))
    lab.start(head)
    lab.until(lambda: len(lab.events("host_came")) > came, "it comes back")
    story.begin("a new host takes its place")
    attempt = lab.until_on("1", "2", after=attempt)
    assert story.end(attempt) == 0
    assert [lab.ends(host) for host in "12"] == [0, 0], str(lab)

    for host in "12":  # the whole run is told on either
        found = summary(lab.run_folder(host))
        assert found["status"] == "done"
        assert found["steps"] == STEPS
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-3)
    assert used(lab) == audit.SampleCounts(lost=0, doubled=0)
    both = f"loss {found['loss']:.6f}, undisturbed {wanted['loss']:.6f}"
    print(f"{both}; samples lost or doubled: 0 of {STEPS * 4096 // 64}")


def test_while_all_hosts_are_there_the_store_may_be_away(
    start_with: Callable[[str], Lab], gateway: Callable[[str], None]
) -> None:
    lab = start_with("away")
    for host in "12":
        lab.start(host)
    attempt = lab.until_on("1", "2")
    gateway("kill")
    began = time.monotonic()
    lab.until_step(lab.reached() + 20)
    lab.until(lambda: time.monotonic() - began > 2 * DEAD_S, "time passes")
    gateway("again")
    assert [lab.ends(host) for host in "12"] == [0, 0], str(lab)
    assert [e.attempt for e in lab.events("mustered")] == [attempt]  # nothing was ended by it
    assert not lab.events("lease_lost")
    assert used(lab) == audit.SampleCounts(lost=0, doubled=0)


def test_a_host_that_is_cut_off_ends_its_ranks_before_others_go_on(
    start_with: Callable[[str], Lab],
) -> None:
    lab = start_with("cut")
    for host in "12":
        lab.start(host)
    attempt = lab.until_on("1", "2")
    head = lab.leader()
    other = "2" if head == "1" else "1"

    netns("cut", LAB, head)  # from the store and from the other host
    attempt = lab.until_on(other, after=attempt)
    assert lab.leader() == other
    lab.until(lambda: "its ranks were ended" in lab.said(head), "the other one knows")
    netns("mend", LAB, head)
    attempt = lab.until_on("1", "2", after=attempt)  # it follows now

    netns("part", LAB, 1, 2)  # both reach the store
    attempt = lab.until_on(other, after=attempt)
    assert lab.leader() == other
    netns("meet", LAB, 1, 2)
    lab.until_on("1", "2", after=attempt)
    assert [lab.ends(host) for host in "12"] == [0, 0], str(lab)
    assert used(lab) == audit.SampleCounts(lost=0, doubled=0)
