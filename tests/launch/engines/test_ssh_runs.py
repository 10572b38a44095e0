"""Runs on hosts behind real sshd: one is killed, all are cancelled, bad ones are refused.

Run with `make test-ssh`, which needs root, openssh-server and iproute2.
"""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.launch.doctor.probe_nodes import BETWEEN
from penstock.ledger.journal.read import read_curve, read_events
from penstock.ledger.journal.records import SUPERVISOR, journal_files
from penstock.run import toml
from penstock.run.clusters.load import load_cluster
from penstock.run.folder import RunFolder
from ssh_lab import FAKETIME, SshLab, lab_or_skip

pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE_S = 600.0  # machines are shared
STEPS = 300
STARTED: list[subprocess.Popen[str]] = []
Files = Callable[..., Path]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, home: Path, tiny: str) -> Iterator[SshLab]:
    with lab_or_skip(tmp_path_factory.mktemp("ssh-runs"), hosts=3) as lab:
        lab.env()  # makes the home of the user's machine
        for place in (*map(lab.home, lab.hosts), lab.folder / "head-home"):
            shutil.copytree(home / "datasets", place / "datasets")
        yield lab


@pytest.fixture
def write(lab: SshLab, run_file: Files) -> Callable[..., Path]:
    """A run file for the hosts of the lab, which share the folder of runs."""

    def make(name: str, hosts: tuple[str, ...] = ("h1", "h2", "h3"), **fields: Any) -> Path:
        section = {f"cluster.ssh.{k}": v for k, v in lab.section(*hosts).items()}
        values = {
            "cluster.launcher": "ssh",
            "cluster.nodes": 2,
            "cluster.accelerators": 1,
            "cluster.wait": "60 s",
            "train.steps": STEPS,
            "evaluate.every": "never",
            "guard.checkpoint": "50 steps",
            **section,
            **fields,
        }
        made = run_file(name, **values)
        text = made.read_text().replace(str(made.parent / "runs"), "runs")
        file = lab.shared / f"{name}.toml"
        file.write_text(text)
        return file

    return make


def reached(folder: RunFolder) -> int:
    files = journal_files(folder.journal, "curve") if folder.journal.is_dir() else []
    return max((int(p["step"]) for f in files for p in read_curve(f.path)), default=0)


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def _ended_commands() -> Iterator[None]:
    """No command of a test that failed outlives it."""
    yield
    while STARTED:
        command = STARTED.pop()
        if command.poll() is None:
            command.kill()
            command.communicate()


def start(lab: SshLab, *words: str) -> subprocess.Popen[str]:
    command = subprocess.Popen(
        lab.command("train", *words),
        cwd=lab.shared,
        env=lab.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    STARTED.append(command)
    return command


def finish(command: subprocess.Popen[str]) -> str:
    out, err = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0, f"{out}\n{err}"
    return out


def test_a_killed_host_changes_nothing_of_the_result(
    lab: SshLab, write: Callable[..., Path]
) -> None:
    """Two hosts train, a third waits. One is killed: the third takes its place."""
    quiet = json.loads(finish(start(lab, str(write("quiet")), "--json")))
    assert quiet["weights_hash"]
    assert all(lab.of_penstock(host) == {} for host in lab.hosts)

    folder = RunFolder(lab.shared / "runs" / "struck")
    command = start(lab, str(write("struck")), "--json")
    until(lambda: reached(folder) >= 60 or command.poll() is not None, "no step 60")
    victim = training_hosts(folder)[-1]
    lab.kill(victim)
    try:
        struck = json.loads(finish(command))
    finally:
        lab.start_sshd(victim)
    assert struck["status"] == "done"
    assert struck["weights_hash"] == quiet["weights_hash"]
    assert all(lab.of_penstock(host) == {} for host in lab.hosts)


def training_hosts(folder: RunFolder) -> list[str]:
    """The hosts of the last attempt; others wait."""
    events = [e for e in read_events(folder.journal / SUPERVISOR) if e.kind == "mustered"]
    hosts: Any = events[-1].payload["hosts"]
    return [str(host["node"]) for host in hosts]


def test_three_hosts_go_on_as_two(lab: SshLab, write: Callable[..., Path]) -> None:
    folder = RunFolder(lab.shared / "runs" / "three")
    command = start(lab, str(write("three", **{"cluster.nodes": 3})), "--json")
    until(lambda: reached(folder) >= 60 or command.poll() is not None, "no step 60")
    lab.kill("h3")
    try:
        done = json.loads(finish(command))
    finally:
        lab.start_sshd("h3")
    assert done["status"] == "done"
    assert reached(folder) == STEPS


def test_a_closed_terminal_stops_nothing_and_cancel_leaves_no_process(
    lab: SshLab, write: Callable[..., Path]
) -> None:
    folder = RunFolder(lab.shared / "runs" / "long")
    file = write("long", **{"train.steps": 100_000})
    command = start(lab, str(file))
    until(lambda: reached(folder) >= 5 or command.poll() is not None, "no step 5")
    bystander = subprocess.Popen([*lab.inside("h1"), "sleep", "600"])
    try:
        command.send_signal(signal.SIGHUP)
        command.wait(timeout=60)
        at = reached(folder)
        until(lambda: reached(folder) > at + 20, "the run stopped with the terminal")
        status = json.loads(lab.call("status", "long", "--json").stdout)
        assert status["status"] == "running"

        second = lab.call("train", str(file), "train.steps=90000", timeout_s=200)
        assert second.returncode == 2
        assert 'name = "long"' in second.stderr

        stopped = lab.call("stop", "long", "--now")
        assert stopped.returncode == 0, stopped.stderr
        left = {host: lab.of_penstock(host) for host in lab.hosts}
        assert left == {"h1": {}, "h2": {}, "h3": {}}
        assert bystander.poll() is None, "it ended what it had not started"
    finally:
        bystander.kill()
        bystander.wait()


def test_dry_run_shows_what_would_be_submitted_and_starts_nothing(
    lab: SshLab, write: Callable[..., Path]
) -> None:
    shown = lab.call("train", str(write("dry")), "--dry-run")
    assert shown.returncode == 0, shown.stderr
    for host in lab.hosts:
        assert f" -- {host} " in shown.stdout
    assert "StrictHostKeyChecking=yes" in shown.stdout
    assert "StrictHostKeyChecking=no" not in shown.stdout
    assert not (lab.shared / "runs" / "dry" / "submission.json").exists()
    assert all(lab.of_penstock(host) == {} for host in lab.hosts)


def refused(lab: SshLab, file: Path) -> str:
    """What `train` and `check` say, which is the same."""
    said = [lab.call(verb, str(file)) for verb in ("train", "check")]
    assert [one.returncode for one in said] == [2, 2], said
    train, check = (one.stderr[one.stderr.index("error: ") :] for one in said)
    assert train == check
    assert all(lab.of_penstock(host) == {} for host in lab.hosts)
    return train


def test_a_host_key_that_is_not_known_is_refused(lab: SshLab, write: Callable[..., Path]) -> None:
    known = lab.folder / "known_hosts"
    before = known.read_text()
    lab.forget_key("h2")
    try:
        said = refused(lab, write("unknown-key"))
    finally:
        known.write_text(before)
    assert 'cluster.ssh.hosts: "h2": its host key is not known here' in said

    other = (lab.folder / "key.pub").read_text().split()
    kept = [line for line in before.splitlines() if not line.startswith("h2 ")]
    known.write_text("\n".join([*kept, f"h2 {other[0]} {other[1]}"]) + "\n")
    try:
        said = refused(lab, write("changed-key"))
    finally:
        known.write_text(before)
    assert 'cluster.ssh.hosts: "h2": its host key is another one' in said


def test_no_python_and_no_way_in_are_refused(lab: SshLab, write: Callable[..., Path]) -> None:
    python = lab.own("h3") / "python"
    python.rename(python.with_suffix(".away"))
    try:
        said = refused(lab, write("no-python"))
    finally:
        python.with_suffix(".away").rename(python)
    assert "cluster.ssh.python = " in said
    assert "h3 has no such command" in said

    text = lab.config.read_text()
    key = lab.folder / "strange"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    # ssh adds the keys of its configuration to the one that is named.
    lab.config.write_text(text.replace(f"IdentityFile {lab.folder}/key\n", ""))
    try:
        said = refused(lab, write("strange-key", **{"cluster.ssh.key": str(key)}))
    finally:
        lab.config.write_text(text)
    assert said.count("it refuses the key") == 3

    said = refused(lab, write("more-nodes", **{"cluster.nodes": 4}))
    assert "cluster.nodes = 4: cluster.ssh.hosts has 3" in said


def test_a_host_with_a_wrong_clock_is_left_out(lab: SshLab, write: Callable[..., Path]) -> None:
    if not Path(FAKETIME).exists():
        pytest.skip("libfaketime is not installed: apt-get install faketime")
    lab.write_python("h2", LD_PRELOAD=FAKETIME, FAKETIME="+180s", DONT_FAKE_MONOTONIC="1")
    try:
        file = write("left-out", **{"train.steps": 20})
        done = lab.call("train", str(file))
    finally:
        lab.write_python("h2")
    assert done.returncode == 0, done.stderr
    assert "left out: h2: its clock is 180.0 s ahead" in done.stdout + done.stderr
    submitted = json.loads((lab.shared / "runs" / "left-out" / "submission.json").read_text())
    assert json.loads(submitted["detail"]["section"])["hosts"] == ["h1", "h3"]


def test_hosts_that_share_no_folder_are_refused(lab: SshLab, write: Callable[..., Path]) -> None:
    said = refused(lab, write("apart", **{"cluster.ssh.folder": str(lab.at)}))
    assert "guard.durable: missing" in said
    assert "h1, h2, h3 do not share" in said


def test_a_cluster_file_is_measured_and_trains(lab: SshLab, write: Callable[..., Path]) -> None:
    """The launcher and its settings may stand in the cluster file alone, and stay there."""
    cluster = lab.shared / "lab.toml"
    table = {"launcher": "ssh", "nodes": 2, "ssh": lab.section("h1", "h2")}
    cluster.write_text("\n".join(toml.format_document(table)) + "\n")
    probed = lab.call("probe", "--on", str(cluster), "--quick", "--json")
    assert probed.returncode == 0, probed.stderr
    found = load_cluster(cluster)
    assert (found.launcher, found.nodes) == ("ssh", 2)
    assert list(found.ssh.hosts) == ["h1", "h2"]
    assert found.tier[-1].name == BETWEEN
    assert found.tier[-1].size == 2 * (found.node.accelerators or 1)
    assert found.tier[-1].bandwidth > 1e6

    file = write("by-file", hosts=("h1", "h2"), **{"train.steps": 10})
    table = toml.parse(file.read_text())
    table["cluster"] = {"use": "lab.toml", "accelerators": 1}
    file.write_text("\n".join(toml.format_document(table)) + "\n")
    done = lab.call("train", str(file), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "done"
    assert all(lab.of_penstock(host) == {} for host in lab.hosts)
