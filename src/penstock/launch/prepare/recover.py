"""Recovery of run.toml and plan.json from a checkpoint, where one is damaged or gone.

Every checkpoint holds the run file that it was made with and the facts of plan.json. So a torn
plan.json or a deleted run.toml is written again from the newest checkpoint, and never guessed.
"""

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PenstockError
from penstock.guard.checkpoints import StoredCheckpoint, published_checkpoints
from penstock.guard.format.published import SCALARS
from penstock.guard.tiers.identity import IdentityCopies
from penstock.guard.tiers.locations import memory_folders
from penstock.guard.tiers.slots import sealed_slots
from penstock.guard.tiers.stores import DiskStore
from penstock.ledger.journal.records import journal_files
from penstock.run.folder import RunFolder, plan_from_bytes
from penstock.run.launch_record import LaunchRecord
from penstock.run.load import load
from penstock.run.save import to_table
from penstock.run.schema.run import Run

_DECIDES = ("model", "data", "train", "evaluate")  # sections that a checkpoint is held to


@dataclass(frozen=True)
class RecoveredRun:
    """The run of a folder, from its run file or from a checkpoint."""

    run: Run
    source: str  # the file that it was read from
    messages: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecoveredPlan:
    """The plan of the last launch; `problem` says what is wrong with plan.json."""

    plan: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    source: str = ""  # the checkpoint that it was read from instead

    @property
    def record(self) -> LaunchRecord:
        """The plan's fields; `plan` is what is written again."""
        return LaunchRecord.from_json(self.plan)


def recover_run(folder: RunFolder, run: Run) -> RecoveredRun | None:
    """Return the run as it was before; None where the folder holds none."""
    if folder.exists():
        return RecoveredRun(load(folder.run_file), str(folder.run_file))
    # Where there are several hosts another one may begin the run in this moment.
    if run.cluster.nodes > 1 or not has_begun(folder):
        return None
    gone = f"{folder.run_file} is gone"
    for found in _saved_here(folder):
        if old := _made_by(found, run):
            source = f"{gone}; by {found.name}"
            return RecoveredRun(
                old, source, (f"{gone}; it is written again as {found.name} has it",)
            )
    return RecoveredRun(run, gone, (f"{gone}, and no checkpoint here tells what it was",))


def has_begun(folder: RunFolder) -> bool:
    """Return whether a folder holds a journal or a checkpoint, whatever else of the run is gone."""
    return bool(journal_files(folder.journal)) or bool(published_checkpoints(folder.checkpoints))


def read_or_recover_plan(folder: RunFolder) -> RecoveredPlan:
    """Return the plan of the last launch, from a checkpoint where plan.json is damaged."""
    try:
        return RecoveredPlan(folder.read_plan())
    except PenstockError as error:
        problem = str(error).partition(";")[0]
    for found in _saved_here(folder):
        with contextlib.suppress(OSError, ValueError, KeyError):
            kept = found.scalars["plan"]
            if isinstance(kept, dict):
                # As from the file: fields of another kind are refused.
                plan = plan_from_bytes(json.dumps(kept).encode())
                return RecoveredPlan(plan, problem, found.name)
    return RecoveredPlan({}, problem)


def repair_plan(folder: RunFolder) -> list[str]:
    """Put a damaged plan.json aside and write it again; return what was done.

    The run must be locked.
    """
    known = read_or_recover_plan(folder)
    if not known.problem:
        return []
    number = 1
    while (aside := folder.plan_file.with_name(f"plan.json.bad-{number}")).exists():
        number += 1
    folder.plan_file.rename(aside)
    if not known.plan:
        return [f"{known.problem}; it was put aside as {aside.name} and is planned again"]
    folder.write_plan(known.plan)
    return [f"{known.problem}; it was put aside as {aside.name} and made again by {known.source}"]


def _saved_here(folder: RunFolder) -> list[StoredCheckpoint]:
    """Return the checkpoints on this machine whose scalars are whole, newest first; those in
    memory only where they are of this run."""
    found: list[StoredCheckpoint] = []
    with contextlib.suppress(OSError):
        own = IdentityCopies([DiskStore(folder.path), DiskStore(folder.checkpoints)]).read()
        found += [slot for fast in memory_folders(folder) for slot in sealed_slots(fast, own)]
    with contextlib.suppress(OSError):
        on_disk = published_checkpoints(folder.checkpoints)
        found += [one for one in on_disk if not one.find_damage(only=SCALARS)]
    return sorted(found, key=lambda one: one.step, reverse=True)


def _made_by(found: StoredCheckpoint, run: Run) -> Run | None:
    """Return the run that made a checkpoint, with what may change on the way taken from `run`;
    None where that cannot be read, or it was taken over from another run."""
    try:
        table, origin = found.scalars["run"], found.read_manifest().origin
        decides = {name: table[name] for name in _DECIDES}
        return None if origin else Run.model_validate(to_table(run) | decides)
    except (OSError, ValueError, KeyError, TypeError):
        return None
