"""The ssh engine without a server: hosts as written, the words of ssh, processes on a host."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import __version__
from penstock.errors import PenstockError
from penstock.launch.engines.engine import JobPhase, JobSpec
from penstock.launch.engines.ssh import SshEngine, job_state
from penstock.launch.ssh import checks, look, node, setup
from penstock.launch.ssh.hosts import (
    Ssh,
    nodes_of,
    parse_host,
    quoted_path,
    refusal_words,
)
from penstock.run.load import load
from penstock.run.schema.engines import SshSection

NAMES = st.from_regex(r"[a-z0-9_][a-z0-9._-]{0,20}", fullmatch=True)


@given(NAMES, NAMES | st.just(""), st.integers(0, 65535))
def test_a_host_is_parsed_as_it_is_written(name: str, user: str, port: int) -> None:
    written = f"{user}@" * bool(user) + name + f":{port}" * bool(port)
    host = parse_host(written)
    assert (host.name, host.user, host.port) == (name, user, port)
    words = Ssh(SshSection()).command(host, "true")
    assert words[words.index("--") + 1] == host.destination
    assert (["-p", str(port)] == words[words.index("--") - 2 : words.index("--")]) == bool(port)


@given(st.text(max_size=30))
def test_no_text_becomes_an_option_of_ssh(text: str) -> None:
    try:
        host = parse_host(text)
    except PenstockError:
        return
    words = Ssh(SshSection()).command(host, "true")
    assert not host.destination.startswith("-")
    assert words[-2:] == [host.destination, "true"]
    assert words[-3] == "--"


def test_hosts_have_one_name_each() -> None:
    nodes = nodes_of(SshSection(hosts=("a", "me@b", "c:2201", "c:2202", "[::1]:22")))
    assert list(nodes) == ["a", "b", "c-2201", "c-2202", "::1"]
    with pytest.raises(PenstockError, match='"a" stands twice'):
        nodes_of(SshSection(hosts=("a", "a")))


def test_ssh_always_checks_host_keys_and_never_asks() -> None:
    section = SshSection(hosts=("a",), key="~/k", config="c")
    words = Ssh(section).command(parse_host("a"), "true")
    assert "StrictHostKeyChecking=yes" in words
    assert "BatchMode=yes" in words
    assert words[words.index("-i") + 1] == str(Path("~/k").expanduser())
    assert words[words.index("-F") + 1] == "c"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20))
def test_a_path_reaches_the_remote_shell_whole(text: str) -> None:
    done = shlex.split(quoted_path(f"/{text}"))
    assert done == [f"/{text}"]
    assert quoted_path(f"~/{text}") == f'"$HOME"/{shlex.quote(text)}'


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("No ED25519 host key is known\nHost key verification failed.", "is not known here"),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "is another one than known_hosts has",
        ),
        ("me@h: Permission denied (publickey).", "it refuses the key"),
        ("ssh: Could not resolve hostname h: Name or service not known", "no such name"),
        ("ssh: connect to host h port 22: Connection refused", "nothing listens there"),
        ("ssh: connect to host h port 22: Connection timed out", "no answer"),
        ("kex_exchange_identification: banner", "ssh failed: kex_exchange_identification: banner"),
        ("", "ssh failed: no reason given"),
    ],
)
def test_what_ssh_says_becomes_one_message(said: str, words: str) -> None:
    message = refusal_words(parse_host("me@h:23"), said)
    assert message.startswith('cluster.ssh.hosts: "me@h:23": ')
    assert words in message
    assert "\n" not in message


RUNNING, DONE, LOST = (
    {"phase": "running", "pid": 1},
    {"phase": "ended", "code": 0, "said": ""},
    {"error": "no answer"},
)
FAILED = {"phase": "ended", "code": 1, "said": "error: bad"}


@pytest.mark.parametrize(
    ("answers", "phase", "words"),
    [
        ({"a": RUNNING, "b": RUNNING}, JobPhase.RUNNING, "runs on 2 of 2 hosts"),
        ({"a": RUNNING, "b": LOST}, JobPhase.RUNNING, "runs on 1 of 2 hosts; b: no answer"),
        ({"a": DONE, "b": DONE}, JobPhase.ENDED, "ended"),
        ({"a": DONE, "b": LOST}, JobPhase.ENDED, "ended; b: no answer"),
        ({"a": FAILED, "b": DONE}, JobPhase.ENDED, "ended; a: exit code 1: error: bad"),
        ({"a": LOST, "b": LOST}, JobPhase.UNKNOWN, "a: no answer; b: no answer"),
    ],
)
def test_the_state_of_a_job(answers: dict, phase: JobPhase, words: str) -> None:
    found = job_state(answers)
    assert (found.phase, found.words) == (phase, words)


# The host's side, on this machine


def order(tmp_path: Path, run: str, **more: object) -> dict[str, object]:
    return {
        "job": "small-12345678",
        "node": "n1",
        "folder": str(tmp_path / "work"),
        "run_folder": str(tmp_path / "work" / "runs" / "small"),
        "log": str(tmp_path / "work" / "log"),
        "env": {},
        "paths": {"a.toml": "/elsewhere/a.toml"},
        "files": {"lab.toml": "nodes = 2"},
        "run": run,
        **more,
    }


def until_ended(given: dict[str, object]) -> dict[str, object]:
    deadline = time.monotonic() + 120
    while (found := node.state(given))["phase"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_start_is_detached_and_its_end_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    given = order(tmp_path, "nonsense = 1\n")
    assert node.state(given) == {"phase": "absent"}
    started = node.start(given)
    assert started["started"], started
    assert os.getsid(int(started["keeper"])) == started["keeper"]
    found = until_ended(given)
    assert found["code"] == 2
    assert "nonsense" in str(found["said"]) or "model" in str(found["said"])
    run_file = node.job_folder("small-12345678", "n1") / node.RUN_FILE
    assert run_file.stat().st_mode & 0o077 == 0, "it may hold a secret"
    found_at = json.loads(run_file.with_name("plan.json").read_text())["paths"]
    assert found_at["a.toml"] == "/elsewhere/a.toml"
    assert Path(found_at["lab.toml"]).read_text() == "nodes = 2"


def test_only_what_carries_the_word_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]

    def begin(job: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            sleep,
            env=os.environ | {node.JOB: job},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        process.stdout.readline()  # it has its own environment by now
        return process

    ours, other = begin("ours-1"), begin("ours-12")
    try:
        # The record names a process of somebody else, as when a pid was given away.
        folder = node.private_folder(node.job_folder("ours-1", "n1"))
        wrong = {"pid": other.pid, "started": "1", "boot": "", "keeper": other.pid}
        (folder / "process.json").write_text(json.dumps(wrong))
        done = node.end({"job": "ours-1", "node": "n1", "grace_s": 0.2})
        assert done == {"killed": 1, "left": []}
        assert ours.wait(10) == -9
        assert other.poll() is None
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


def test_a_first_look_needs_nothing_but_python(tmp_path: Path) -> None:
    script = Path(look.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-", str(tmp_path / "not" / "there")],
        input=script,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["nearest"] == str(tmp_path)
    assert found["writable"]
    assert found["penstock"] is None, "no packages were in reach"


# What is refused, and shown


@pytest.fixture
def run_on(tmp_path: Path, run_file: Callable[..., Path]) -> Callable[..., JobSpec]:
    def make(**fields: object) -> JobSpec:
        values = {"cluster.launcher": "ssh", "cluster.nodes": 2, **fields}
        file = run_file("on-ssh", **values)
        return JobSpec(load(file), file, tmp_path, "ab" * 8)

    return make


def test_numbers_that_do_not_fit_the_list_are_refused(run_on: Callable[..., JobSpec]) -> None:
    refusals = SshEngine().refusals
    hosts = {"cluster.ssh.hosts": ["a", "b", "c"]}
    assert refusals(run_on()) == ['cluster.ssh.hosts: missing; write hosts = ["name", "user@name"]']
    [said] = refusals(run_on(**hosts, **{"cluster.nodes": 4}))
    assert said.startswith("cluster.nodes = 4: cluster.ssh.hosts has 3; ")
    [said] = refusals(run_on(**hosts, **{"guard.spares": 2}))
    assert said.startswith("cluster.nodes = 2 and guard.spares = 2: cluster.ssh.hosts has 3; ")
    [said] = refusals(run_on(**hosts, **{"cluster.nodes": 1}))
    assert "write nodes = 3" in said


def test_a_look_is_judged(run_on: Callable[..., JobSpec]) -> None:
    ssh, run = Ssh(SshSection()), run_on(**{"cluster.ssh.hosts": ["a", "b"]}).run
    good = {
        "system": "Linux", "python": "3.12.1", "executable": "/x", "penstock": __version__,
        "torch": "2.13.0", "cryptography": "50", "writable": True, "nearest": "/", "folder": "/r",
        "free_bytes": 1 << 40,
    }  # fmt: skip

    def said(**changed: object) -> str:
        return "; ".join(checks.look_refusals("a", good | changed, ssh, run))

    assert said() == ""
    assert "Penstock needs 3.11 or later" in said(python="3.9.2")
    assert "has no Penstock; `penstock train --setup`" in said(penstock=None)
    assert "it has Penstock 0.0.1, and this machine" in said(penstock="0.0.1")
    assert "has no torch" in said(torch=None)
    assert "has no cryptography" in said(cryptography=None)
    assert "cannot be written" in said(writable=False)
    assert "0.0 GiB are free" in said(free_bytes=1000)
    assert "it runs Darwin" in said(system="Darwin")
    looks = {"a": {"torch": "2"}, "b": {"torch": "2"}, "c": {"torch": "1"}}
    assert checks.differing(looks, "torch") == [
        "c: it has torch 1, and most hosts have 2; install 2 there"
    ]


def test_the_text_shows_what_is_submitted_without_secrets(
    run_on: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-show")
    text = SshEngine().text(run_on(**{"cluster.ssh.hosts": ["a", "me@b:24"]}))
    assert "-p 24 -- me@b 'python3 -m penstock.launch.ssh.node start'" in text
    assert '"job": "on-ssh-abababab", "node": "a"' in text
    assert 'name = "on-ssh"' in text
    assert "AWS_SECRET_ACCESS_KEY" in text
    assert "do-not-show" not in text


def test_setup_needs_a_place_for_the_venv() -> None:
    assert setup.venv_of("~/venvs/p/bin/python") == "~/venvs/p"
    assert setup.venv_of("/opt/p/bin/python3.12") == "/opt/p"
    with pytest.raises(PenstockError, match=r"--setup makes a venv and has to know"):
        setup.venv_of("python3")
