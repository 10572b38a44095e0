"""Hosts behind real sshd, each in a network and mount namespace of its own. Needs root.

    with SshLab(folder, hosts=3) as lab:
        lab.call("train", "run.toml")          # `penstock …` on the machine of the user
        lab.own("h1")                          # what the host h1 sees as lab.at
        lab.kill("h1")                         # all processes of a host at once

The user's machine is a namespace too (`head`). All see the same disk, except for one folder: `at`
is another one on each host, with its Python, its home of Penstock and its disk. So a test gives one
host another version, clock or dataset by changing files in `own(host)`.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
SSHD = "/usr/sbin/sshd"
NET = "10.79.0"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
READY_S = 30.0
# As if two hosts were two machines: variables of the tests stay on the user's machine.
_DROPPED = ("PENSTOCK_", "PYTEST_", "AWS_")


def missing() -> str:
    """Return why no lab can be built here; "" if one can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    for command in ("ip", "nsenter", "unshare", "tc", "ssh", "ssh-keygen"):
        if not shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            return f"{command} is not installed: apt-get install iproute2 openssh-client"
    if not Path(SSHD).exists():
        return "sshd is not installed: apt-get install openssh-server"
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True)
    return "" if tried.returncode == 0 else "this machine lets nobody make namespaces"


class SshLab:
    def __init__(self, folder: Path, hosts: int) -> None:
        self.folder, self.name = folder, f"ssh{os.getpid() % 10000}"
        self.at = folder / "own"  # the same path on every host, another folder on each
        self.hosts = [f"h{number}" for number in range(1, hosts + 1)]
        self.config = folder / "ssh_config"
        self.shared = folder / "shared"
        self._sshd: dict[str, subprocess.Popen[bytes]] = {}

    # The network and its hosts

    def __enter__(self) -> "SshLab":
        for path in (self.at, self.shared):
            path.mkdir(parents=True)
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's own empty folder
        self._keygen(self.folder / "key")
        _ip("netns", "add", self._space("sw"))
        _ip("-n", self._space("sw"), "link", "add", "br0", "type", "bridge")
        _ip("-n", self._space("sw"), "link", "set", "br0", "up")
        for host in ("head", *self.hosts):
            self._plug(host)
        self._write_client_config()
        for host in self.hosts:
            self._furnish(host)
            self.start_sshd(host)
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            with contextlib.suppress(KeyError):
                self.kill(host)
        for host in ("head", *self.hosts, "sw"):
            subprocess.run(["ip", "netns", "del", self._space(host)], capture_output=True)

    def address(self, host: str) -> str:
        return f"{NET}.{100 if host == 'head' else int(host[1:])}"

    def own(self, host: str) -> Path:
        """What the host sees as `at`."""
        return self.folder / f"own-{host}"

    def home(self, host: str) -> Path:
        """The home of Penstock on a host."""
        return self.own(host) / "home"

    def start_sshd(self, host: str) -> None:
        # bash reads the start-up file of this machine's user for every command of ssh. It may do
        # anything, and a host that is killed in the middle of it leaves its locks behind.
        plain = "test ! -e ~/.bashrc || mount --bind /dev/null ~/.bashrc"
        inside = f"hostname {host} && mount --bind {self.own(host)} {self.at} && {{ {plain}; }}"
        command = f"{inside} && exec {SSHD} -D -e -f {self.own(host)}/sshd_config"
        with (self.folder / f"sshd-{host}.log").open("ab") as log:
            self._sshd[host] = subprocess.Popen(
                [*self.net(host), "unshare", "--mount", "--uts", "sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_plain_env(),
                start_new_session=True,
            )
        until = time.monotonic() + READY_S
        greet = f"exec 3<>/dev/tcp/{self.address(host)}/22"
        while subprocess.run(
            [*self.net("head"), "bash", "-c", greet], capture_output=True
        ).returncode:
            assert time.monotonic() < until, (self.folder / f"sshd-{host}.log").read_text()
            time.sleep(0.05)

    def net(self, host: str) -> list[str]:
        """Return what a command in the network of a host begins with."""
        return ["nsenter", f"--net=/run/netns/{self._space(host)}", "--"]

    def inside(self, host: str) -> list[str]:
        """Return what a command on a host begins with: its network, its name, its folders."""
        pid = str(self._sshd[host].pid)
        return ["nsenter", "--target", pid, "--net", "--mount", "--uts", "--"]

    def shape(self, host: str, rate: str) -> None:
        """Limit what a host sends and gets."""
        for space, link in ((self._space(host), "eth0"), (self._space("sw"), f"p-{host}")):
            words = ["dev", link, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            _run("tc", "-n", space, "qdisc", "replace", *words)

    # Processes

    def processes(self, host: str) -> dict[int, str]:
        """The processes in the network of a host, with their command lines."""
        space = os.stat(f"/run/netns/{self._space(host)}").st_ino
        found = {}
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                with contextlib.suppress(OSError):
                    if os.stat(path / "ns" / "net").st_ino == space:
                        words = (path / "cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(path.name)] = words.decode(errors="replace").strip()
        return {pid: words for pid, words in found.items() if words}  # no zombies

    def of_penstock(self, host: str) -> dict[int, str]:
        return {pid: w for pid, w in self.processes(host).items() if "penstock" in w}

    def kill(self, host: str) -> None:
        """Kill everything on a host at once, as a power cut does."""
        while found := self.processes(host):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self._sshd.pop(host).wait()

    # The user's machine

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        home = self.folder / "head-home"
        home.mkdir(exist_ok=True)
        own = {"PENSTOCK_HOME": str(home), "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
        return _plain_env() | own | (more or {})

    def command(self, *words: str) -> list[str]:
        return [*self.net("head"), sys.executable, "-m", "penstock", *words]

    def call(
        self, *words: str, env: Mapping[str, str] | None = None, timeout_s: float = 600.0
    ) -> subprocess.CompletedProcess[str]:
        """Run `penstock …` as the user does."""
        return subprocess.run(
            self.command(*words),
            cwd=self.shared,
            env=self.env(env),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def section(self, *hosts: str) -> dict[str, object]:
        """The fields of `[cluster.ssh]` for hosts of the lab."""
        return {
            "hosts": list(hosts or self.hosts),
            "config": str(self.config),
            "python": str(self.at / "python"),
        }

    # What stands on a host

    def write_python(self, host: str, **env: str) -> None:
        """The host's Python: that of the tests, with variables of its own."""
        values = {
            "PENSTOCK_HOME": str(self.at / "home"),
            "PENSTOCK_MEMORY": str(self.at / "memory"),
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
        } | env
        lines = [f"export {name}='{value}'" for name, value in values.items()]
        script = "\n".join(["#!/bin/sh", *lines, f'exec {sys.executable} "$@"', ""])
        aside = self.own(host) / "python.new"
        aside.write_text(script)
        aside.chmod(0o755)
        aside.rename(self.own(host) / "python")

    def forget_key(self, host: str) -> None:
        """Make the host one whose key the user does not know."""
        known = self.folder / "known_hosts"
        lines = known.read_text().splitlines()
        known.write_text("".join(f"{line}\n" for line in lines if line.split()[0] != host))

    def _furnish(self, host: str) -> None:
        own = self.own(host)
        for path in (own, own / "home", own / "memory"):
            path.mkdir()
        self._keygen(own / "host_key")
        key = (own / "host_key.pub").read_text().split()
        with (self.folder / "known_hosts").open("a") as known:
            known.write(f"{host} {key[0]} {key[1]}\n")
        (own / "sshd_config").write_text(
            f"Port 22\nListenAddress {self.address(host)}\nHostKey {own}/host_key\n"
            f"AuthorizedKeysFile {self.folder}/key.pub\nStrictModes no\nUsePAM no\n"
            f"PermitRootLogin prohibit-password\nPasswordAuthentication no\nPidFile none\n"
            f"KbdInteractiveAuthentication no\nMaxStartups 100\nMaxSessions 100\n"
        )
        self.write_python(host)

    def _write_client_config(self) -> None:
        lines = [
            f"IdentityFile {self.folder}/key",
            "IdentitiesOnly yes",
            f"UserKnownHostsFile {self.folder}/known_hosts",
            "GlobalKnownHostsFile /dev/null",
            "User root",
        ]
        for host in self.hosts:
            lines += [f"Host {host}", f"  HostName {self.address(host)}", f"  HostKeyAlias {host}"]
        # What stands under a Host is for that host alone: the rest goes first.
        self.config.write_text("\n".join(lines) + "\n")

    def _keygen(self, path: Path) -> None:
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))

    def _space(self, host: str) -> str:
        return f"{self.name}-{host}"

    def _plug(self, host: str) -> None:
        space, switch = self._space(host), self._space("sw")
        _ip("netns", "add", space)
        pair = ("type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("-n", switch, "link", "add", f"p-{host}", *pair)
        _ip("-n", switch, "link", "set", f"p-{host}", "master", "br0", "up")
        _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _ip("-n", space, "link", "set", link, "up")


def _plain_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


@contextlib.contextmanager
def lab_or_skip(folder: Path, hosts: int) -> Iterator[SshLab]:
    """A lab, or a skipped test with the reason."""
    if why := missing():
        pytest.skip(why)
    with SshLab(folder, hosts) as lab:
        yield lab
