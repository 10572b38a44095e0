"""Slurm: `sbatch`, or `srun` inside an allocation that the command was given in."""

import os
import re
import time

from penstock.errors import PenstockError, RunFailed
from penstock.launch.engines import slurm_script, slurm_step
from penstock.launch.engines.engine import JobPhase, JobSpec, JobState, Submission
from penstock.launch.engines.slurm_refusals import refusals_of
from penstock.launch.engines.slurm_state import (
    SlurmFailed,
    as_state,
    parse_ended,
    queue,
    slurm_command,
)

CANCEL_S = 120.0


class Slurm:
    """The engine of `cluster.launcher = "slurm"`."""

    name = "slurm"

    def refusals(self, job: JobSpec) -> list[str]:
        if self._allocation(job):
            return []
        script = slurm_script.batch_script(job, _site_defaults())
        return refusals_of(job, script, _site_defaults(), slurm_command)

    def text(self, job: JobSpec) -> str:
        if outer := self._allocation(job):
            return f"# in allocation {outer}:\n{slurm_script.allocation_script(job)}"
        return slurm_script.batch_script(job, _site_defaults())

    def submit(self, job: JobSpec) -> Submission:
        if outer := self._allocation(job):
            return slurm_step.start(job, outer)
        script = slurm_script.batch_script(job, _site_defaults())
        try:
            printed = slurm_command("sbatch", "--parsable", stdin=script)
        except SlurmFailed as error:
            raise PenstockError(f"sbatch refused the run: {error}") from None
        number = printed.strip().partition(";")[0]
        if not re.fullmatch(r"[0-9]+", number):
            raise RunFailed(f"sbatch printed no job id: {printed.strip()!r}")
        return Submission(self.name, number, time.time(), {})

    def state(self, submission: Submission) -> JobState:
        if slurm_step.STEP in submission.detail:
            return slurm_step.state(submission)
        try:
            found = queue(submission.job)
        except SlurmFailed as error:
            return JobState(JobPhase.UNKNOWN, f"Slurm does not answer: {error}")
        if not found:
            return JobState(JobPhase.ENDED, _how_it_ended(submission.job))
        return as_state(found)

    def cancel(self, submission: Submission) -> None:
        deadline = time.monotonic() + CANCEL_S
        _cancel(submission)
        while self.state(submission).phase is not JobPhase.ENDED:
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"job {submission.job} is cancelled and still there after {CANCEL_S:g} s; "
                    f"look at `squeue -j {submission.job}`"
                )
            time.sleep(0.5)
            if slurm_step.STEP in submission.detail:
                _cancel(submission)

    def _allocation(self, job: JobSpec) -> str:
        """Return the allocation that the command was given in, if it can hold the run.

        The variables of an allocation outlive it in a shell, and those of an interactive job of one
        node are no reason not to submit a larger one.
        """
        outer = os.environ.get("SLURM_JOB_ID", "")
        if not outer.isdigit():
            return ""
        try:
            found = queue(outer)
        except SlurmFailed:
            return ""
        large = len(found) == 1 and found[0].state == "RUNNING" and found[0].nodes >= job.hosts
        return outer if large else ""


def _cancel(submission: Submission) -> None:
    try:
        if slurm_step.STEP in submission.detail:
            slurm_step.cancel(submission)
        else:
            slurm_command("scancel", submission.job)
    except SlurmFailed as error:
        if "already completed" not in str(error) and "Invalid job id" not in str(error):
            raise RunFailed(f"job {submission.job} cannot be cancelled: {error}") from None


def _site_defaults() -> dict[str, str]:
    """Return what a profile sets for sbatch, by the names of our fields."""
    given = {field: os.environ.get(name, "") for field, name in slurm_script.DEFAULTS.items()}
    return {field: value for field, value in given.items() if value}


def _how_it_ended(number: str) -> str:
    """Return how a job ended, from the controller's memory, or from accounting."""
    for words in (
        ("scontrol", "-o", "show", "job", number),
        ("sacct", "-n", "-X", "-P", "-j", number, "-o", "State,ExitCode"),
    ):
        try:
            if said := parse_ended(slurm_command(*words)):
                return said
        except SlurmFailed:
            continue
    return "ended; Slurm no longer knows how"
