"""Runs on a network with a stranger, in network namespaces: nobody joins, nothing is lost.

Run with `make test-hostile`, which needs root and iproute2. TIMES says how often each attack is
repeated; the figures in docs/security.md are of TIMES=20.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts_lab import Lab
from penstock.drill import audit
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.watch.report.screen import summary

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
TIMES = int(os.environ.get("TIMES", "2"))
LAB = f"psh{os.getpid() % 1000}"
STRANGER = "3"
BATCH = 8


def netns(*words: object) -> None:
    subprocess.run([ROOT / "scripts/netns.sh", *map(str, words)], check=True)


def inside(host: str) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{LAB}-{host}", "--"]


def strange(mode: str, count: int = 0, targets: tuple[str, ...] = ("10.77.0.1", "10.77.0.2")):
    """What a stranger finds."""
    command = [sys.executable, str(Path(__file__).with_name("stranger.py")), mode, str(count)]
    found = subprocess.run(
        [*inside(STRANGER), *command, *targets], capture_output=True, text=True, timeout=600
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def listening(host: str) -> dict[str, str]:
    """Addresses that somebody of a host listens at, and who."""
    lines = subprocess.run(
        [*inside(host), "ss", "-ltnpH"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {line.split()[3]: line.split()[-1] for line in lines}


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    for needed in ("ip", "ss"):
        if not shutil.which(needed, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            pytest.fail(f"{needed} is not installed: apt-get install iproute2")
    netns("up", LAB, 3)
    try:
        yield
    finally:
        netns("down", LAB)


@pytest.fixture
def labs(
    tmp_path: Path, run_file: Callable[..., Path], network: None
) -> Iterator[Callable[..., Lab]]:
    made: list[Lab] = []

    def make(name: str, steps: int, nodes: int = 2, **more: Any) -> Lab:
        folder = tmp_path / name
        folder.mkdir()
        fields = {
            "cluster.nodes": nodes,
            "cluster.accelerators": 1 if nodes > 1 else 2,
            "cluster.wait": "2 min",
            "train.steps": steps,
            "evaluate.every": "never",
            "guard.checkpoint": "200 steps",
            "guard.fast": "5 steps",
            "guard.restarts": 20,
            "guard.durable": str(folder / "durable") if nodes > 1 else None,
            **more,
        }
        lab = Lab(folder, run_file(name, **fields), name, nodes > 1, inside, lambda node: "")
        for host in ("1", "2")[:nodes]:
            lab.run_folder(host).audit.mkdir(parents=True)
        made.append(lab)
        return lab

    yield make
    for lab in made:
        lab.close()


def weights(lab: Lab) -> str:
    return str(summary(lab.run_folder("1"))["weights_hash"])


def samples(lab: Lab, steps: int) -> audit.SampleCounts:
    folders = {lab.run_folder(host).audit for host in lab.hosts}
    lines = [line for folder in sorted(folders) for line in audit.read(folder)]
    lines.sort(key=lambda line: (line.attempt, line.rank))
    return audit.count_samples(audit.final_uses(lines), steps, BATCH)


def a_rank(lab: Lab, host: str) -> int:
    """The process of the rank that started last on a host."""
    pids = []
    for file in journal_files(lab.run_folder(host).journal, "events"):
        pids += [
            (e.t, int(str(e.payload["pid"]))) for e in read_events(file.path) if e.kind == "start"
        ]
    return max(pids)[1]


def kill_a_rank(lab: Lab, host: str) -> None:
    with_ranks = a_rank(lab, host)
    if Path(f"/proc/{with_ranks}").exists():
        os.kill(with_ranks, signal.SIGKILL)


def gaps(lab: Lab, since: float, until: float) -> float:
    """The longest time between two steps of one attempt, in a span of time."""
    longest, last = 0.0, dict[int, float]()
    for attempt, t, _ in lab.curve():
        if since <= t <= until and attempt in last:
            longest = max(longest, t - last[attempt])
        last[attempt] = t
    return longest


def test_a_run_on_one_host_opens_nothing_to_the_network(labs: Callable[..., Lab]) -> None:
    lab = labs("one", steps=100_000, nodes=1)
    lab.start("1")
    lab.until_step(20)
    there = listening("1")
    assert there  # the store at least
    assert [address for address in there if not address.startswith("127.")] == []
    assert strange("scan", targets=("10.77.0.1",))["ports"] == {"10.77.0.1": []}
    lab.signal("1", signal.SIGINT)
    assert lab.ends("1") == 0


def test_hosts_open_one_port_each_and_it_wants_a_certificate(labs: Callable[..., Lab]) -> None:
    lab = labs("two", steps=100_000)
    for host in "12":
        lab.start(host)
    lab.until_on("1", "2")
    lab.until_step(20)
    found = strange("scan")["ports"]
    for host in "12":
        address = f"10.77.0.{host}"
        there = {a: who for a, who in listening(host).items() if not a.startswith("127.")}
        (only,) = there
        assert only == f"{address}:{found[address][0]}"
        assert len(found[address]) == 1
        pid = int(there[only].split("pid=")[1].split(",")[0])
        assert "penstock.launch.hosts.tunnel_process" in Path(f"/proc/{pid}/cmdline").read_text()
    print(f"\nopen to the network: {found}")
    lab.signal("1", signal.SIGINT)
    assert [lab.ends(host) for host in "12"] == [0, 0]


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, str]:
    return {}


STEPS = 1000 + 800 * TIMES


@pytest.mark.parametrize("mode", ["store", "gloo", "host"])
def test_no_stranger_joins_and_the_run_is_unharmed(
    labs: Callable[..., Lab], undisturbed: dict[int, str], mode: str
) -> None:
    if STEPS not in undisturbed:
        quiet = labs("quiet", steps=STEPS)
        for host in "12":
            quiet.start(host)
        assert [quiet.ends(host) for host in "12"] == [0, 0], str(quiet)
        undisturbed[STEPS] = weights(quiet)
    lab = labs(mode, steps=STEPS)
    for host in "12":
        lab.start(host)
    lab.until_step(20)
    attacks, found = 0, list[str]()
    while any(p.poll() is None for p in lab.hosts.values()):
        began = lab.reached()
        killer = threading.Timer(1.0, kill_a_rank, (lab, "12"[attacks % 2]))
        if attacks < TIMES:
            killer.start()  # a restart: ranks meet anew while the stranger waits for them
        found += strange(mode)["found"]
        killer.join() if attacks < TIMES else None
        attacks += 1
        assert attacks < 50 * TIMES or lab.reached() > began, f"no progress\n{lab}"
    assert found == []
    assert [lab.ends(host) for host in "12"] == [0, 0], str(lab)
    assert weights(lab) == undisturbed[STEPS]
    counted = samples(lab, STEPS)
    assert (counted.lost, counted.doubled) == (0, 0)
    assert attacks >= TIMES
    nodes = {str(e.payload["node"]) for e in lab.events("host_came")}
    assert nodes <= {"1", "2"}
    print(f"\n{mode}: {attacks} attacks, {len(lab.events('fault'))} restarts, same weights")


def test_hostile_handshakes_and_port_scans_delay_no_step(labs: Callable[..., Lab]) -> None:
    lab = labs("flood", steps=100_000)
    for host in "12":
        lab.start(host)
    lab.until_on("1", "2")
    lab.until_step(50)
    lines = []
    for mode, count in (("flood", 500 * TIMES), ("reset", 50 * TIMES)):
        for kill in (False, True):
            if kill:
                before = lab.until_on("1", "2")
                kill_a_rank(lab, "2")
                lab.until_on("1", "2", after=before)
            t = time.time()
            told = strange(mode, count)
            longest = gaps(lab, t, time.time())
            lines.append(f"{mode} {count} in {told['seconds']} s: longest step {longest:.2f} s")
            assert longest < 2.0, lines
    print("\n" + "\n".join(lines))
    assert lab.events("strangers")
    lab.signal("1", signal.SIGINT)
    assert [lab.ends(host) for host in "12"] == [0, 0]


def test_a_host_joins_while_strangers_knock(labs: Callable[..., Lab]) -> None:
    lab = labs("late", steps=100_000, **{"cluster.wait": "1 s"})
    lab.start("1")
    lab.until_step(20)
    flood = threading.Thread(target=strange, args=("flood", 2000), daemon=True)
    flood.start()
    lab.start("2")
    lab.until_on("1", "2")
    flood.join()
    lab.signal("1", signal.SIGINT)
    assert [lab.ends(host) for host in "12"] == [0, 0]


def test_no_byte_on_the_wire_and_no_open_file_tells_a_secret(
    labs: Callable[..., Lab], tmp_path: Path
) -> None:
    """Every packet of the switch and every file that others may read."""
    lab = labs("wire", steps=400, **{"log.webhook": "http://127.0.0.1:9/T0KEN-of-the-webhook"})
    heard = tmp_path / "wire.bin"
    listen = subprocess.Popen(
        [*inside("sw"), sys.executable, str(Path(__file__).with_name("sniffer.py")), str(heard)]
    )
    try:
        wait_for(heard)
        for host in "12":
            lab.start(host)
        lab.until_step(100)
        kill_a_rank(lab, "2")
        assert [lab.ends(host) for host in "12"] == [0, 0], str(lab)
    finally:
        listen.terminate()
        listen.wait()
    secret = next((tmp_path / "wire" / "durable").rglob("secret/000001")).read_bytes()
    wire = heard.read_bytes()
    assert len(wire) > 1_000_000
    for planted in (secret, b"T0KEN-of-the-webhook", b"PENSTOCK_", b"attempt-"):
        assert planted not in wire
    told = []
    for path in (tmp_path / "wire").rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o077:
            content = path.read_bytes()
            told += [path for word in (secret, b"T0KEN-of-the-webhook") if word in content]
    assert told == []


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)
