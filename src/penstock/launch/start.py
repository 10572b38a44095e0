"""From a run to its outcome: find the machine and the data, decide how to go on, launch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.data.home import open_dataset
from penstock.data.shards import Dataset
from penstock.data.stream import Stream
from penstock.errors import PenstockError, RunFailed
from penstock.files import write_atomic
from penstock.launch import foresee
from penstock.launch.listener import Listener
from penstock.launch.local import Limit, Local, Outcome
from penstock.launch.resume import archive, fork_from, how_to_go_on, renamed
from penstock.ledger.journal import SupervisorJournal
from penstock.meter import devices
from penstock.meter.clock import now
from penstock.plan.dataset import Sizes
from penstock.plan.layout import Layout, choose
from penstock.run.diff import closed
from penstock.run.file import Run
from penstock.run.folder import RunFolder
from penstock.run.notyet import refuse
from penstock.run.save import save


def start(
    run: Run,
    fork: str | None = None,
    fresh: bool = False,
    listener: Listener | None = None,
    began: float | None = None,
) -> RunFolder:
    """Train `run` to its end on this machine. Everything is recorded in the folder returned."""
    listener, began = listener or Listener(), began or now()
    refuse(run)
    machine = devices.find()
    listener.found(str(machine))
    source = RunFolder(run.folder)
    if fork is not None:
        if fresh:
            raise PenstockError("--fork and --fresh: a fork is new by itself; give one of them")
        run = renamed(run, fork)
    folder = RunFolder(run.folder)
    if fresh:
        _prepare(run, {}, machine, listener)  # refuse before the old run is put aside
        archive(folder)
    with folder.lock(), _nothing_left(folder):
        if fork is not None:
            fork_from(source, folder, run)
        how = how_to_go_on(folder, run)
        listener.going_on(how, folder)
        if how.finished:
            return folder
        _launch(closed(how.run), folder, machine, listener, began)
    return folder


@contextmanager
def _nothing_left(folder: RunFolder) -> Iterator[None]:
    """A launch that is refused before the run exists leaves no folder behind."""
    try:
        yield
    except PenstockError:
        if [path.name for path in folder.path.iterdir()] == ["lock"]:
            (folder.path / "lock").unlink()
            folder.path.rmdir()
        raise


def _launch(
    run: Run, folder: RunFolder, machine: devices.Devices, listener: Listener, began: float
) -> None:
    before = folder.read_plan()
    layout, plan = _prepare(run, before, machine, listener)
    limit = foresee.limit(run, folder, layout.ranks, began)
    if "forked_from" in before:
        plan["forked_from"] = before["forked_from"]

    folder.make()
    for what in ("stop", "save"):
        folder.granted(what)  # wishes of an earlier life
    save(run, folder.run_file)
    write_atomic(folder.plan_file, json.dumps(plan, indent=1))
    listener.launching(folder, plan)
    outcome = _supervise(run, folder, layout, machine, listener, began, limit)
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
    limit: Limit | None,
) -> Outcome:
    """The part of a launch that the run's clock counts."""
    journal = SupervisorJournal(folder.journal, clock=now)
    journal.event("invocation", t=began, ranks=layout.ranks, machine=str(machine))
    outcome = Outcome("failed", "the supervisor failed")
    try:
        outcome = Local(
            folder=folder,
            journal=journal,
            ranks=layout.ranks,
            threads=machine.threads(layout.ranks),
            allowed=run.guard.restarts,
            timeout_s=run.guard.timeout,
            listener=listener,
            deterministic=run.train.deterministic,
            limit=limit,
        ).run()
    except KeyboardInterrupt:
        outcome = Outcome("stopped", "ended at once; the last checkpoint stands")
    finally:
        journal.event("ended", result=outcome.result, error=outcome.error)
        journal.close()
        folder.granted("stop")
    return outcome


def _prepare(
    run: Run, before: dict[str, Any], machine: devices.Devices, listener: Listener
) -> tuple[Layout, dict[str, Any]]:
    """The layout and the plan. What can be refused is, before the folder says there is a run."""
    dataset = open_dataset(before.get("dataset", run.data.dataset), listener.progress)
    stream = Stream(dataset, run.sequence, run.train.seed, run.evaluate.holdout)
    if run.batch_samples > stream.samples:
        raise PenstockError(
            f"train.batch_tokens = {run.batch_tokens}: more than {dataset.id} has, which is "
            f"{stream.samples * run.sequence} tokens; write less"
        )
    ranks = machine.ranks(run.cluster.accelerators)
    if run.cluster.accelerators == "all" and run.layout is None:
        ranks = min(ranks, run.batch_samples)  # more would only add up zeros
    layout = _layout(run, dataset, machine, ranks)
    plan = _plan(run, stream, layout, machine)
    held_out_tokens = stream.held_out * run.sequence
    sizes = Sizes(dataset.vocab, stream.samples, held_out_tokens)
    plan["predicted"] = foresee.predicted(run, layout, sizes)
    return layout, plan


def _layout(run: Run, dataset: Dataset, machine: devices.Devices, ranks: int) -> Layout:
    shape = None if run.model.module else run.model.shape(dataset.vocab)
    if shape is not None and shape.vocab < dataset.vocab:
        raise PenstockError(
            f"model.vocab = {shape.vocab}: the tokenizer of {dataset.id} has {dataset.vocab} "
            f"tokens; set model.vocab = {dataset.vocab} or more"
        )
    planned = foresee.layout_of(run, dataset.vocab) if shape is not None else None
    return planned or choose(run, shape, run.sequence, ranks, machine.kind, machine.memory_bytes)


def _plan(run: Run, stream: Stream, layout: Layout, machine: devices.Devices) -> dict[str, Any]:
    """What was decided before the launch, kept with the run."""
    shape = None if run.model.module else run.model.shape(stream.dataset.vocab)
    return {
        "device": machine.kind,
        "device_name": machine.name,
        "machine": str(machine),
        "layout": layout.to_json(),
        "ranks": layout.ranks,
        "dataset": stream.dataset.id,
        "vocab": stream.dataset.vocab,
        "samples": stream.samples,
        "held_out": stream.held_out,
        "params": shape.params() if shape else None,
        "flops_per_token": shape.flops_per_token(run.sequence) if shape else None,
        "steps": run.steps(stream.samples),
        "batch_tokens": run.batch_tokens,
        "sequence": run.sequence,
        "learning_rate": run.learning_rate,
    }
