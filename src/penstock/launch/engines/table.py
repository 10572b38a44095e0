"""All engines by name, and what they say of the job of a run folder. An engine is imported when it
is used: each may need a client of its own.
"""

import contextlib
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import cast

from penstock.errors import NotYet, PenstockError
from penstock.launch.engines.engine import (
    JobPhase,
    JobState,
    LaunchEngine,
    Submission,
    read_submission,
)

ENGINES = {
    "slurm": ("penstock.launch.engines.slurm", "Slurm"),
    "ssh": ("penstock.launch.engines.ssh", "SshEngine"),
    "kubernetes": ("penstock.launch.engines.kubernetes", "Kubernetes"),
    "sky": ("penstock.launch.engines.sky", "Sky"),
}
"""Engine by its name in `cluster.launcher`: its module, and its class there."""

FRESH_S = 5.0  # an engine is asked again after this
_ENDED = "ended"  # key of `Submission.detail`: how the job ended, once that is known
_states: dict[tuple[str, str], tuple[float, JobState]] = {}


def open_engine(name: str) -> LaunchEngine:
    """Return the engine of a launcher."""
    if name not in ENGINES:
        raise NotYet(f'cluster.launcher = "{name}": this launcher is not built yet')
    module, found = ENGINES[name]
    return cast("LaunchEngine", getattr(import_module(module), found)())


def state_of(submission: Submission) -> JobState:
    """Ask the engine for the state of a job; an engine that fails gives `UNKNOWN` and its words."""
    try:
        found = open_engine(submission.engine).state(submission)
    except (PenstockError, OSError) as error:
        found = JobState(JobPhase.UNKNOWN, str(error))
    _states[submission.engine, submission.job] = time.monotonic(), found
    return found


def job_of(folder: Path) -> JobState | None:
    """Return the state of the job of a run folder; None where no engine started it.

    The state may be a few seconds old. How a job ended is kept in the folder: it changes no more,
    and engines forget it.
    """
    submission = read_submission(folder)
    if submission is None:
        return None
    if words := submission.detail.get(_ENDED):
        return JobState(JobPhase.ENDED, words)
    asked_s, found = _states.get((submission.engine, submission.job), (0.0, None))
    if found is None or time.monotonic() - asked_s > FRESH_S:
        found = state_of(submission)
    if found.phase is JobPhase.ENDED:
        with contextlib.suppress(OSError):  # a folder that only its owner may write
            keep_end(folder, submission, found)
    return found


def keep_end(folder: Path, submission: Submission, state: JobState) -> None:
    """Write into the run folder how a job ended."""
    ended = {**submission.detail, _ENDED: state.words or "ended"}
    replace(submission, detail=ended).save(folder)
