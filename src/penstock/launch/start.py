"""From a run to its outcome: find the machine and the data, decide how to go on, launch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.data.stream import Stream
from penstock.data.stream_open import kept, open_again, stream_of
from penstock.errors import PenstockError, RunFailed
from penstock.files import write_atomic
from penstock.launch import foresee, open_model
from penstock.launch.foresee import Limit
from penstock.launch.listener import Listener
from penstock.launch.local import Local, Outcome
from penstock.launch.replan import Replanner
from penstock.launch.replan import kept as kept_layout
from penstock.launch.resume import (
    archive,
    fork_from,
    how_to_go_on,
    refuse_other_weights,
    renamed,
)
from penstock.ledger.journal import SupervisorJournal
from penstock.meter import devices
from penstock.meter.clock import now
from penstock.plan import legal
from penstock.plan.built import refuse_unusable
from penstock.plan.dataset import Sizes, fitted, refuse_epochs_of_a_mixture
from penstock.plan.layout import Layout, choose
from penstock.run.diff import closed
from penstock.run.file import Run
from penstock.run.folder import RunFolder
from penstock.run.notyet import refuse
from penstock.run.save import save
from penstock.run.settle import settled


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
    run = settled(run)
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
        _launch(how.run, folder, machine, listener, began)
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
    run, layout, plan = _prepare(run, before, machine, listener)
    refuse_other_weights(folder, run, plan["vocab"])
    limit = foresee.limit(run, folder, layout.ranks, began)
    for name in ("forked_from", "replanned"):
        if name in before:
            plan[name] = before[name]

    folder.make()
    open_model.keep(run, folder.open_model)
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
            replanner=Replanner(run, folder, journal),
            deterministic=run.train.deterministic,
            limit=limit,
        ).run()
    except KeyboardInterrupt:
        outcome = Outcome("stopped", "ended at once; the last checkpoint stands")
    finally:
        journal.event("ended", result=outcome.result, error=outcome.error)
        journal.close()
        folder.granted("stop")
        if outcome.result in ("done", "stopped") and not outcome.error:
            folder.drop_scratch()  # what it holds is on disk too
    return outcome


def _prepare(
    run: Run, before: dict[str, Any], machine: devices.Devices, listener: Listener
) -> tuple[Run, Layout, dict[str, Any]]:
    """The run with every choice made, its layout and its plan.

    What can be refused is, before the folder says there is a run.
    """
    refuse_epochs_of_a_mixture(run)
    open_model.fetch(run)
    if not before:  # building data may take hours
        _refuse_early(run, machine)
    datasets = open_again(run, before, listener.progress)
    open_model.refuse_other_data(run, datasets)
    run = closed(fitted(run, [dataset.manifest for dataset in datasets]))
    stream = stream_of(run, datasets)
    if run.batch_samples > stream.samples:
        raise PenstockError(
            f"train.batch_tokens = {run.batch_tokens}: more than {stream.id} has, which is "
            f"{stream.samples * run.sequence} tokens; write less"
        )
    if run.model.module and not run.data.across_documents:
        raise PenstockError(
            "data.across_documents = false: only the models of Penstock keep documents apart, and "
            "model.module is your own; write true, or mark the borders inside your module"
        )
    ranks = machine.ranks(run.cluster.accelerators)
    if run.cluster.accelerators == "all" and run.layout is None:
        ranks = min(ranks, run.batch_samples)  # more would only add up zeros
    layout = kept_layout(before, _layout(run, stream, machine, ranks), str(machine))
    plan = _plan(run, stream, layout, machine)
    held_out_tokens = stream.held_out * run.sequence
    sizes = Sizes(stream.vocab, stream.samples, held_out_tokens)
    plan["predicted"] = foresee.predicted(run, layout, sizes)
    return run, layout, plan


def _refuse_early(run: Run, machine: devices.Devices) -> None:
    """What can be known to be wrong before there is data."""
    refuse_unusable(run)
    shape = None if run.model.module else run.model.base()
    if run.layout is None or run.data.sequence is None or not (shape or run.model.module):
        return
    if shape is not None and not shape.vocab:
        shape = shape.with_vocab(legal.SOME_VOCAB)
    ranks = machine.ranks(run.cluster.accelerators)
    layout = choose(run, shape, run.sequence, ranks, machine.kind, machine.memory_bytes)
    legal.refuse(run, shape, layout, machine.name or machine.kind)


def _layout(run: Run, stream: Stream, machine: devices.Devices, ranks: int) -> Layout:
    shape = None if run.model.module else run.model.shape(stream.vocab)
    if shape is not None and shape.vocab < stream.vocab:
        what = f"the tokenizer of {stream.id} has {stream.vocab} tokens"
        if run.model.from_:
            raise PenstockError(
                f'model.from = "{run.model.from_}": {what}, and the embedding of the model '
                f"{shape.vocab}. Name raw files in data.dataset, which are then read with the "
                "model's own tokenizer"
            )
        raise PenstockError(
            f"model.vocab = {shape.vocab}: {what}; set model.vocab = {stream.vocab} or more"
        )
    planned = foresee.layout_of(run, stream.vocab) if shape is not None else None
    layout = planned or choose(run, shape, run.sequence, ranks, machine.kind, machine.memory_bytes)
    legal.refuse(run, shape, layout, machine.name or machine.kind)
    return layout


def _plan(run: Run, stream: Stream, layout: Layout, machine: devices.Devices) -> dict[str, Any]:
    """What was decided before the launch, kept with the run."""
    shape = None if run.model.module else run.model.shape(stream.vocab)
    adapter = run.model.adapter
    frozen = adapter is not None
    return {
        "device": machine.kind,
        "device_name": machine.name,
        "machine": str(machine),
        "layout": layout.to_json(),
        "ranks": layout.ranks,
        "dataset": kept([part.dataset for part in stream.parts]),
        "vocab": stream.vocab,
        "samples": stream.samples,
        "held_out": stream.held_out,
        "params": shape.params() if shape else None,
        **({"trained": adapter.trained(shape)} if shape and adapter else {}),
        "flops_per_token": shape.flops_per_token(run.sequence, frozen) if shape else None,
        "steps": run.steps(stream.samples),
        "batch_tokens": run.batch_tokens,
        "sequence": run.sequence,
        "learning_rate": run.learning_rate,
    }
