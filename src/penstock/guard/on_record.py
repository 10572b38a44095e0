"""What the journal knows of durable checkpoints, whether or not they can be found today. No torch.

Ranks write `saved` after a checkpoint is published, `resumed` when one was loaded, and
`taken_back` before they delete those of steps that are trained again.
"""

from penstock.ledger.readers import Event, parse_lines
from penstock.ledger.records import journal_files
from penstock.run.folder import RunFolder

_KINDS = ("saved", "resumed", "taken_back")
_MARKS = [f'"kind":"{kind}"'.encode() for kind in _KINDS]


def recorded_step(folder: RunFolder) -> int | None:
    """Return the newest step that should be in a durable place; None if nothing was ever saved.

    Raises OSError when the journal cannot be read.
    """
    steps: set[int] = set()
    try:
        forked = folder.read_plan().get("forked_from", {})
    except ValueError:  # torn
        forked = {}
    if type(forked.get("step")) is int:
        steps.add(forked["step"])  # a fork begins with a copy of the other run's checkpoint
    for event in _events(folder):
        step = event.whole("step")
        if event.kind == "taken_back":
            steps = _left(event, steps)
        elif step is not None and event.payload.get("tier") != "memory":
            steps.add(step)
    return max(steps, default=None)


def _left(event: Event, steps: set[int]) -> set[int]:
    """Return the steps that are still saved after a rollback."""
    left = event.payload.get("left")
    if isinstance(left, list):
        return {step for step in left if type(step) is int}
    after_step = event.whole("after_step") or 0  # the place could not be listed then
    return {step for step in steps if step <= after_step}


def _events(folder: RunFolder) -> list[Event]:
    """Return the events above in the order of attempts: clocks of machines may jump."""
    found: list[Event] = []
    for file in journal_files(folder.journal, "events"):
        content = file.path.read_bytes()
        if any(mark in content for mark in _MARKS):  # few files: most are not even parsed
            found += [e for e in parse_lines(content, file.path) if e.kind in _KINDS]
    return sorted(found, key=lambda event: (event.attempt or 0, event.t))
