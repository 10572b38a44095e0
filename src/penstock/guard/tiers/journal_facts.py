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
    StepsTakenBack,
)
from penstock.ledger.journal.read import JournalLine, parse_lines, read_events
from penstock.ledger.journal.records import SUPERVISOR, journal_files
from penstock.policy.restart import EARLY
from penstock.run.folder import RunFolder
from penstock.run.load import load

ADOPTED = CheckpointAdopted.kind
_KINDS = (CheckpointSaved.kind, CheckpointLoaded.kind, StepsTakenBack.kind)
_MARKS = [f'"kind":"{kind}"'.encode() for kind in _KINDS]


def recorded_step(folder: RunFolder) -> int | None:
    """Return the newest step that should be in a durable store; None if nothing was ever saved.

    Raises OSError if the journal cannot be read.
    """
    steps: set[int] = set()
    if (forked := forked_step(folder)) is not None:
        steps.add(forked)  # a fork begins with a copy of the other run's checkpoint
    for event in _events(folder):
        step = event.whole("step")
        if event.kind == "taken_back":
            steps = _left(event, steps)
        elif event.kind == ADOPTED and step is not None:
            steps = {one for one in steps if one < step} | {step}
        elif step is not None and event.payload.get("tier") != "memory":
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
    for event in reversed(read_events(folder.journal / SUPERVISOR)):
        if event.kind == "ended":
            return str(event.payload["result"])
        if event.kind in ("invocation", ADOPTED):
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
    found: dict[int, str] = {}
    for event in _events(folder):
        step, manifest = event.whole("step"), event.payload.get("manifest")
        if event.kind == "taken_back":
            after_step = event.whole("after_step") or 0
            found = {one: hash_ for one, hash_ in found.items() if one <= after_step}
        elif step is not None and event.kind in ("resumed", ADOPTED):
            found = {one: hash_ for one, hash_ in found.items() if one <= step}
        if step is not None and event.kind in ("saved", ADOPTED) and isinstance(manifest, str):
            found[step] = manifest
    return found


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


def _left(event: JournalLine, steps: set[int]) -> set[int]:
    """Return the steps that are still saved after a rollback."""
    left = event.payload.get("left")
    if isinstance(left, list):
        return {step for step in left if type(step) is int}
    after_step = event.whole("after_step") or 0  # a store could not be listed then
    return {step for step in steps if step <= after_step}


def _events(folder: RunFolder) -> list[JournalLine]:
    """Return the events above in the order of attempts: clocks of machines may jump."""
    found: list[tuple[int, float, JournalLine]] = []
    for file in journal_files(folder.journal, "events"):
        content = file.path.read_bytes()
        if any(mark in content for mark in _MARKS):  # few files: most are not even parsed
            wanted = [e for e in parse_lines(content, file.path) if e.kind in _KINDS]
            found += [(event.attempt or 0, event.t, event) for event in wanted]
    for event in read_events(folder.journal / SUPERVISOR):
        if event.kind == ADOPTED:
            found.append((event.whole("next_attempt") or 0, float("-inf"), event))
    return [event for _, _, event in sorted(found, key=lambda one: one[:2])]
