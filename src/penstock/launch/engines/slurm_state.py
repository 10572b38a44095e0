"""Commands of Slurm, what they print of jobs, and the state that it means."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.launch.engines.engine import JobPhase, JobState

PATIENCE_S = 60.0  # of one command
WAITING = ("PENDING", "REQUEUED", "CONFIGURING", "REQUEUE_HOLD", "SPECIAL_EXIT", "SUSPENDED")
_REASONS = {
    "Resources": "for nodes to become free",
    "Priority": "for jobs with a higher priority",
    "BeginTime": "until Slurm may start it again",
    "Dependency": "for another job",
    "JobHeldUser": "since a user holds it: `scontrol release` lets it go",
    "JobHeldAdmin": "since an administrator holds it",
    "QOSMaxJobsPerUserLimit": "since you have as many jobs as your QOS allows",
    "AssocGrpCpuLimit": "since the account's limit of CPUs is reached",
    "ReqNodeNotAvail": "for nodes that are down or reserved",
    "PartitionDown": "since its partition is down",
    "None": "for the scheduler",
    "": "for the scheduler",
}


class SlurmFailed(OSError):
    """A command of Slurm that failed, with what it said."""


def clean_environment() -> dict[str, str]:
    """Return this environment without what an outer job, or a profile, says to Slurm's commands.

    Only where Slurm's configuration is, is kept.
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER")
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(("SLURM_", "SBATCH_", "SQUEUE_", "PMI_", "PMIX_"))
    }


def slurm_command(*words: str, stdin: str | None = None) -> str:
    """Run a command of Slurm and return what it printed."""
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            env=clean_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
        )
    except FileNotFoundError:
        raise SlurmFailed(f"no {words[0]} on this machine") from None
    except subprocess.TimeoutExpired:
        raise SlurmFailed(f"{words[0]} did not answer in {PATIENCE_S:g} s") from None
    if done.returncode:
        said = [line for line in done.stderr.strip().splitlines() if line]
        raise SlurmFailed(said[-1] if said else f"{words[0]} ended with {done.returncode}")
    return done.stdout


@dataclass(frozen=True)
class SlurmJob:
    """One line of squeue: a job, or the tasks of an array that wait."""

    FORMAT: ClassVar[str] = "%i|%T|%r|%D|%N|%S"
    job: str
    state: str
    reason: str
    nodes: int
    names: tuple[str, ...]
    begins: str

    @property
    def count(self) -> int:
        """Tasks of an array that this line stands for: `12_[1-3,5]` are four."""
        listed = re.search(r"_\[([0-9,\-]+)", self.job)
        if not listed:
            return 1
        ends = [part.partition("-") for part in listed[1].split(",") if part]
        return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def parse_squeue(printed: str) -> list[SlurmJob]:
    """Read what `squeue -h -o FORMAT` printed."""
    found = []
    for line in printed.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 6 and parts[3].isdigit():
            job, state, reason, nodes, names, begins = parts
            found.append(SlurmJob(job, state, reason, int(nodes), expand(names), begins))
    return found


def queue(number: str) -> list[SlurmJob]:
    """Return the jobs of a number that are queued or running; several for an array."""
    try:
        return parse_squeue(slurm_command("squeue", "-h", "-j", number, "-o", SlurmJob.FORMAT))
    except SlurmFailed as error:
        if "Invalid job id" in str(error):
            return []
        raise


def expand(names: str) -> tuple[str, ...]:
    """Return the nodes of a list as Slurm writes it: `n[1-2,4],head` are four."""
    found: list[str] = []
    for prefix, inner, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)", names):
        for part in inner.split(",") if inner else [""]:
            first, dash, last = part.partition("-")
            if not dash:
                found.append(f"{prefix}{part}{suffix}")
                continue
            width = len(first)
            found += [f"{prefix}{n:0{width}d}{suffix}" for n in range(int(first), int(last) + 1)]
    return tuple(found)


def parse_steps(printed: str, name: str) -> list[str]:
    """Return the steps of a name from `squeue -s -o "%i|%j"`."""
    lines = [line.strip().partition("|") for line in printed.splitlines()]
    return [step for step, _, found in lines if found == name]


def as_state(jobs: Sequence[SlurmJob]) -> JobState:
    """Return one state for a job, or for all tasks of an array."""
    running = [job for job in jobs if job.state not in WAITING]
    waiting = [job for job in jobs if job.state in WAITING]
    nodes = tuple(name for job in running for name in job.names)
    if running and all(job.state == "COMPLETING" for job in running) and not waiting:
        return JobState(JobPhase.RUNNING, f"ending on {_listed(nodes)}", nodes)
    if running:
        words = f"running on {_listed(nodes)}"
        if queued := sum(job.count for job in waiting):
            words += f"; {queued} more wait {_reason(waiting[0].reason)}"
        return JobState(JobPhase.RUNNING, words, nodes)
    words = f"job {jobs[0].job.partition('_')[0]} waits {_reason(waiting[0].reason)}"
    if waiting[0].begins not in ("", "N/A"):
        words += f"; expected to start at {waiting[0].begins.replace('T', ' ')}"
    return JobState(JobPhase.QUEUED, words)


def parse_ended(printed: str) -> str:
    """Return how a job ended, from `scontrol -o show job` or from `sacct -P -o State,ExitCode`."""
    found = re.findall(r"JobState=(\S+).*?ExitCode=(\S+)", printed)
    found = found or re.findall(r"^([A-Z_]+)[^|\n]*\|(\S+)", printed, re.M)
    if not found:
        return ""
    # Tasks of an array that still waited are cancelled when the run has ended on the others.
    well = ("COMPLETED", "CANCELLED") if "COMPLETED" in dict(found) else ("COMPLETED",)
    bad = [one for one in found if one[0] not in well]
    state, code = bad[0] if bad else (well[0], "0")
    words = state.lower().replace("_", " ")
    if state == "FAILED":
        words += f" with exit code {code.partition(':')[0]}"
    return f"ended: {words}"


def _reason(reason: str) -> str:
    return _REASONS.get(reason.strip("()"), f"({reason})")


def _listed(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:8])
    return f"{shown} and {len(nodes) - 8} more" if len(nodes) > 8 else shown or "its nodes"
