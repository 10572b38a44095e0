"""The interface of an engine: refuse what cannot run, show, submit, ask for and cancel a job.

An engine only starts `penstock train` once per node. The hosts then meet, restart and heal by
themselves (`launch/hosts/`), the same as if someone had typed the command on each of them.
"""

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from penstock.files import write_atomic
from penstock.launch.hosts.meeting import TOKEN
from penstock.run.schema.run import Run

NODE_OF = "PENSTOCK_NODE_OF"
"""Environment variable that an engine sets on a node: its own name. `train` then takes part in the
run there and submits nothing."""


JOB_LOGS = "job-"
"""First letters of files in `logs/` of the run folder with what nodes printed, where an engine
writes them there; `penstock logs` shows them."""


FAR = ("kubernetes", "sky")
"""Engines whose nodes share no disk with the machine that submits."""


def on_a_node() -> bool:
    """Return whether an engine started this process as one node of a run."""
    return bool(os.environ.get(NODE_OF))


def submits(run: Run) -> bool:
    """Return whether `train` submits this run to an engine, instead of training here."""
    return run.cluster.launcher != "local" and not on_a_node()


def meets(run: Run) -> bool:
    """Return whether the nodes of a submitted run meet in its durable place.

    Several nodes do, and so does one with a spare. A node that shares no disk with the machine that
    submits does too: by that place it can be followed and stopped.
    """
    hosts = run.cluster.nodes + run.guard.spares
    return hosts > 1 or run.cluster.launcher in FAR


def takes_part(run: Run) -> bool:
    """Return whether `train` makes this process one of several hosts of the run."""
    return run.cluster.nodes > 1 or (on_a_node() and meets(run))


def is_out_of_reach(run: Run) -> bool:
    """Return whether the records of a submitted run are on a volume that only its nodes see."""
    return run.cluster.launcher in FAR and run.guard.durable is None


@dataclass(frozen=True)
class JobSpec:
    """A run for an engine to start: the run file that the nodes will read, and a working folder."""

    run: Run
    run_file: Path
    """The whole run, resolved, which every node reads."""
    folder: Path
    """Folder that the command was given in; relative paths in the run file mean this one."""
    token: str = ""
    """Random word of this submission, for the variable `TOKEN` of the nodes."""
    dry: bool = False
    """Nothing will be submitted, so that credentials may be missing."""

    @property
    def hosts(self) -> int:
        """Nodes to start: those of the run and its spares."""
        return self.run.cluster.nodes + self.run.guard.spares

    @property
    def env(self) -> dict[str, str]:
        """Variables that every node needs, whatever the engine."""
        return {NODE_OF: self.run.cluster.launcher, TOKEN: self.token}


@dataclass(frozen=True)
class Submission:
    """A job that an engine has accepted, as `submission.json` of the run folder keeps it."""

    engine: str
    job: str
    """Name of the job in the words of the engine: Slurm's job id, a JobSet's name, …"""
    submitted: float
    detail: dict[str, str]
    token: str = ""
    """`JobSpec.token` of the job."""

    def save(self, folder: Path) -> None:
        write_atomic(folder / "submission.json", json.dumps(asdict(self), indent=1) + "\n")


def read_submission(folder: Path) -> Submission | None:
    """Return what was submitted for a run folder, or None where it was started by hand."""
    try:
        return Submission(**json.loads((folder / "submission.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def far_logs(submission: Submission) -> str:
    """Return the command that shows what nodes print which share no disk with this machine."""
    if submission.engine == "sky":
        return f"sky jobs logs {submission.job}"
    if submission.engine == "kubernetes":
        where = submission.detail.get("namespace", "default")
        return f"kubectl logs -n {where} -l app.kubernetes.io/instance={submission.job}"
    return ""


class JobPhase(StrEnum):
    """Phase of a submitted job."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"
    """The engine does not answer, or no longer knows the job."""


@dataclass(frozen=True)
class JobState:
    """State of a submitted job, in the engine's words where people read it."""

    phase: JobPhase
    words: str
    """Such as "waits for resources (3 jobs before it)" or "ended: out of memory"."""
    nodes: tuple[str, ...] = ()
    well: bool | None = None
    """Whether it ended well, where the engine knows; the run's own records say it better."""


class LaunchEngine(Protocol):
    """A system that starts `penstock train` on the nodes of a run."""

    name: str

    def refusals(self, job: JobSpec) -> list[str]:
        """Return why this job cannot be submitted: field, value and fix, one line each."""
        ...

    def text(self, job: JobSpec) -> str:
        """Return exactly what `submit` would submit, for `--dry-run`."""
        ...

    def submit(self, job: JobSpec) -> Submission:
        """Submit the job and return at once."""
        ...

    def state(self, submission: Submission) -> JobState:
        """Return the state of a submitted job."""
        ...

    def cancel(self, submission: Submission) -> None:
        """End the job and everything that it started; return when nothing of it is left."""
        ...
