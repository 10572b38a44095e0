"""What Slurm prints of jobs, and the state that it means."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.launch.engines.engine import JobPhase, JobState

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
