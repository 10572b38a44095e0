"""Hosts behind the system's own `ssh`: how they are written, called, and what a failure means.

`ssh` brings the user's configuration, agent, jump hosts and known host keys with it. A host key
that is not known is refused, never learned: `StrictHostKeyChecking` is always on.
"""

import atexit
import contextlib
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from penstock.errors import PenstockError
from penstock.run.schema.engines import SshSection

CONNECT_S = 10.0
CALL_S = 120.0
MOST_AT_ONCE = 64
OWN_FAILURE = 255  # what ssh exits with when the command never ran
_NO_COMMAND = (126, 127)  # what a shell exits with when it cannot run a command
_WRITTEN = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9._-]*)@)?"
    r"(?:\[(?P<six>[0-9A-Fa-f:.%A-Za-z]+)\]|(?P<name>[A-Za-z0-9_][A-Za-z0-9._-]*))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_T = TypeVar("_T")


@dataclass(frozen=True)
class SshHost:
    """One entry of `cluster.ssh.hosts`."""

    written: str
    name: str
    user: str = ""
    port: int = 0  # 0: as ssh's configuration says

    @property
    def destination(self) -> str:
        return f"{self.user}@{self.name}" if self.user else self.name


def parse_host(written: str) -> SshHost:
    """Parse "name", "user@name", "name:port" or "[::1]:port"."""
    found = _WRITTEN.fullmatch(written)
    port = int(found["port"] or 0) if found else 0
    if found is None or port > 65535:
        raise PenstockError(
            f'cluster.ssh.hosts: "{written}" is no host; write "name", "user@name" or "name:port"'
        )
    return SshHost(written, found["six"] or found["name"], found["user"] or "", port)


def nodes_of(section: SshSection) -> dict[str, SshHost]:
    """Return the hosts by the names that they have in a run: each name once."""
    nodes: dict[str, SshHost] = {}
    hosts = [parse_host(written) for written in section.hosts]
    names = [host.name for host in hosts]
    for host in hosts:
        # Several behind one address, as behind a forwarded port, are told apart by the port.
        node = host.name if names.count(host.name) == 1 else f"{host.name}-{host.port or 22}"
        if node in nodes:
            raise PenstockError(
                f'cluster.ssh.hosts: "{host.written}" stands twice; write each host once'
            )
        nodes[node] = host
    return nodes


@dataclass(frozen=True)
class SshAnswer:
    """The output of a command on a host; `code` is None if it did not end in time."""

    code: int | None
    out: str
    err: str


class Unreachable(PenstockError):
    """A host that ssh did not get to, in words."""


@dataclass(frozen=True)
class Ssh:
    """The system's `ssh` with the settings of `[cluster.ssh]`."""

    section: SshSection
    control: Path | None = field(default=None, compare=False)
    """Folder of sockets, where several commands share one connection to a host."""

    def command(self, host: SshHost, remote: str) -> list[str]:
        """Return the command line that runs a shell line on a host."""
        options = [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            f"ConnectTimeout={CONNECT_S:.0f}",
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
        ]
        if self.control is not None:
            persist = ["ControlMaster=auto", "ControlPersist=60"]
            options += [*persist, f"ControlPath={self.control}/%C"]
        words = ["ssh", "-T"]
        if self.section.config:
            words += ["-F", str(Path(self.section.config).expanduser())]
        if self.section.key:
            words += ["-i", str(Path(self.section.key).expanduser())]
        for option in options:
            words += ["-o", option]
        if host.port:
            words += ["-p", str(host.port)]
        return [*words, "--", host.destination, remote]

    def python(self, *words: str) -> str:
        """Return the shell line that runs the hosts' Python with these words."""
        return f"{quoted_path(self.section.python)} {shlex.join(words)}"

    def run(
        self, host: SshHost, remote: str, given: str = "", timeout_s: float = CALL_S
    ) -> SshAnswer:
        """Run a shell line on a host; raises `Unreachable` where ssh itself fails."""
        command = self.command(host, remote)
        try:
            done = subprocess.run(
                command, input=given, capture_output=True, text=True, timeout=timeout_s
            )
        except FileNotFoundError:
            raise PenstockError(
                'cluster.launcher = "ssh": there is no `ssh` on this machine; install '
                "openssh-client"
            ) from None
        except subprocess.TimeoutExpired:
            return SshAnswer(None, "", f"no answer in {timeout_s:.0f} s")
        if done.returncode == OWN_FAILURE:
            raise Unreachable(refusal_words(host, done.stderr))
        return SshAnswer(done.returncode, done.stdout, done.stderr)


def connected(section: SshSection) -> Ssh:
    """Return an `Ssh` whose commands share one connection to a host while this process lives."""
    return Ssh(section, _control_folder())


@lru_cache
def _control_folder() -> Path:
    """Make the folder of shared connections; they close when this process ends."""
    # A short path: a Unix socket's name has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="pst-", dir="/tmp" if Path("/tmp").is_dir() else None))
    atexit.register(_close_connections, folder)
    return folder


def _close_connections(folder: Path) -> None:
    for path in folder.iterdir():
        command = ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "penstock"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=CONNECT_S, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def each(nodes: Mapping[str, SshHost], do: Callable[[str], _T]) -> dict[str, _T]:
    """Do something for every node, many at once; return the results in their order."""
    if not nodes:
        return {}
    with ThreadPoolExecutor(min(MOST_AT_ONCE, len(nodes))) as pool:
        return dict(zip(nodes, pool.map(do, nodes), strict=True))


def quoted_path(path: str) -> str:
    """Return a path for a shell line; `~/` stays the home of the remote user."""
    if path == "~":
        return '"$HOME"'
    if path.startswith("~/"):
        return f'"$HOME"/{shlex.quote(path[2:])}'
    return shlex.quote(path)


def is_missing_command(answer: SshAnswer) -> bool:
    """Return whether the remote shell could not run the command at all."""
    return answer.code in _NO_COMMAND


def refusal_words(host: SshHost, err: str) -> str:
    """Return why ssh did not get to a host: what is wrong and what to do."""
    where = f'cluster.ssh.hosts: "{host.written}"'
    port = f" -p {host.port}" if host.port else ""
    named = f"[{host.name}]:{host.port}" if host.port else host.name
    for sign, words in _REASONS:
        if sign in err:
            return f"{where}: {words.format(to=host.destination, port=port, named=named)}"
    last = next((line for line in reversed(err.splitlines()) if line.strip()), "no reason given")
    return f"{where}: ssh failed: {last.strip()}; try `ssh{port} {host.destination} true`"


# The order counts: a changed key also ends in "verification failed".
_REASONS = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is another one than known_hosts has: the machine was installed anew, or "
        "another machine answers in its place. Ask who runs it; then `ssh-keygen -R '{named}'` and "
        "`ssh{port} {to}` once by hand",
    ),
    (
        "Host key verification failed",
        "its host key is not known here. Connect once by hand with `ssh{port} {to}`, compare the "
        "fingerprint with the one its owner tells you, and accept it",
    ),
    (
        "Permission denied",
        "it refuses the key. Copy yours there with `ssh-copy-id{port} {to}`, name another in "
        "cluster.ssh.key, or start ssh-agent: ssh may not ask for a password here",
    ),
    (
        "Could not resolve hostname",
        "no such name. Correct it, or give it a HostName in ~/.ssh/config",
    ),
    ("Connection refused", "nothing listens there: start sshd on it, or correct the port"),
    ("timed out", "no answer: it is down, or a firewall drops what is sent to it"),
    ("No route to host", "no way to it: it is down, or the address is wrong"),
    ("Network is unreachable", "no way to it from this network"),
    ("UNPROTECTED PRIVATE KEY FILE", "others can read cluster.ssh.key: `chmod 600` it"),
)
