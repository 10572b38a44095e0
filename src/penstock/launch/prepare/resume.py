"""Resuming a run: compare the run file with the run folder, then decide or refuse. Also forks."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import PenstockError, RunFailed
from penstock.guard.checkpoints import (
    SearchResult,
    SingleProcess,
    newest_in_memory,
    problems_of,
    published_checkpoints,
    search_of_run,
)
from penstock.guard.convert.take_over import take_over
from penstock.guard.detect.shape_differences import shape_differences
from penstock.guard.format.published import SCALARS
from penstock.guard.tiers.identity import run_identity
from penstock.guard.tiers.journal_facts import (
    last_result,
    newer_is_gone_message,
    newest_recorded,
    no_checkpoint_message,
    recorded_step,
)
from penstock.guard.tiers.locations import stores_of_run
from penstock.guard.tiers.stores import DiskStore, open_store
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.own_code import with_renamed
from penstock.launch.prepare.recover import has_begun, read_or_recover_plan, recover_run
from penstock.ledger.journal.records import journal_files
from penstock.model.adapter.names import adapter_shapes
from penstock.model.open.names import is_buffer, tensor_shapes
from penstock.plan.job import legal
from penstock.policy.restart import EARLY
from penstock.run.diff import (
    LENGTH_FIELDS,
    FieldChange,
    describe_changes,
    diff,
    is_shorter,
    length_override,
    with_length,
    with_old_choices,
)
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save
from penstock.run.schema.run import Run, read_name


@dataclass(frozen=True)
class ResumeDecision:
    """The decision how a run goes on."""

    run: Run
    step: int = 0  # of the newest checkpoint; 0 starts from the beginning
    tier: str = ""  # which holds it: "memory", "disk" or "remote"
    finished: bool = False
    early: bool = False  # it finished before its last step: the validation loss got no better
    exists: bool = False
    changes: tuple[FieldChange, ...] = ()  # safe ones, that go through
    asked: str = ""  # a shorter length asked of a finished run, as an override
    gone: str = ""  # a message, if a finished run has no checkpoint any more
    mended: tuple[str, ...] = ()  # messages about records of the folder that were gone
    passed_over: tuple[str, ...] = ()  # problems of newer checkpoints and of stores


def decide_resume(folder: RunFolder, run: Run) -> ResumeDecision:
    """Compare the run with what its folder holds; refuse a change that would mix two runs."""
    known = recover_run(folder, run)
    if known is None:
        return ResumeDecision(run)
    old = with_renamed(known.run, run, read_or_recover_plan(folder).record)
    unsafe = [c for c in diff(old, run) if not c.safe]
    asked = length_override(run) if is_shorter(old, with_old_choices(old, run)) else ""
    if asked:  # judged below, by whether the run has finished
        run = with_length(run, old)
    changes = diff(old, run)
    if not all(c.safe for c in changes):
        raise PenstockError(
            f"run '{folder.name}' exists with another run file ({known.source}):\n"
            f"{describe_changes(unsafe)}\n"
            "Undo the change to go on; or start a new run from its last checkpoint with "
            "`--fork NAME`; or start anew with `--fresh`, which keeps the old folder aside."
        )
    lengthened = any(c.field in LENGTH_FIELDS for c in changes)
    result = last_result(folder)
    more_patience = any(c.field in ("evaluate.patience", "evaluate.min_delta") for c in changes)
    early = result == EARLY and not more_patience
    finished = (result == "done" and not lengthened) or early
    # Choices that the file leaves open stay as first made: a longer run keeps its batch.
    chosen = with_old_choices(old, run)
    if finished:
        step = recorded_step(folder)
        steps = _durable_steps(folder, chosen)
        gone = no_checkpoint_message(folder) if step is not None and steps == [] else ""
        notes = _newer_gone(folder, chosen, max(steps)) if steps else ()
        return ResumeDecision(
            chosen, step or 0, "", True, early, True, tuple(changes), asked, gone, passed_over=notes
        )
    if asked:
        raise PenstockError(
            f"run '{folder.name}' is on its way to {length_override(old)}, and this asks for "
            f"{asked}. A run can be made longer, not shorter. To go on, add {length_override(old)} "
            "to the command (an earlier one may have set it), or write it in the run file; or "
            "start a new run from its last checkpoint with `--fork NAME`; or start anew with "
            "`--fresh`, which keeps the old folder aside."
        )
    found = _resumes_from(folder, chosen)
    step, tier = (found.checkpoint.step, found.checkpoint.tier) if found.checkpoint else (0, "")
    bad = [f"passed over: {problem}" for problem in found.rejected]
    bad += _newer_gone(folder, chosen, step) if step else ()
    bad += [f"not reached: {problem}" for problem in found.unreachable]
    return ResumeDecision(
        chosen,
        step,
        tier,
        exists=True,
        changes=tuple(changes),
        mended=known.messages,
        passed_over=(*found.notes, *bad),
    )


def report_start(how: ResumeDecision, folder: RunFolder, listener: Listener) -> None:
    """Tell the listener how a run goes on, and what is wrong with newer checkpoints.

    Called only when nothing can refuse the start any more.
    """
    listener.resuming(how, folder)
    for problem in how.passed_over:
        listener.warning(problem)


def _durable_steps(folder: RunFolder, run: Run) -> list[int] | None:
    """List the steps of all published checkpoints; None if a store does not answer.

    That store may have others.
    """
    try:
        return [step for store in stores_of_run(folder, run) for step in store.steps()]
    except OSError:
        return None


def _newer_gone(folder: RunFolder, run: Run, used: int) -> tuple[str, ...]:
    """Say that a checkpoint newer than the one in use is on record and in no store."""
    steps = _durable_steps(folder, run)
    if steps is None:
        return ()
    message = newer_is_gone_message(newest_recorded(folder), used, steps)
    return (message,) if message else ()


def _resumes_from(folder: RunFolder, run: Run) -> SearchResult:
    """Search for a checkpoint as the ranks will. Raises RunFailed where the run must not restart.

    Several hosts may together hold a copy that none of them holds alone: then the ranks decide.
    """
    try:
        return search_of_run(folder, run, SingleProcess(), ranks=False).expected()
    except RunFailed as refused:
        if run.cluster.nodes > 1:
            return SearchResult(None, [], [])
        raise RunFailed(f"run '{folder.name}': {refused}") from None


def refuse_other_weights(folder: RunFolder, run: Run, vocab: int) -> None:
    """Refuse a checkpoint of another model (copied here, or the open model has changed).

    The weights of the user's own module, or of one of transformers, are known only once it is
    built: then the ranks refuse.
    """
    try:
        saved = published_checkpoints(folder.checkpoints)
    except OSError:  # the run goes on from another place, and the ranks tell of this one
        return
    # The ranks pass over a checkpoint that is damaged or of another run, and tell.
    tiers = search_of_run(folder, run, SingleProcess(), ranks=False)
    whole = (one for one in saved if not one.find_damage(only=SCALARS))
    newest = next((one for one in whole if not tiers.refusal(one)), None)
    if newest is None or only_ranks_know_weights(run):
        return
    held = newest.scalars["weights"]
    found = {name: size for name, size in held.items() if not is_buffer(name)}
    if what := shape_differences(found, trained_weights(run, vocab)):
        raise PenstockError(
            f"{newest.path}: a checkpoint of another model than [model] describes: {what}. Put "
            "the file or the model back as it was, or begin again with `--fresh`"
        )


def only_ranks_know_weights(run: Run) -> bool:
    """Return whether the names of the weights are those of a module that only ranks build."""
    return run.model.module is not None or legal.is_generic(run)


def trained_weights(run: Run, vocab: int) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of the weights that the run trains, by name."""
    shape = run.model.shape(vocab)
    if run.model.adapter:
        return adapter_shapes(shape, run.model.adapter)
    return {name: size for name, size in tensor_shapes(shape).items() if not is_buffer(name)}


def _longer(run: Run, steps: int) -> str:
    """Say how to make a run longer, in the unit of its file."""
    if run.train.tokens is not None:
        return f"train.tokens={steps * run.batch_tokens}"
    return f"train.steps={steps}"


def renamed(run: Run, name: str) -> Run:
    """Return the run under another name, which must be a valid folder name."""
    try:
        return run.model_copy(update={"name": read_name(name)})
    except ValueError as error:
        raise PenstockError(f"--fork {name!r}: {error}") from None


def fork_from(source: RunFolder, folder: RunFolder, run: Run) -> None:
    """Make a new run that begins at the newest good checkpoint of another, with a changed run file.

    The checkpoint is on disk or in the memory of this host."""
    if folder.exists():
        forked = read_or_recover_plan(folder).record.forked_from
        if forked and forked.run == source.name:
            return  # forked before: from now on it is a run like any other
        raise PenstockError(
            f"--fork {folder.name}: there is another run of that name ({folder.path}), which is "
            f"no fork of '{source.name}'; give the fork another name"
        )
    if not source.exists():
        raise PenstockError(f"--fork {folder.name}: there is no run '{source.name}' to fork from")
    if journal_files(folder.journal):
        raise PenstockError(
            f"--fork {folder.name}: there is another run of that name, whose run.toml is gone"
        )
    saved = published_checkpoints(source.checkpoints)
    for newest in saved[:1]:
        newest.check_format()
    old = load(source.run_file)
    good = next((c for c in saved if not problems_of(source, old, c)), None)
    memory = newest_in_memory(source, old)  # newer after a crash
    if memory and (good is None or memory.step > good.step):
        good = memory
    if good is None:
        none = "has no good checkpoint" if saved else ""
        why = f"run '{source.name}' {none}" if none else no_checkpoint_message(source)
        raise PenstockError(f"--fork {folder.name}: {why}")
    if old.model != run.model:
        raise PenstockError(
            f"--fork {folder.name}: [model] differs from '{source.name}', so its weights do not "
            "fit; change it back, or start a new run by giving another name"
        )
    if not run.train.epochs and run.steps() <= good.step:
        raise PenstockError(
            f"--fork {folder.name}: it would begin at step {good.step} and the file ends at step "
            f"{run.steps()}; write {_longer(run, 2 * good.step)}"
        )
    folder.make()
    own = run_identity(DiskStore(folder.path), SingleProcess())
    take_over(good, DiskStore(folder.checkpoints), own)
    origin: dict[str, object] = {"forked_from": {"run": source.name, "step": good.step}}
    if _read_by(old) == _read_by(run):
        before = read_or_recover_plan(source).record
        if before.dataset is not None:
            origin["dataset"] = before.dataset  # the same version, not today's
    folder.write_plan(origin)
    save(run, folder.run_file)


def _read_by(run: Run) -> list[str]:
    """Return the datasets of a run, without choices that a run file may leave open."""
    return [spec for spec, _ in run.data.parts]


def archive(folder: RunFolder, run: Run) -> None:
    """Put an old run aside under a name of its own.

    Its durable place keeps the old name, and a new run of that name would go on from there.
    """
    there = open_store(run.guard.durable, folder.name) if run.guard.durable else None
    if there is not None and (steps := there.steps()):
        raise PenstockError(
            f"--fresh: {there.where} still holds checkpoints of the old run (step {steps[0]}); "
            "move them away or delete them, or give the run another name"
        )
    if not folder.exists() and not has_begun(folder):
        return
    if folder.running():
        raise PenstockError(f"run '{folder.name}' is running; stop it before starting anew")
    number = 1
    while (aside := folder.path.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    folder.path.rename(aside)
