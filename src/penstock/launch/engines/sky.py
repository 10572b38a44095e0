"""SkyPilot: one managed job per run, on rented machines that may vanish and are replaced."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from penstock.errors import PenstockError, RunFailed
from penstock.files import write_atomic
from penstock.launch.engines.carry import carry
from penstock.launch.engines.engine import JobPhase, JobSpec, JobState, Submission
from penstock.launch.engines.kubernetes_fields import object_name
from penstock.launch.engines.sky_task import launch_command, static_problems, task
from penstock.launch.engines.yaml_text import to_yaml
from penstock.run.schema.run import Run
from penstock.secret import redact
from penstock.style import plural

TASK = "sky.yaml"
"""File of the run folder that was submitted."""
LAUNCH_S, ASK_S, CANCEL_S = 1800.0, 120.0, 900.0
POLL_S = 5.0
FRESH_S = 20.0  # the queue is asked again after this: its command takes seconds of a core
LONGEST_WORDS = 300
_JOB_ID = re.compile(r"Managed Job ID: (\d+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # SkyPilot prints reasons of failures in colours
_NO_JOBS = "No in-progress managed jobs"
_kept: tuple[float, list[dict[str, Any]]] | None = None
_QUEUED = {"PENDING": "waits for SkyPilot's controller", "STARTING": "machines are being rented"}
_RUNNING = {
    "RUNNING": "runs",
    "RECOVERING": "machines were lost; others are being rented",
    "WINDING_DOWN": "ends",
    "CANCELLING": "is being cancelled",
}


class Sky:
    """Managed jobs of SkyPilot, through its command."""

    name = "sky"

    def refusals(self, job: JobSpec) -> list[str]:
        problems = list(static_problems(job.run))
        return problems if problems or job.dry else list(missing_variables(job.run))

    def text(self, job: JobSpec) -> str:
        return to_yaml(task(job.run, carry(job.run), job.env))

    def submit(self, job: JobSpec) -> Submission:
        """Submit the job; refuse a second one of its name before that."""
        run, name = job.run, object_name(job.run.name)
        active = [one for one in _queue() if one["job_name"] == name and not _ended(one)]
        if active:
            raise PenstockError(
                f'name = "{run.name}": job {active[0]["job_id"]} of SkyPilot has this name and has '
                f"not ended; `sky jobs cancel {active[0]['job_id']}` ends it, or give the run "
                "another name"
            )
        file = job.run_file.parent / TASK
        write_atomic(file, self.text(job))
        said = _sky(launch_command(run, str(file))[1:], LAUNCH_S)
        _forget()
        if told := _JOB_ID.search(_COLOURS.sub("", said)):
            number = told[1]
        else:
            number = str(max(one["job_id"] for one in _queue() if one["job_name"] == name))
        return Submission(self.name, number, time.time(), {"job_name": name})

    def state(self, submission: Submission) -> JobState:
        found = [one for one in _queue(FRESH_S) if str(one["job_id"]) == submission.job]
        if not found:
            return JobState(JobPhase.UNKNOWN, f"SkyPilot knows no job {submission.job}")
        return describe(found[0])

    def cancel(self, submission: Submission) -> None:
        if self.state(submission).phase in (JobPhase.ENDED, JobPhase.UNKNOWN):
            return
        _sky(["jobs", "cancel", "--yes", submission.job], CANCEL_S)
        until = time.monotonic() + CANCEL_S
        _queue()
        while (state := self.state(submission)).phase is not JobPhase.ENDED:
            if time.monotonic() > until:
                raise RunFailed(
                    f"job {submission.job} is not gone after {CANCEL_S:.0f} s: {state.words}; see "
                    "`sky jobs queue` and `sky status`, since its machines may still cost money"
                )
            time.sleep(POLL_S)
            _queue()


def missing_variables(run: Run) -> Iterator[str]:
    """Say which variables that the machines need are not set here."""
    for name in run.cluster.sky.secrets:
        if not os.environ.get(name):
            yield (
                f'cluster.sky.secrets: "{name}" is not set here, and the machines get it from '
                f"here; `export {name}=…`, or remove it from the list"
            )


def describe(record: dict[str, Any]) -> JobState:
    """Return the state of a managed job, from its record in `sky jobs queue`."""
    status = str(record.get("status") or "")
    where = str(record.get("infra") or record.get("region") or record.get("cloud") or "")
    nodes = tuple(filter(None, str(record.get("node_names") or "").split(",")))
    if status in _QUEUED:
        return JobState(JobPhase.QUEUED, _with(_QUEUED[status], record.get("details")), nodes)
    if status in _RUNNING:
        words = _RUNNING[status] + (f" on {where}" if where not in ("", "-") else "")
        lost = record.get("recovery_count") or 0
        words += f", recovered {plural(lost, 'time')}" if lost else ""
        return JobState(JobPhase.RUNNING, words, nodes)
    if not _ended(record):
        return JobState(JobPhase.UNKNOWN, f"SkyPilot calls it {status or 'nothing'}", nodes)
    done = {"SUCCEEDED": "ended: done", "CANCELLED": "ended: cancelled"}
    words = done.get(status) or f"ended: {status.lower().replace('_', ' ')}"
    return JobState(JobPhase.ENDED, _with(words, record.get("failure_reason")), nodes)


def _ended(record: dict[str, Any]) -> bool:
    status = str(record.get("status") or "")
    return status in ("SUCCEEDED", "CANCELLED") or status.startswith("FAILED")


def _with(words: str, more: object) -> str:
    said = " ".join(_COLOURS.sub("", str(more or "")).split())
    words = f"{words}: {said}" if said else words
    return words if len(words) <= LONGEST_WORDS else f"{words[: LONGEST_WORDS - 1]}…"


def _forget() -> None:
    """Forget the queue as it was before a job was launched."""
    global _kept
    _kept = None


def _queue(fresh_s: float = 0.0) -> list[dict[str, Any]]:
    """Return all managed jobs that SkyPilot knows, as they were at most `fresh_s` ago."""
    global _kept
    if _kept and time.monotonic() - _kept[0] < fresh_s:
        return _kept[1]
    try:
        # Without --verbose, SkyPilot leaves place, details and reason of a failure null.
        said = _sky(["jobs", "queue", "--all", "--verbose", "--output", "json"], ASK_S)
    except RunFailed as error:
        if _NO_JOBS in str(error):  # there is no controller yet
            return []
        raise
    _kept = time.monotonic(), _records(said)
    return _kept[1]


def _records(said: str) -> list[dict[str, Any]]:
    """Return the records that `sky jobs queue` printed.

    Other words may stand before them: the first command also says that it starts SkyPilot's server.
    """
    plain = _COLOURS.sub("", said)
    for begin in re.finditer(r"^\[", plain, re.MULTILINE):
        try:
            return [dict(one) for one in json.loads(plain[begin.start() :])]
        except (ValueError, TypeError):
            continue
    raise RunFailed(f"`sky jobs queue` answered something else: {plain[:200]!r}")


def _sky(arguments: list[str], timeout_s: float) -> str:
    """Run SkyPilot's command and return what it printed."""
    program = shutil.which("sky")
    if program is None:
        raise PenstockError(
            'cluster.launcher = "sky": SkyPilot is not installed; install it in an environment of '
            "its own (`uv tool install 'skypilot[aws]'`), so that `sky` is found, and see `sky "
            "check`. Without it, `penstock train RUN --dry-run` shows the task"
        )
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(
            f"`sky {arguments[0]} {arguments[1]}` gave no answer in {timeout_s:.0f} s; see `sky "
            "api status`"
        ) from None
    if done.returncode:
        printed = _COLOURS.sub("", done.stderr + done.stdout)
        lines = [line for line in printed.splitlines() if line.strip()]
        why = redact(" ".join(lines[-3:]))[-400:]
        raise RunFailed(f"`sky {' '.join(arguments[:2])}` failed: {why or done.returncode}")
    return done.stdout
