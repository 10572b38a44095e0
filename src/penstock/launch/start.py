"""The start of a run: find the machine and the data, decide how to go on, launch, supervise."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from penstock.data.read.run_tokenizer import keep_tokenizer
from penstock.errors import PenstockError, RunFailed, system_error
from penstock.guard.checkpoints import create_identity
from penstock.launch.engines.engine import submits, takes_part
from penstock.launch.prepare import launch_plan, open_model
from penstock.launch.prepare.launch_plan import BudgetLimit
from penstock.launch.prepare.listener import Listener, SafeListener
from penstock.launch.prepare.prepare import prepare
from penstock.launch.prepare.recover import repair_plan
from penstock.launch.prepare.replan import Replanner
from penstock.launch.prepare.resume import (
    ResumeDecision,
    archive,
    decide_resume,
    fork_from,
    refuse_other_weights,
    renamed,
    report_start,
)
from penstock.launch.submit import submit_and_follow
from penstock.launch.supervisor import addresses, head_start
from penstock.launch.supervisor.attempt import has_trained
from penstock.launch.supervisor.head_start import HeadStart
from penstock.launch.supervisor.hours import HourWatch, hour_watch
from penstock.launch.supervisor.supervisor import RunOutcome, Supervisor
from penstock.ledger.journal.events import InvocationEnded, InvocationStarted, RecordMended
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.meter import devices
from penstock.meter.clock import now
from penstock.meter.sampler import metered
from penstock.plan.job.layout import Layout
from penstock.policy.restart import WELL
from penstock.run.clusters.apply import with_cluster_file
from penstock.run.folder import RunFolder
from penstock.run.launch_record import LaunchRecord
from penstock.run.load import load, with_model_config
from penstock.run.save import save
from penstock.run.schema.run import Run
from penstock.run.unsupported import refuse_unsupported


def start(
    run: Run,
    fork: str | None = None,
    fresh: bool = False,
    listener: Listener | None = None,
    began: float | None = None,
    early: HeadStart | None = None,
) -> RunFolder:
    """Train `run` to its end. Everything is recorded in the folder returned.

    With a launcher other than "local" it is submitted and followed, unless this is one of its
    nodes. `early` is its fork server, where the caller has started one.
    """
    listener, began = SafeListener(listener or Listener()), began or now()
    run = with_cluster_file(run)
    refuse_unsupported(run)
    if submits(run):
        return submit_and_follow(run, fork, fresh, listener)
    with nullcontext(early) if early else head_start.begin(run, takes_part(run)) as server:
        return _start(run, fork, fresh, listener, began, server)


def _start(
    run: Run, fork: str | None, fresh: bool, listener: Listener, began: float, early: HeadStart
) -> RunFolder:
    run = with_model_config(run)
    machine = devices.find()
    listener.machine_found(str(machine))
    source = RunFolder(run.folder)
    if fork is not None:
        if fresh:
            raise PenstockError("--fork and --fresh: a fork is new by itself; give one of them")
        run = renamed(run, fork)
    folder = RunFolder(run.folder)
    if takes_part(run):
        if fork is not None or fresh:
            raise PenstockError(
                "--fork and --fresh: not on several hosts, of which none can know what the others "
                "hold; give the run another name, or fork on one host with cluster.nodes=1"
            )
        from penstock.launch.hosts.start import start as start_on_several_hosts  # torch

        start_on_several_hosts(run, machine, listener, began, early)
        return folder
    if fresh:
        none = LaunchRecord()
        prepare(run, none, machine, listener).plan_launch(none)  # before the old one is put aside
        archive(folder, run)
    with _parent_left_as_found(folder.path.parent), folder.lock(), _nothing_left(folder):
        mended = repair_plan(folder)
        if fork is not None:
            fork_from(source, folder, run)
        how = decide_resume(folder, run)
        mended += how.mended
        for words in mended:
            listener.warning(words)
        if how.finished:
            _keep_log_settings(how, folder)
            report_start(how, folder, listener)
        else:
            _launch(how, folder, machine, listener, began, mended, early)
    return folder


def _keep_log_settings(how: ResumeDecision, folder: RunFolder) -> None:
    """Save a changed `[log]` of a finished run: its outlets may lack values of it."""
    if any(change.field.startswith("log.") for change in how.changes):
        save(load(folder.run_file).model_copy(update={"log": how.run.log}), folder.run_file)


@contextmanager
def _parent_left_as_found(parent: Path) -> Iterator[None]:
    """Remove the folder of all runs if this start made it and left nothing in it."""
    there = parent.exists()
    try:
        yield
    finally:
        if not there:
            with suppress(OSError):  # not empty, or never made
                parent.rmdir()


@contextmanager
def _nothing_left(folder: RunFolder) -> Iterator[None]:
    """Remove the folder of a new run that bad input ended before its first step.

    One that failed for another reason stays, with what its ranks printed. So does a fault of
    Penstock itself or Ctrl-C, unless the lock is all there is.
    """
    new = _names(folder.path) == ["lock"]
    try:
        yield
    except BaseException as error:
        began = has_trained(folder)
        bad_input = isinstance(error, PenstockError | OSError)
        refused = bad_input and not isinstance(error, RunFailed)
        if new and (refused or _names(folder.path) == ["lock"]) and not began:
            folder.drop_scratch()
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _launch(
    how: ResumeDecision,
    folder: RunFolder,
    machine: devices.Devices,
    listener: Listener,
    began: float,
    mended: list[str],
    early: HeadStart,
) -> None:
    before = folder.read_launch_record()
    prepared = prepare(how.run, before, machine, listener)
    run = prepared.run
    layout, plan = prepared.plan_launch(before)
    refuse_other_weights(folder, run, prepared.data.vocab)
    limit = launch_plan.budget_limit(run, folder, layout.ranks, began)
    for words in launch_plan.hour_notes(plan["predicted"]):
        listener.warning(words)
    report_start(how, folder, listener)  # nothing above has refused it
    folder.make()
    mended = [*mended, *create_identity(folder, run)]
    open_model.copy_small_files(run, folder.open_model)
    keep_tokenizer(folder, prepared.datasets)
    for what in ("stop", "save", "regroup"):
        folder.acknowledge(what)  # requests to an earlier start
    save(run, folder.run_file)
    folder.write_plan(plan)
    listener.launching(folder, plan)
    hours = hour_watch(run, folder, plan)
    outcome = _supervise(run, folder, layout, machine, listener, began, limit, hours, mended, early)
    if outcome.result == "failed":
        error = RunFailed if outcome.exit_code != PenstockError.exit_code else PenstockError
        raise error(outcome.error)


def _supervise(
    run: Run,
    folder: RunFolder,
    layout: Layout,
    machine: devices.Devices,
    listener: Listener,
    began: float,
    limit: BudgetLimit | None,
    hours: HourWatch | None,
    mended: list[str],
    early: HeadStart,
) -> RunOutcome:
    """Supervise the run: the part of a launch that the run's clock counts."""
    journal = SupervisorJournal(folder.journal, clock=now)
    journal.write(InvocationStarted(ranks=layout.ranks, machine=str(machine)), t=began)
    for words in mended:
        journal.write(RecordMended(words=words))
    outcome = RunOutcome("failed", "the supervisor failed")
    try:
        with metered(folder.journal, addresses.node(), machine, layout.ranks, began):
            outcome = Supervisor(
                folder=folder,
                journal=journal,
                ranks=layout.ranks,
                threads=machine.threads(layout.ranks),
                restarts_allowed=run.guard.restarts,
                timeout_s=run.guard.timeout,
                grace_s=run.guard.grace,
                listener=listener,
                replanner=Replanner(run, folder, journal),
                deterministic=run.train.deterministic,
                compiled=run.train.compile,
                head_start=early,
                live=run.guard.mode == "live",
                limit=limit,
                hours=hours,
            ).run()
    except KeyboardInterrupt:
        outcome = RunOutcome("stopped", "ended at once; the last checkpoint stands")
    except OSError as error:
        outcome = RunOutcome("failed", system_error(error), RunFailed.exit_code)
    finally:
        journal.write(InvocationEnded(result=outcome.result, error=outcome.error))
        journal.close()
        folder.acknowledge("stop")
        if outcome.result in WELL and not outcome.error:
            folder.drop_scratch()  # what it holds is on disk too
    return outcome
