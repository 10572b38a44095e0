"""Checks of `train` and `check` before a run is submitted."""

from pathlib import Path

from penstock.data.store.objects import is_url
from penstock.errors import PenstockError
from penstock.launch.engines.engine import JobPhase, JobSpec, read_submission
from penstock.launch.engines.table import job_of, open_engine
from penstock.launch.hosts.meeting import meeting_place
from penstock.run.diff import describe_changes, diff
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.schema.run import Run


def refuse_submission(run: Run, dry: bool = False) -> None:
    """Raise PenstockError with everything that keeps this run from being submitted.

    `dry` is for a run that will only be shown: no bucket is asked.
    """
    job = JobSpec(run, RunFolder(run.folder).run_file, Path.cwd(), dry=dry)
    refuse_second_job(run)
    problems = open_engine(run.cluster.launcher).refusals(job)
    if not problems and not dry:  # a place that the engine refuses is not worth asking
        problems = _durable_problems(run)
    if problems:
        raise PenstockError("\n".join(problems))


def refuse_second_job(run: Run) -> None:
    """Refuse a run whose name is in the queue with another run file, or trained by hand here."""
    folder = RunFolder(run.folder)
    submission = read_submission(folder.path)
    state = job_of(folder.path) if submission else None
    if submission and state and state.phase in (JobPhase.QUEUED, JobPhase.RUNNING):
        if changes := diff(load(folder.run_file), run):
            raise PenstockError(
                f'name = "{run.name}": job {submission.job} of this name is {state.phase} with '
                f"another run file:\n{describe_changes(changes)}\nUndo the change to follow it, "
                f"stop it with `penstock stop {run.name}`, or give the run another name"
            )
    elif folder.running():
        raise PenstockError(
            f'name = "{run.name}": a run of this name trains on this machine; '
            f"`penstock stop {run.name}` ends it, or give the run another name"
        )


def _durable_problems(run: Run) -> list[str]:
    """Say why the durable place cannot be used; it is reached as the nodes will reach it."""
    durable = run.guard.durable
    if durable is None:
        return []
    try:
        if not is_url(durable):
            Path(durable).expanduser().mkdir(parents=True, exist_ok=True)
        meeting_place(run).list("submitted")
    except OSError as error:
        fix = "create it, or name another" if isinstance(error, FileNotFoundError) else ""
        fix = fix or "check its address and the credentials in the environment"
        return [f'guard.durable = "{durable}": cannot be reached: {error}; {fix}']
    return []
