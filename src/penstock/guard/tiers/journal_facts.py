"""Facts about a run's end and checkpoints from its journal, whether or not the files still exist.
No torch.

Ranks write `saved` after a checkpoint is published, `resumed` after one was loaded, and
`taken_back` before they delete checkpoints of steps that are trained again. `penstock checkpoint
adopt` writes `adopted`: the run goes on from there.
"""

from collections.abc import Collection

from penstock.errors import PenstockError
from penstock.ledger.journal.events import (
    CheckpointAdopted,
    CheckpointLoaded,
    CheckpointSaved,
    InvocationEnded,
    InvocationStarted,
    StepsTakenBack,
)
from penstock.ledger.journal.read import lines_of, parse_lines, read_events
from penstock.ledger.journal.records import SUPERVISOR, journal_files
from penstock.ledger.journal.values import whole
from penstock.policy.restart import EARLY
from penstock.run.folder import RunFolder
from penstock.run.load import load

DURABLE = ("disk", "remote")
"""Tiers that outlive the memory of a host."""
_BY_RANKS = (CheckpointSaved, CheckpointLoaded, StepsTakenBack)
_MARKS = [f'"kind":"{cls.kind}"'.encode() for cls in _BY_RANKS]
CheckpointEvent = CheckpointSaved | CheckpointLoaded | StepsTakenBack | CheckpointAdopted


def recorded_step(folder: RunFolder, tiers: Collection[str] = DURABLE) -> int | None:
    """Return the newest step that should be in a store of `tiers`; None if none was ever saved.

    Raises OSError if the journal cannot be read.
    """
    steps: set[int] = set()
    if (forked := forked_step(folder)) is not None:
        steps.add(forked)  # a fork begins with a copy of the other run's checkpoint
    for event in _events(folder):
        if isinstance(event, StepsTakenBack):
            steps = _left(event, steps)
        elif (step := whole(event.step)) is None:
            continue
        elif isinstance(event, CheckpointAdopted):
            steps = {earlier for earlier in steps if earlier < step} | {step}
        elif event.tier in tiers:
            steps.add(step)
    return max(steps, default=None)


def began_and_never_saved(folder: RunFolder) -> bool:
    """Return whether the journal shows that the run was started and saved nothing durable.

    False if there is no journal: it may have been deleted. Raises OSError if it cannot be read.
    """
    began = bool(journal_files(folder.journal)) or (folder.journal / SUPERVISOR).is_file()
    return began and recorded_step(folder) is None


def last_result(folder: RunFolder) -> str | None:
    """Return how the last invocation ended: "done", "stopped", "stopped early", "failed".

    None if it was cut off, or if there was none.
    """
    for line in reversed(read_events(folder.journal / SUPERVISOR)):
        if isinstance(line.event, InvocationEnded):
            return str(line.event.result)
        if isinstance(line.event, InvocationStarted | CheckpointAdopted):
            return None
    return None


def no_checkpoint_message(folder: RunFolder) -> str:
    """Say for a run without checkpoints whether it has none yet, or lost them."""
    step = recorded_step(folder)
    if step is None:
        return f"run '{folder.name}' has no checkpoint yet; train it first"
    result = last_result(folder)
    came = f"finished at step {step}" if result == "done" else f"was saved at step {step}"
    if result == EARLY:
        came = f"stopped early at step {step}"
    try:
        durable = load(folder.run_file).guard.durable
    except PenstockError:
        durable = None
    copies = f" (guard.durable = {durable!r} may have copies)" if durable else ""
    return (
        f"run '{folder.name}' {came}, and its checkpoints are gone from {folder.checkpoints}. Put "
        f"them back there{copies} to use or lengthen the run, or train it anew with `--fresh`"
    )


def recorded_manifests(folder: RunFolder) -> dict[int, str]:
    """Return the manifest hashes that the run has published, by step.

    After a resume, later steps are made again: their old hashes are dropped.
    """
    manifests: dict[int, str] = {}
    for event in _events(folder):
        if isinstance(event, StepsTakenBack):
            manifests = _up_to(whole(event.after_step) or 0, manifests)
            continue
        step = whole(event.step)
        if step is None:
            continue
        if isinstance(event, CheckpointLoaded | CheckpointAdopted):
            manifests = _up_to(step, manifests)
        if isinstance(event, CheckpointSaved | CheckpointAdopted) and isinstance(
            event.manifest, str
        ):
            manifests[step] = event.manifest
    return manifests


def _up_to(last: int, manifests: dict[int, str]) -> dict[int, str]:
    return {step: manifest for step, manifest in manifests.items() if step <= last}


def newest_recorded(folder: RunFolder) -> int:
    """Return the newest step that the run has published since it last went on; 0 for none."""
    return max(recorded_manifests(folder), default=0)


def newer_is_gone_message(recorded: int, used: int, existing: Collection[int] = ()) -> str:
    """Say that a checkpoint newer than the one in use is on record and gone; "" if none is.

    `existing` are the steps whose checkpoints were found, usable or not.
    """
    if recorded <= used or recorded in existing:
        return ""
    return (
        f"the checkpoint of step {recorded} is gone, which the journal has on record; step {used} "
        "is used"
    )


def forked_step(folder: RunFolder) -> int | None:
    """Return the step of the other run that a fork began at; None if it is no fork."""
    try:
        forked = folder.read_launch_record().forked_from
    except PenstockError:  # torn
        return None
    return forked.step if forked else None


def _left(event: StepsTakenBack, steps: set[int]) -> set[int]:
    """Return the steps that are still saved after a rollback."""
    if isinstance(event.left, list):
        return {step for step in event.left if type(step) is int}
    after_step = whole(event.after_step) or 0  # a store could not be listed then
    return {step for step in steps if step <= after_step}


def _events(folder: RunFolder) -> list[CheckpointEvent]:
    """Return the events above in the order of attempts: clocks of machines may jump."""
    ordered: list[tuple[int, float, CheckpointEvent]] = []
    for file in journal_files(folder.journal, "events"):
        content = file.path.read_bytes()
        if any(mark in content for mark in _MARKS):  # few files: most are not even parsed
            for line in parse_lines(content, file.path):
                if isinstance(line.event, _BY_RANKS):
                    ordered.append((line.attempt or 0, line.t, line.event))
    for adopted in lines_of(read_events(folder.journal / SUPERVISOR), CheckpointAdopted):
        next_attempt = whole(adopted.event.next_attempt) or 0
        ordered.append((next_attempt, float("-inf"), adopted.event))
    return [event for _, _, event in sorted(ordered, key=lambda entry: entry[:2])]
