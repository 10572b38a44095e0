"""The nodes that the doctor examines: an agent on each, started by the launcher of the cluster."""

import contextlib
import itertools
import os
import queue
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.launch.doctor.lines import ERROR, HELLO, Answer, LineProcess, Order, collect
from penstock.launch.engines.slurm_state import clean_environment
from penstock.launch.ssh.hosts import OWN_FAILURE, Ssh, nodes_of, refusal_words
from penstock.launch.supervisor import addresses
from penstock.run.clusters.file import ClusterFile
from penstock.run.schema.engines import Launcher, SlurmSection, SshSection
from penstock.run.schema.run import Run

AGENT = "penstock.launch.doctor.agent"
HELLO_S = 120.0
QUEUE_S = 600.0  # until Slurm gives the nodes
ANSWER_S = 30.0


@dataclass(frozen=True)
class Target:
    """The machines to examine, and how they are reached."""

    launcher: Launcher = "local"
    nodes: int = 1
    ssh: SshSection = field(default_factory=SshSection)
    slurm: SlurmSection = field(default_factory=SlurmSection)
    interface: str | None = None
    accelerators: str | int = "all"
    file: ClusterFile | None = None

    @classmethod
    def of_file(cls, file: ClusterFile) -> "Target":
        return cls(file.launcher, file.nodes, file.ssh, file.slurm, file=file)

    @classmethod
    def of_run(cls, run: Run, file: ClusterFile | None = None) -> "Target":
        own = run.cluster
        more = (own.interface, own.accelerators, file)
        return cls(own.launcher, own.nodes, own.ssh, own.slurm, *more)


class Fleet:
    """Agents on the nodes of a cluster."""

    def __init__(self) -> None:
        self._answers: queue.Queue[Answer] = queue.Queue()
        self._processes: dict[str, LineProcess] = {}
        self._nodes: dict[str, list[str]] = {}  # by the process that stands for them
        self._numbers = itertools.count()
        self.failed: dict[str, str] = {}  # nodes whose agent did not start, and why

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node for nodes in self._nodes.values() for node in nodes)

    def ask(
        self, order: Order, nodes: Sequence[str] | None = None, timeout_s: float = ANSWER_S
    ) -> dict[str, Answer]:
        """Give the same order to nodes, or to all of them; return what each answers."""
        to = self.nodes if nodes is None else tuple(nodes)
        return self.ask_each(dict.fromkeys(to, order), timeout_s)

    def ask_each(
        self, orders: Mapping[str, Order], timeout_s: float = ANSWER_S
    ) -> dict[str, Answer]:
        """Give each node its own order, all at once; return what each answers."""
        number = next(self._numbers)
        for name, nodes in self._nodes.items():
            for node in nodes:
                if node in orders:
                    self._processes[name].send({**orders[node], "id": number, "to": [node]})
        return collect(self._answers, number, orders, timeout_s, self._process_of)

    def drop(self, node: str) -> None:
        """Ask this node nothing more."""
        for nodes in self._nodes.values():
            if node in nodes:
                nodes.remove(node)

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def _process_of(self, node: str) -> LineProcess:
        name = next(name for name, nodes in self._nodes.items() if node in nodes)
        return self._processes[name]

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None) -> None:
        """Start a command that stands for one node or for several."""
        self._processes[name] = LineProcess(command, self._answers, name, env)
        self._nodes[name] = []

    def greet(self, expected: int, timeout_s: float) -> None:
        """Wait until every process has said the names of its nodes, or has ended."""
        said: dict[str, list[str]] = {name: [] for name in self._processes}
        until = time.monotonic() + timeout_s
        while any(len(nodes) < expected for nodes in said.values()) and time.monotonic() < until:
            ended = all(
                process.ended or len(said[name]) >= expected
                for name, process in self._processes.items()
            )
            try:
                answer = self._answers.get(timeout=0.1)
            except queue.Empty:
                if ended:
                    break
                continue
            if answer["id"] == HELLO:
                name = answer["answer"]["process"]
                said[name if name in said else next(iter(said))].append(answer["node"])
        self._nodes = {name: sorted(nodes) for name, nodes in said.items()}
        for name, process in self._processes.items():
            if not said[name]:
                late = f"no answer in {timeout_s:.0f} s"
                self.failed[name] = process.why() if process.ended else late

    def errors_of(self, name: str) -> tuple[int | None, str]:
        """Return the exit code and the last output of a process that did not start."""
        return self._processes[name].code, self._processes[name].errors


@contextmanager
def open_fleet(target: Target) -> Iterator[Fleet]:
    """Start an agent on every node; no agent outlives the block."""
    fleet = Fleet()
    try:
        with contextlib.ExitStack() as stack:
            if target.launcher == "ssh":
                _start_by_ssh(fleet, target, stack)
            elif target.launcher == "slurm":
                _start_by_slurm(fleet, target)
            elif target.launcher == "local":
                _start_here(fleet)
            else:
                raise PenstockError(
                    f'launcher = "{target.launcher}": the doctor reaches nodes by "ssh" and '
                    '"slurm" only; on others run `penstock doctor` on a node itself'
                )
            yield fleet
    finally:
        fleet.close()


def _start_here(fleet: Fleet) -> None:
    node = addresses.node()
    fleet.start(node, [sys.executable, "-m", AGENT], os.environ | {"PENSTOCK_NODE": node})
    fleet.greet(1, HELLO_S)


def _start_by_ssh(fleet: Fleet, target: Target, stack: contextlib.ExitStack) -> None:
    if not target.ssh.hosts:
        raise PenstockError('ssh.hosts: missing; write hosts = ["name", "user@name"]')
    ssh = Ssh(target.ssh)
    nodes = nodes_of(target.ssh)
    for node, host in nodes.items():
        remote = f"env PENSTOCK_NODE={shlex.quote(node)} {ssh.python('-m', AGENT)}"
        fleet.start(node, ssh.command(host, remote), None)
    fleet.greet(1, HELLO_S)
    for node in fleet.failed:
        code, errors = fleet.errors_of(node)
        if code == OWN_FAILURE:
            fleet.failed[node] = refusal_words(nodes[node], errors)


def _start_by_slurm(fleet: Fleet, target: Target) -> None:
    """Start one step with a task on each node; its input reaches all tasks, its output is lines."""
    if not shutil.which("srun"):
        raise PenstockError('launcher = "slurm": there is no `srun` here; run it on a login node')
    words = ["srun", f"--nodes={target.nodes}", "--ntasks-per-node=1", "--unbuffered"]
    words += ["--kill-on-bad-exit=0", "--job-name=penstock-doctor", "--time=10"]
    own = target.slurm
    for option in ("partition", "account", "qos", "constraint"):
        if value := getattr(own, option):
            words.append(f"--{option}={value}")
    if own.gpus:
        words.append(f"--gres={own.gpus}")
    words += [word for line in own.lines for word in shlex.split(line)]
    fleet.start("slurm", [*words, sys.executable, "-m", AGENT], _outside_of_jobs())
    fleet.greet(target.nodes, QUEUE_S)


def _outside_of_jobs() -> dict[str, str]:
    """Return the environment, without what an outer job of Slurm left in it when it ended."""
    inside = (
        os.environ.get("SLURM_JOB_ID")
        and not subprocess.run(
            ["squeue", "--noheader", f"--job={os.environ['SLURM_JOB_ID']}"], capture_output=True
        ).returncode
    )
    return dict(os.environ) if inside else clean_environment()


def without_errors(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return the answers of the nodes that gave one."""
    return {node: answer for node, answer in answers.items() if ERROR not in answer}
