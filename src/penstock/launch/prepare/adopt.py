"""Adoption of a checkpoint: a run goes on from a checkpoint that another run made.

A run ignores checkpoints of other runs wherever they are. This is the one way to use one: its files
are verified, its weights must fit, and the journal records where it came from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, RunFailed
from penstock.guard.checkpoints import SingleProcess, StoredCheckpoint, search_of_run
from penstock.guard.convert.take_over import take_over
from penstock.guard.detect.shape_differences import shape_differences
from penstock.guard.format.published import folder_name
from penstock.guard.tiers.locations import memory_folders
from penstock.guard.tiers.slots import sealed_slots
from penstock.guard.tiers.stores import FOREIGN, REPLACED, CheckpointStore, DiskStore
from penstock.launch.prepare.recover import read_or_recover_plan
from penstock.launch.prepare.resume import only_ranks_know_weights, trained_weights
from penstock.ledger.journal.events import CheckpointAdopted
from penstock.ledger.journal.read import next_attempt
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.meter.clock import now
from penstock.model.open.names import is_buffer
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.schema.run import Run

_NEEDS = ("weights", "tokens", "stream", "layout", "optimizer", "updates", "fingerprint", "run")


@dataclass(frozen=True)
class Adopted:
    """The result of an adoption."""

    step: int
    name: str  # of the run that made it
    replaced: tuple[int, ...]  # steps of the run's own that were put aside


def adopt(folder: RunFolder, path: Path, replace: bool = False) -> Adopted:
    """Make the checkpoint at `path` the newest one of a run; with `replace`, also where the run
    has newer ones, which are put aside."""
    with folder.lock():
        run = load(folder.run_file)
        if run.cluster.nodes > 1:
            raise PenstockError(
                f"run '{folder.name}' is on {run.cluster.nodes} hosts, and none can know what the "
                "others hold in memory; adopt it on one host with cluster.nodes = 1 in its run.toml"
            )
        found, step = _whole(path)
        _refuse_other_weights(found, run, folder)
        if not run.train.epochs and step >= run.steps():
            raise PenstockError(
                f"{path} is of step {step}, and run '{folder.name}' ends at step {run.steps()}; "
                "adopt an earlier one, or train the run further first"
            )
        tiers = search_of_run(folder, run, SingleProcess())
        if _is_in(tiers.stores, path) and not tiers.refusal(found):
            raise PenstockError(f"{path} is one of run '{folder.name}' itself")
        newer = _newer(tiers.stores, step, path)
        if newer and not replace:
            own = ", ".join(str(one) for one in newer)
            raise PenstockError(
                f"run '{folder.name}' has checkpoints of its own that are not older (step {own}); "
                "add --replace to put them aside"
            )
        for place in tiers.stores:
            for one in place.steps():
                if one >= step and not _is(place, one, path):
                    place.put_aside(one, REPLACED)
        for fast in memory_folders(folder):
            for slot in sealed_slots(fast):
                slot.discard()
        about = take_over(found, tiers.stores[0], tiers.identity)
        for place in tiers.stores:
            for one in place.steps():
                if one > step:  # the one that was adopted lay there under another name
                    place.put_aside(one, FOREIGN)
        _record(folder, step, path, about.digest, about.origin)
        return Adopted(step, str(about.origin["name"]), tuple(newer))


def _whole(path: Path) -> tuple[StoredCheckpoint, int]:
    """Return a checkpoint whose every byte was verified, and its step."""
    found = StoredCheckpoint(path)
    found.check_format()
    if damage := found.find_damage(called=False):
        raise RunFailed(f"{path} is no whole checkpoint: {'; '.join(damage)}")
    step = found.content_step()
    lacking = [name for name in _NEEDS if name not in found.scalars]
    if step is None or lacking:
        raise RunFailed(
            f"{path}: no run can go on from it: it lacks {', '.join(lacking) or 'step'}"
        )
    return found, step


def _refuse_other_weights(found: StoredCheckpoint, run: Run, folder: RunFolder) -> None:
    """Compare names and shapes; a module of the user's own tells its weights when it is built."""
    vocab = read_or_recover_plan(folder).record.vocab
    if only_ranks_know_weights(run) or not vocab:  # never launched
        return
    held = {n: size for n, size in found.scalars["weights"].items() if not is_buffer(n)}
    if what := shape_differences(held, trained_weights(run, vocab)):
        raise PenstockError(f"{found.path}: its weights do not fit run '{folder.name}': {what}")


def _newer(places: Sequence[CheckpointStore], step: int, path: Path) -> list[int]:
    found = {one for place in places for one in place.steps() if not _is(place, one, path)}
    return sorted(one for one in found if one >= step)


def _is_in(places: Sequence[CheckpointStore], path: Path) -> bool:
    return any(_is(place, one, path) for place in places for one in place.steps())


def _is(place: CheckpointStore, step: int, path: Path) -> bool:
    """Return whether a checkpoint of a place is the one that is adopted."""
    return isinstance(place, DiskStore) and (place.root / folder_name(step)).samefile(path)


def _record(
    folder: RunFolder, step: int, path: Path, manifest: str, origin: dict[str, Any]
) -> None:
    journal = SupervisorJournal(folder.journal, clock=now)
    journal.write(
        CheckpointAdopted(
            step=step,
            name=origin["name"],
            run=origin["run"],
            path=str(path),
            manifest=manifest,
            next_attempt=next_attempt(folder.journal),
        )
    )
    journal.close()
