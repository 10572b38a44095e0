"""Submission of a run to an engine: check it here, write what the nodes read, submit, follow.

Nothing trains on this machine. What `train` would refuse on the nodes is refused here, before
anything waits in a queue or costs money.
"""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from socket import gethostname

from penstock.errors import PenstockError
from penstock.launch.engines.engine import JobPhase, JobSpec, Submission, read_submission
from penstock.launch.engines.refuse import refuse_second_job
from penstock.launch.engines.table import job_of, open_engine
from penstock.launch.follow import INVOCATIONS, count_invocations, follow
from penstock.launch.hosts import meeting
from penstock.launch.prepare.listener import Listener
from penstock.launch.verify import notes_of, verify
from penstock.run.clusters.apply import with_cluster_file
from penstock.run.folder import RunFolder
from penstock.run.paths import KEY as PATHS
from penstock.run.paths import located_paths
from penstock.run.save import save, to_toml
from penstock.run.schema.run import Run

SUBMITTED_RUN = "submitted.toml"
SUBMITTING = "submitting"  # lock: two commands at once submit one job
ACTIVE = (JobPhase.QUEUED, JobPhase.RUNNING)


def submit_and_follow(
    run: Run, fork: str | None = None, fresh: bool = False, listener: Listener | None = None
) -> RunFolder:
    """Submit a run, or attach to its job, and follow it to its end.

    Ctrl-C ends the following alone; the job goes on.
    """
    listener = listener or Listener()
    run = with_cluster_file(run)
    _refuse_fork_and_fresh(run, fork, fresh)
    folder = RunFolder(run.folder)
    refuse_second_job(run)
    submission, state = read_submission(folder.path), job_of(folder.path)
    if submission and state and state.phase in ACTIVE:
        listener.host_message(f"attached to job {submission.job}: {state.words}")
    elif submission and state and state.phase is JobPhase.UNKNOWN:
        raise PenstockError(
            f"job {submission.job} of run '{run.name}' may still be there: {state.words}. Give the "
            f"same command when {submission.engine} answers"
        )
    elif _has_finished(run, folder, listener):
        return folder
    else:
        submission = submit(run, listener)
    follow(run, submission, listener)
    return folder


def submit(run: Run, listener: Listener) -> Submission:
    """Submit a run; leave nothing behind where that is refused."""
    check(run, listener)
    folder = RunFolder(run.folder)
    engine = open_engine(run.cluster.launcher)
    new = not folder.exists()
    try:
        with folder.lock(SUBMITTING):
            before = read_submission(folder.path)
            state = job_of(folder.path)
            if before and state and state.phase in ACTIVE:  # by another command, in this moment
                return before
            _write_folder(run, folder)
            job = job_for(run)
            started = _examined(run, job, listener)
            _mark(run, job)
            submission = engine.submit(replace(job, run=started))
            counted = {**submission.detail, INVOCATIONS: str(count_invocations(folder))}
            submission = replace(submission, detail=counted, token=job.token)
            submission.save(folder.path)
    except BaseException:
        if new and not (folder.path / "submission.json").exists():
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    listener.host_message(f"submitted as job {submission.job} of {engine.name}")
    return submission


def _has_finished(run: Run, folder: RunFolder, listener: Listener) -> bool:
    """Say so where there is nothing left to train."""
    if not folder.exists():
        return False
    from penstock.launch.prepare.resume import decide_resume, report_start  # torch

    how = decide_resume(folder, run)
    if how.finished:
        report_start(how, folder, listener)
    return how.finished


def _examined(run: Run, job: JobSpec, listener: Listener) -> Run:
    """Return the run without hosts that the doctor finds bad, where hosts are listed."""
    if run.cluster.launcher != "ssh":
        return run
    from penstock.launch.doctor.before import without_bad_nodes  # 0.05 s of a submission

    return without_bad_nodes(run, run.cluster.ssh.folder or str(job.folder), listener)


def check(run: Run, listener: Listener) -> None:
    """Refuse what `train` would refuse, and what the engine cannot start."""
    found = verify(run)
    if found.refused:
        raise found.refused
    for note in notes_of(found):
        listener.warning(note)


def job_for(run: Run) -> JobSpec:
    """Return the job of a run, from the current folder.

    Its word is made from all that it is, so that `--dry-run` shows what will be submitted.
    """
    folder = RunFolder(run.folder).path.absolute()
    word = hashlib.sha256(f"{gethostname()} {folder}\n{to_toml(run)}".encode()).hexdigest()[:16]
    return JobSpec(run, folder / SUBMITTED_RUN, Path.cwd(), word)


def _write_folder(run: Run, folder: RunFolder) -> None:
    """Write the run file that the nodes read, and where its relative paths were found."""
    folder.make()
    if not folder.plan_file.exists():
        folder.write_plan({PATHS: located_paths(run)})
    if not folder.exists():  # else the nodes compare the two: a resumed run keeps its choices
        save(run, folder.run_file)
    save(run, folder.path / SUBMITTED_RUN)


def _mark(run: Run, job: JobSpec) -> None:
    """Leave the word of the submission where the nodes will meet."""
    place = meeting.meeting_place(run)
    try:
        meeting.mark_submission(place, job.token)
    except OSError as error:
        raise PenstockError(
            f'guard.durable = "{run.guard.durable}": cannot be written: {error}; check the '
            "credentials in the environment"
        ) from None


def _refuse_fork_and_fresh(run: Run, fork: str | None, fresh: bool) -> None:
    if fork is not None or fresh:
        raise PenstockError(
            f'--fork and --fresh: not with cluster.launcher = "{run.cluster.launcher}"; give the '
            "run another name, or fork it on this machine with cluster.launcher=local first"
        )
