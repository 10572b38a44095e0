"""A real Ray cluster on this machine: each node in a network namespace, and an S3 server beside it.

Ray takes a machine's own address in place of 127.0.0.1, so nodes need addresses of their own. Needs
root, iproute2 and Ceph; nothing of it can reach outside the machine.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
NETWORK, CEPH = ROOT / "scripts" / "netns.sh", ROOT / "scripts" / "ceph.sh"
PORT, CLIENT_PORT = 6379, 10001
SERVER = "10.77.0.254"  # the switch, which all hosts see
NODES = 3
PATIENCE_S = 300.0  # for anything: tests run on busy machines
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # as the processes of a plain build
    "RAY_memory_usage_threshold": "0.99",
    # A busy machine is no dead one.
    "RAY_raylet_start_wait_time_s": "240",
    "RAY_worker_register_timeout_seconds": "240",
    "RAY_health_check_timeout_ms": "60000",
}
BUCKET = "s3://data"
# The network of this process before it enters that of a host.
_OUTSIDE = f"/proc/{os.getpid()}/fd/{os.open('/proc/self/ns/net', os.O_RDONLY)}"
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


def missing() -> str:
    """Return what this machine lacks; empty if nothing."""
    if os.geteuid() != 0:
        return "root"
    needed = ("ip", "ceph-mon", "ceph-osd", "radosgw", "ceph")
    lacking = [name for name in needed if not shutil.which(name)]
    if not Path(sys.executable).with_name("ray").exists():
        lacking.append("ray")
    return ", ".join(lacking)


class RayLab:
    """Use as a context manager. `hosts` are the namespaces, of which the first is the head's."""

    def __init__(self, folder: Path, hosts: int = NODES, cpus: int = 1) -> None:
        self.folder, self.cpus = folder, cpus
        self.lab = f"pray{os.getpid() % 100_000}"
        self.hosts = hosts
        self.temporary = Path(f"/tmp/{self.lab}")  # short: Ray has sockets in it
        self.storage: dict[str, str] = {}

    def __enter__(self) -> "RayLab":
        subprocess.run([NETWORK, "up", self.lab, str(self.hosts)], check=True)
        try:
            self._start_storage()
            for node in range(1, NODES + 1):
                try:
                    self.start_node(node)
                except RuntimeError:  # Ray gives a node a while to start, which may be too short
                    self.kill_node(node)
                    self.start_node(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for node in range(1, self.hosts + 1):
            self.kill_node(node)
        server = self._inside("sw", str(CEPH), "stop", str(self.folder / "ceph"))
        subprocess.run(server, check=False)
        self.kill_node("sw")
        subprocess.run([NETWORK, "down", self.lab], check=False)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _start_storage(self) -> None:
        place = str(self.folder / "ceph")
        start = self._inside("sw", str(CEPH), "start", place, SERVER, "9200")
        told = subprocess.run(start, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
        self.storage = dict(
            word.partition("=")[::2] for word in told.stdout.split() if word != "export"
        )
        subprocess.run(self._inside("sw", str(CEPH), "bucket", place, "data"), check=True)

    def address(self, node: int) -> str:
        return f"10.77.0.{node}"

    def start_node(self, node: int, env: Mapping[str, str] | None = None, hide: str = "") -> None:
        """Start a node of the cluster; one that `hide`s a folder has an empty one in its place."""
        where = ["--head", f"--port={PORT}", f"--temp-dir={self.temporary}"]
        where += [f"--ray-client-server-port={CLIENT_PORT}", "--include-dashboard=false"]
        if node > 1:
            where = [f"--address={self.address(1)}:{PORT}"]
        ray = str(Path(sys.executable).with_name("ray"))
        command = [ray, "start", *where, f"--node-ip-address={self.address(node)}"]
        command += [f"--num-cpus={self.cpus}", "--object-store-memory=100000000"]
        if hide:  # in the mounts of this node alone
            command = ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', hide, *command]
        done = subprocess.run(
            self._inside(node, *command),
            env={**os.environ, **SETTINGS, **self.storage, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"node {node} did not start: {done.stdout}{done.stderr}")

    def kill_node(self, node: int | str) -> None:
        """End every process of a host but this one, which may have entered it."""
        while found := [one for one in self.processes(node) if one != os.getpid()]:
            for process in found:
                _kill(process)
            time.sleep(0.05)

    def processes(self, node: int | str, title: str = "") -> list[int]:
        """Return the ids of a host's processes, or of those with such a command line."""
        told = subprocess.run(  # from outside, or it would find itself
            ["nsenter", f"--net={_OUTSIDE}", "ip", "netns", "pids", f"{self.lab}-{node}"],
            capture_output=True,
            text=True,
            check=False,
        )
        found = [int(word) for word in told.stdout.split()]
        return [one for one in found if title in _command_line(one)]

    def start(
        self, *words: str, env: Mapping[str, str] | None = None, node: int = 1, python: str = ""
    ) -> "subprocess.Popen[str]":
        """Start `penstock` on a host; `python` is run before it."""
        line = f"{python}; from penstock.cli.main import main; main()"
        command = [sys.executable, "-c", line, *words] if python else []
        command = command or [sys.executable, "-m", "penstock", *words]
        return subprocess.Popen(
            self._inside(node, *command),
            env={**os.environ, **SETTINGS, **self.storage, **self.driver_env(), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def driver_env(self) -> dict[str, str]:
        return {
            "RAY_ADDRESS": f"{self.address(1)}:{PORT}",
            "PENSTOCK_HOME": str(self.folder / "driver"),
        }

    def run(
        self, *words: str, env: Mapping[str, str] | None = None, node: int = 1, python: str = ""
    ) -> tuple[int, str]:
        """Run `penstock` on a host; return its exit status and what it printed."""
        process = self.start(*words, env=env, node=node, python=python)
        told, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, told

    def alive(self) -> int:
        """Return how many nodes the cluster has."""
        code = "import ray; ray.init(log_to_driver=False, logging_level='ERROR'); "
        code += "print('alive', sum(node['Alive'] for node in ray.nodes()))"
        done = subprocess.run(
            self._inside(1, sys.executable, "-c", code),
            env={**os.environ, **SETTINGS, **self.driver_env()},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        words = done.stdout.split()  # Ray may print more
        return int(words[words.index("alive") + 1])

    def enter(self, node: int) -> None:
        """Put this thread, and what it starts from now on, into the network of a host."""
        with open(f"/run/netns/{self.lab}-{node}") as network:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(network.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")

    def _inside(self, node: int | str, *command: str) -> Sequence[str]:
        return ["ip", "netns", "exec", f"{self.lab}-{node}", *command]


def kill_group(process: "subprocess.Popen[str]") -> None:
    """Kill a driver and what it started itself; the cluster stays."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout:
        process.stdout.close()


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
