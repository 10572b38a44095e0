"""SkyPilot on a real Slurm of this machine (`scripts/sky_slurm.sh`)."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.launch.supervisor import preload

ROOT = Path(__file__).parents[1]
SCRIPT, CEPH = ROOT / "scripts/sky_slurm.sh", ROOT / "scripts/ceph.sh"
ADDRESS, PORT = "10.78.0.1", "26850"  # of the S3 server, for the nodes and the user alike
STORE = {
    "AWS_ENDPOINT_URL": f"http://{ADDRESS}:{PORT}",
    "AWS_ACCESS_KEY_ID": "penstock",
    "AWS_SECRET_ACCESS_KEY": "penstock-secret",
    "AWS_REGION": "us-east-1",
}
PATIENCE_S = 900.0  # SkyPilot installs itself on two nodes, beside whatever else runs here
PENSTOCK = f"""#!/bin/sh
export OMP_NUM_THREADS=1 PYTHONPATH={ROOT / "src"}
exec {sys.executable} -m penstock "$@"
"""
Record = dict[str, Any]


def missing(venv: Path) -> str:
    """Return why SkyPilot cannot be shown a Slurm on this machine; "" where it can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    for program in ("sky", "uv"):
        if not (venv / "bin" / program).exists():
            return f"no {program} in {venv}: `make test-sky` installs it"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    programs = ("slurmctld", "munged", "sshd", "rsync", "ip", "nsenter", "openssl", "radosgw")
    absent = [name for name in programs if not shutil.which(name, path=path)]
    if absent:
        return f"not installed: {', '.join(absent)}; see scripts/sky_slurm.sh and scripts/ceph.sh"
    found = shutil.which("python3.10")  # pyenv's may be one that only says it is not chosen
    runs = found and not subprocess.run([found, "-V"], capture_output=True).returncode
    pyenv = any(Path.home().glob(".pyenv/versions/3.10.*/bin/python3.10"))
    return "" if runs or pyenv else "no python3.10, which SkyPilot's runtime on the nodes needs"


class SkyLab:
    """A Slurm, a machine with SkyPilot that reaches it by ssh, and an S3 server for both."""

    def __init__(self, folder: Path, venv: Path, nodes: int = 2) -> None:
        self.folder, self.venv, self.nodes = folder, venv, nodes

    @contextlib.contextmanager
    def up(self) -> Iterator["SkyLab"]:
        (self.folder / "tools").mkdir(parents=True)
        program = self.folder / "tools/penstock"
        program.write_text(PENSTOCK)
        program.chmod(0o755)
        env = _plain() | {"KEEP": sys.executable}
        store = str(self.folder / "store")
        try:
            words = [SCRIPT, "up", self.folder, str(self.nodes), self.venv]
            subprocess.run(words, check=True, timeout=300, env=env)
            subprocess.run([CEPH, "start", store, ADDRESS, PORT], check=True, timeout=300, env=env)
            subprocess.run([CEPH, "bucket", store, "runs"], check=True, timeout=60, env=env)
            yield self
        finally:
            subprocess.run([CEPH, "stop", store], timeout=60, env=env)
            subprocess.run([SCRIPT, "down", self.folder], timeout=120, env=env)

    def start(self, *words: str, into: Path) -> "subprocess.Popen[bytes]":
        """Start a command on the machine of the user; what it prints goes to a file."""
        with into.open("ab") as out:
            return subprocess.Popen(
                [SCRIPT, "on", self.folder, *words],
                env=_plain() | STORE,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=into.parent,
            )

    def do(self, *words: str, code: int = 0, at: Path | None = None) -> str:
        """Run a command on the machine of the user and return what it printed."""
        command = [SCRIPT, "on", self.folder, *words]
        done = subprocess.run(
            command,
            env=_plain() | STORE,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=at,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{words} ended with {done.returncode}:\n{said}"
        return done.stdout

    def queue(self) -> dict[str, Record]:
        """Return SkyPilot's records of all managed jobs, by name."""
        told = self.do("sky", "jobs", "queue", "--all", "--verbose", "--output", "json")
        return {one["job_name"]: one for one in json.loads(told[told.index("[\n") :])}

    def slurm_jobs(self) -> list[str]:
        """Return the names of what Slurm runs or is about to run."""
        env = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}
        told = subprocess.run(
            ["squeue", "-h", "-o", "%j"], env=env, capture_output=True, text=True, check=True
        )
        return told.stdout.split()

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}\n{self}"
            time.sleep(2.0)

    def __str__(self) -> str:
        logs = sorted((self.folder / "client/sky_logs/jobs_controller").glob("[0-9]*.log"))
        return "\n".join(f"--- {log}\n{log.read_text()[-4000:]}" for log in logs)


def _plain() -> dict[str, str]:
    """Return the environment without the variables of the tests and of other stores."""
    dropped = (preload.ENVIRONMENT, "AWS_", "PENSTOCK_", "PYTEST_", "SLURM_", "SKYPILOT_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
