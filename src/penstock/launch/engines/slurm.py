"""Slurm: `sbatch`, or `srun` inside an allocation that the command was given in."""

import os
import re
import subprocess
import time

from penstock.errors import PenstockError, RunFailed
from penstock.launch.engines import slurm_script
from penstock.launch.engines.engine import JOB_LOGS, Job, JobPhase, JobState, Submission
from penstock.launch.engines.slurm_refusals import refusals_of
from penstock.launch.engines.slurm_state import (
    SlurmJob,
    as_state,
    parse_ended,
    parse_squeue,
    parse_steps,
)

PATIENCE_S = 60.0  # of one command
CANCEL_S = 120.0
_STEP = "step"  # key of `Submission.detail`: the job is a step of an allocation


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


class Slurm:
    """The engine of `cluster.launcher = "slurm"`."""

    name = "slurm"

    def refusals(self, job: Job) -> list[str]:
        if self._allocation(job):
            return []
        script = slurm_script.batch_script(job, _site_defaults())
        return refusals_of(job, script, _site_defaults(), slurm_command)

    def text(self, job: Job) -> str:
        if outer := self._allocation(job):
            return f"# in allocation {outer}:\n{slurm_script.allocation_script(job)}"
        return slurm_script.batch_script(job, _site_defaults())

    def submit(self, job: Job) -> Submission:
        if outer := self._allocation(job):
            return _start_inside(job, outer)
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
        if _STEP in submission.detail:
            return self._step_state(submission)
        try:
            found = _queue(submission.job)
        except SlurmFailed as error:
            return JobState(JobPhase.UNKNOWN, f"Slurm does not answer: {error}")
        if not found:
            return JobState(JobPhase.ENDED, _how_it_ended(submission.job))
        return as_state(found)

    def cancel(self, submission: Submission) -> None:
        try:
            if name := submission.detail.get(_STEP):
                for step in _steps(submission.job, name):
                    slurm_command("scancel", step)
            else:
                slurm_command("scancel", submission.job)
        except SlurmFailed as error:
            if "already completed" not in str(error) and "Invalid job id" not in str(error):
                raise RunFailed(f"job {submission.job} cannot be cancelled: {error}") from None
        deadline = time.monotonic() + CANCEL_S
        while self.state(submission).phase is not JobPhase.ENDED:
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"job {submission.job} is cancelled and still there after {CANCEL_S:g} s; "
                    f"look at `squeue -j {submission.job}`"
                )
            time.sleep(0.5)

    def _allocation(self, job: Job) -> str:
        """Return the allocation that the command was given in, if it can hold the run.

        The variables of an allocation outlive it in a shell, and those of an interactive job of one
        node are no reason not to submit a larger one.
        """
        outer = os.environ.get("SLURM_JOB_ID", "")
        if not outer.isdigit():
            return ""
        try:
            found = _queue(outer)
        except SlurmFailed:
            return ""
        large = len(found) == 1 and found[0].state == "RUNNING" and found[0].nodes >= job.hosts
        return outer if large else ""

    def _step_state(self, submission: Submission) -> JobState:
        try:
            steps = _steps(submission.job, submission.detail[_STEP])
        except SlurmFailed as error:
            return JobState(JobPhase.UNKNOWN, f"Slurm does not answer: {error}")
        if steps:
            return JobState(JobPhase.RUNNING, f"running in allocation {submission.job}")
        if time.time() - submission.submitted < 10.0:  # srun has not made the step yet
            return JobState(JobPhase.QUEUED, f"starting in allocation {submission.job}")
        return JobState(JobPhase.ENDED, f"its step in allocation {submission.job} has ended")


def _site_defaults() -> dict[str, str]:
    """Return what a profile sets for sbatch, by the names of our fields."""
    given = {field: os.environ.get(name, "") for field, name in slurm_script.DEFAULTS.items()}
    return {field: value for field, value in given.items() if value}


def _start_inside(job: Job, outer: str) -> Submission:
    """Start the run in an allocation, in a session of its own: the terminal may be closed."""
    log = job.run_file.parent / "logs" / f"{JOB_LOGS}{outer}.log"
    env = clean_environment() | {"SLURM_JOB_ID": outer}
    with log.open("ab") as out:
        subprocess.Popen(
            ["bash", "-c", slurm_script.allocation_script(job)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=job.folder,
            start_new_session=True,
        )
    return Submission("slurm", outer, time.time(), {_STEP: job.run.name})


def _queue(number: str) -> list[SlurmJob]:
    """Return the jobs of a number that are queued or running; several for an array."""
    try:
        return parse_squeue(slurm_command("squeue", "-h", "-j", number, "-o", SlurmJob.FORMAT))
    except SlurmFailed as error:
        if "Invalid job id" in str(error):
            return []
        raise


def _steps(number: str, name: str) -> list[str]:
    return parse_steps(slurm_command("squeue", "-h", "-s", "-j", number, "-o", "%i|%j"), name)


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
