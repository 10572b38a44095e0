"""A real Slurm on this machine (`scripts/slurm.sh`), and runs that are submitted to it.

Nodes n1, n2, … have a network, a host name and a memory each, and share the disk. Commands are
given on the login machine, "head".
"""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hosts_lab import RecordedRun
from penstock.drill import audit
from penstock.launch.engines.engine import read_submission
from penstock.launch.supervisor import preload
from penstock.run.folder import RunFolder

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts/slurm.sh"
PATIENCE_S = 400.0  # four nodes start on two cores, beside whatever else runs there
DAEMONS = ("slurmd", "slurmstepd", "slurmctld", "slurmscriptd", "ceph-", "radosgw")
STORE = {
    "AWS_ENDPOINT_URL": "http://10.77.0.254:9200",
    "AWS_ACCESS_KEY_ID": "penstock",
    "AWS_SECRET_ACCESS_KEY": "penstock-secret",
    "AWS_REGION": "us-east-1",
}
"""Variables by which nodes find the S3 server of `SlurmLab.store`."""

LOSS = """import time
from pathlib import Path

from torch.nn.functional import cross_entropy


def paced(logits, targets):
    time.sleep(float(Path({pace!r}).read_text() or 0))
    return cross_entropy(logits, targets, reduction="none")
"""
"""A loss that waits in every step, for as long as a file says: steps last and take no CPU."""


def pace_file(run_file: Path) -> Path:
    return run_file.with_suffix(".pace")


def missing() -> str:
    """Return why there can be no Slurm on this machine; "" where there can."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    absent = [name for name in ("slurmctld", "munged", "ip") if not shutil.which(name, path=path)]
    if absent:
        return f"{', '.join(absent)} not installed; `scripts/slurm.sh install` does it on Debian"
    return "" if os.geteuid() == 0 else "network namespaces need root"


class SlurmLab:
    """A Slurm of some nodes."""

    def __init__(self, folder: Path, nodes: int = 4) -> None:
        self.folder, self.nodes, self.name = folder, nodes, f"psl{os.getpid() % 1000}"
        self.killed: set[str] = set()  # nodes that were not started again

    def script(self, verb: str, *words: object) -> None:
        command = [SCRIPT, verb, self.folder, self.name, *map(str, words)]
        subprocess.run(command, check=True, timeout=120, env=self.env())

    @contextlib.contextmanager
    def up(self) -> Iterator["SlurmLab"]:
        try:
            self.script("up", self.nodes)
            yield self
        finally:
            self.script("down")

    @contextlib.contextmanager
    def store(self, folder: Path) -> Iterator[dict[str, str]]:
        """Run a real S3 server with a bucket "runs" on the login machine."""
        ceph = str(ROOT / "scripts/ceph.sh")
        try:
            self.do(ceph, "start", str(folder), "10.77.0.254", "9200")
            self.do(ceph, "bucket", str(folder), "runs")
            yield STORE
        finally:
            self.do(ceph, "stop", str(folder))

    def on(self, host: str, *words: str) -> list[str]:
        """Return a command that becomes `words` on a node ("n2") or on the login machine."""
        number = "sw" if host == "head" else host.removeprefix("n")
        return [str(SCRIPT), "on", str(self.folder), self.name, number, *words]

    def env(self, **more: str) -> dict[str, str]:
        """Return the environment of a shell on the login machine."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name != preload.ENVIRONMENT and not name.startswith(("SLURM_", "SBATCH_", "AWS_"))
        }
        return kept | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | more

    def do(self, *words: str, code: int = 0, host: str = "head", **env: str) -> str:
        """Run a command and return what it printed."""
        done = subprocess.run(
            self.on(host, *words),
            env=self.env(**env),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{words} ended with {done.returncode}:\n{said}"
        return said

    def penstock(self, *words: str, code: int = 0, **env: str) -> str:
        """Run a command of Penstock and return what it printed."""
        return self.do(sys.executable, "-m", "penstock", *words, code=code, **env)

    def queue(self, job: str = "") -> dict[str, tuple[str, str]]:
        """Return state and nodes of the jobs in the queue; tasks of an array by themselves."""
        told = self.do("squeue", "-h", "-r", "-o", "%i|%T|%N", *(["-j", job] if job else []))
        lines = [line.split("|") for line in told.split()]
        return {number: (state, nodes) for number, state, nodes in lines}

    def of_job(self, job: str) -> dict[str, str]:
        """Return the fields of `scontrol show job`."""
        return dict(re.findall(r"(\w+)=(\S*)", self.do("scontrol", "-o", "show", "job", job)))

    def kill(self, node: str) -> None:
        """Cut the power of a node: its processes and its slurmd end, and nobody hears of it."""
        self.killed.add(node)
        self.script("kill", node.removeprefix("n"))

    def revive(self, node: str) -> None:
        self.killed.discard(node)
        self.script("node", node.removeprefix("n"))

    def processes(self) -> dict[int, str]:
        """Return what runs on the nodes and the login machine besides the daemons."""
        found = {}
        for host in ("sw", *range(1, self.nodes + 1)):
            listed = subprocess.run(
                ["ip", "netns", "pids", f"{self.name}-{host}"], capture_output=True, text=True
            )
            for pid in map(int, listed.stdout.split()):
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    said = words.decode(errors="replace").strip(": ")
                    if said and not Path(said.split()[0]).name.startswith(DAEMONS):
                        found[pid] = said
        return found

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}\n{self}"
            time.sleep(0.2)

    def clear(self) -> None:
        """End all jobs, start killed nodes again, and wait until all are idle."""
        self.do("scancel", "--state=PENDING", "-u", "root")
        self.do("scancel", "-u", "root")
        alive = self.do("sinfo", "-h", "-N", "-p", "main", "-o", "%N|%T")
        down = [line.partition("|") for line in alive.split()]
        for node, _, state in down:
            # Slurm itself notices a dead node only after SlurmdTimeout.
            if node in self.killed or state not in ("idle", "allocated", "completing", "mixed"):
                self.kill(node)
                self.revive(node)
        idle = ["sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D"]
        self.until(lambda: self.do(*idle).strip() == str(self.nodes), "all nodes are idle")

    def __str__(self) -> str:
        log = (self.folder / "log/ctld.log").read_text().splitlines()[-40:]
        seen = self.do("squeue", "-a") + self.do("sinfo", "-N", "-p", "main")
        return seen + "\n".join(log)


class SlurmRun(RecordedRun):
    """A run file that is submitted to a lab."""

    patience_s = PATIENCE_S

    def __init__(self, lab: SlurmLab, file: Path, folder: RunFolder, **env: str) -> None:
        self.lab, self.file, self.folder, self.env = lab, file, folder, env
        self.commands: list[subprocess.Popen[bytes]] = []
        self.shown = file.with_suffix(".shown")

    def train(self, *overrides: str, **env: str) -> "subprocess.Popen[bytes]":
        """Give `penstock train` on the login machine; what it shows goes to a file."""
        words = [sys.executable, "-m", "penstock", "train", str(self.file), *overrides]
        with self.shown.open("ab") as out:
            self.commands.append(
                subprocess.Popen(
                    self.lab.on("head", *words),
                    env=self.lab.env(**self.env | env),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    cwd=self.file.parent,
                )
            )
        return self.commands[-1]

    def train_in_terminal(self) -> tuple["subprocess.Popen[bytes]", int]:
        """Give the command in a terminal; the caller closes it by its descriptor."""
        master, slave = pty.openpty()
        words = [sys.executable, "-m", "penstock", "train", str(self.file)]
        self.commands.append(
            subprocess.Popen(
                ["setsid", "--ctty", "--wait", *self.lab.on("head", *words)],
                env=self.lab.env(**self.env),
                stdin=slave,
                stdout=slave,
                stderr=slave,
                cwd=self.file.parent,
                # The tests themselves may run under nohup, which is inherited.
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            )
        )
        os.close(slave)
        return self.commands[-1], master

    @property
    def job(self) -> str:
        submission = read_submission(self.folder.path)
        return submission.job if submission else ""

    def pace(self, step_s: float) -> None:
        """Let each step from now on take so long; see `LOSS`."""
        pace_file(self.file).write_text(str(step_s))

    def penstock(self, verb: str, *words: str, code: int = 0) -> str:
        """Run a command about this run and return what it printed."""
        where = ("--dir", str(self.folder.path.parent))
        return self.lab.penstock(verb, self.folder.name, *words, *where, code=code, **self.env)

    def report(self) -> dict[str, Any]:
        """Return what `penstock report --json` prints."""
        told = self.penstock("report", "--json")
        return dict(json.loads(told[told.index("{") :]))

    def samples(self, steps: int, batch: int) -> audit.SampleCounts:
        """Count samples that were lost or used twice, by what the ranks wrote down."""
        lines = audit.read(self.folder.audit)
        lines.sort(key=lambda line: (line.attempt, line.rank))
        return audit.count_samples(audit.final_uses(lines), steps, batch)

    def ends(self) -> int:
        """Return the exit code of the last command, at the end of the run."""
        at, since = -1, time.monotonic()
        while (code := self.commands[-1].poll()) is None:
            if (reached := self.reached()) != at:
                at, since = reached, time.monotonic()
            assert time.monotonic() - since < PATIENCE_S, f"it does not end\n{self}"
            time.sleep(0.2)
        return code

    def at_work(self) -> list[str]:
        """Return the nodes of the present attempt."""
        return [str(host["node"]) for host in self.folder.read_launch_record().hosts]

    def journals(self) -> Iterable[Path]:
        return [self.folder.journal]

    def alive(self) -> bool:
        return True  # the queue may hold it

    def close(self) -> None:
        for command in self.commands:
            if command.poll() is None:
                command.kill()
                command.wait()

    def __str__(self) -> str:
        told = "\n".join(f"{e.t:.2f} {e.kind} {e.payload}" for e in self.events())
        logs = [self.shown, *sorted(self.folder.logs.glob("job-*"))]
        said = "\n".join(f"--- {log}\n{log.read_text()[-6000:]}" for log in logs if log.exists())
        return f"{told}\n{said}\n{self.lab}"
