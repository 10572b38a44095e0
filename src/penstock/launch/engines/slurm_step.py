"""A run as a step of an allocation that exists already: `srun --overlap` in a session of its own.

The session outlives the terminal. It holds the lock of a file in the run folder. So every machine
that sees the folder can tell that it is there before Slurm has made its step (which takes long on
busy nodes), and when it is gone.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path
from socket import gethostname

from penstock.errors import RunFailed
from penstock.launch.engines import slurm_script
from penstock.launch.engines.engine import JOB_LOGS, JobPhase, JobSpec, JobState, Submission
from penstock.launch.engines.slurm_state import (
    SlurmFailed,
    clean_environment,
    parse_steps,
    slurm_command,
)

STEP = "step"
"""Key of `Submission.detail`: the job is a step of an allocation, with this name."""
_SESSION = "session"  # key of `Submission.detail`: the file that the session holds the lock of


def start(job: JobSpec, outer: str) -> Submission:
    """Start the run in an allocation; the terminal may be closed."""
    folder = job.run_file.parent
    held = folder / _SESSION
    log = folder / "logs" / f"{JOB_LOGS}{outer}.log"
    with held.open("a+") as lock, log.open("ab") as out:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFailed(
                f"run '{job.run.name}' is still ending in allocation {outer}; give the same "
                "command again in a moment"
            ) from None
        session = subprocess.Popen(
            ["bash", "-c", slurm_script.allocation_script(job)],
            env=clean_environment() | {"SLURM_JOB_ID": outer},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=job.folder,
            start_new_session=True,
            pass_fds=[lock.fileno()],  # bash and srun hold the lock too
        )
        lock.truncate(0)
        lock.write(f"{session.pid} {gethostname()}")
    detail = {STEP: job.run.name, _SESSION: str(held)}
    return Submission("slurm", outer, time.time(), detail)


def state(submission: Submission) -> JobState:
    """Return the state of the step; without one, that of its session."""
    outer = submission.job
    try:
        there = _steps(submission)
    except SlurmFailed as error:
        return JobState(JobPhase.UNKNOWN, f"Slurm does not answer: {error}")
    if there:
        return JobState(JobPhase.RUNNING, f"running in allocation {outer}")
    if session_lives(Path(submission.detail[_SESSION])):
        return JobState(JobPhase.QUEUED, f"starting or ending in allocation {outer}")
    return JobState(JobPhase.ENDED, f"its step in allocation {outer} has ended")


def cancel(submission: Submission) -> None:
    """Cancel the step, and end its session where that is on this machine.

    Called until both are gone: a step may be made at any moment.
    """
    for step in _steps(submission):
        slurm_command("scancel", step)
    held = Path(submission.detail[_SESSION])
    if session_lives(held):
        pid, _, host = held.read_text().partition(" ")
        if host == gethostname() and pid.isdigit():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGTERM)


def session_lives(held: Path) -> bool:
    """Return whether a process of the session has the file's lock."""
    try:
        with held.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _steps(submission: Submission) -> list[str]:
    told = slurm_command("squeue", "-h", "-s", "-j", submission.job, "-o", "%i|%j")
    return parse_steps(told, submission.detail[STEP])
