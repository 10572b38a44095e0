"""Slots of the fast tier: in memory if two fit, otherwise one, or on disk."""

import shutil
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from penstock.guard.format.file_plan import FilePlan
from penstock.guard.format.index import INDEX, state_file_name
from penstock.guard.save.background_group import BackgroundGroup
from penstock.guard.save.staging import RankFiles
from penstock.guard.tiers.free_space import boot_id, free_bytes, is_memory_backed
from penstock.guard.tiers.slots import SLOTS, MemoryCheckpoint, plan_folder, seal_path, slot_folders
from penstock.private import private_folder


@dataclass
class Slot:
    """One rank's side of a slot. A thread that reads its files holds it."""

    folder: Path
    make: Callable[[], RankFiles]
    files: RankFiles = field(init=False)
    step: int | None = None  # of its seal
    _holders: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def held(self) -> bool:
        return self._holders > 0

    def hold(self, holders: int) -> None:
        with self._changed:
            self._holders += holders

    def release(self) -> None:
        with self._changed:
            self._holders -= 1
            self._changed.notify_all()

    def wait_free(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._holders)

    def __post_init__(self) -> None:
        self.files = self.make()

    def recreate_if_deleted(self) -> None:
        """Create deleted files again: some systems clear shared memory when a user logs out."""
        if not (self.folder / state_file_name(self.files.rank)).exists():
            gone, self.files = self.files, self.make()
            gone.close()

    def unseal(self) -> None:
        """Remove the seal, before the first byte of the slot changes."""
        self.step = None
        seal_path(self.folder, self.files.rank).unlink(missing_ok=True)


@dataclass
class FastTier:
    """The slots that were allocated."""

    slots: list[Slot]
    first: int = 0  # which of them to write first
    obsolete: list[Path] = field(default_factory=list)  # to remove once there is something newer
    summary: dict[str, Any] = field(default_factory=dict)


def allocate_slots(
    roots: list[Path],
    most: int,
    file_plan: FilePlan,
    world: BackgroundGroup,
    resumed: MemoryCheckpoint | None,
    cuda: bool,
) -> FastTier:
    """Allocate the slots; all ranks together, with the same result. The `resumed` slot is not
    changed."""
    for root in roots:
        _sweep(root, file_plan, world.rank, resumed)
    problem = ""
    for count in range(most, 0, -1):
        for root in roots:
            problem = _no_room(root, count, file_plan, world)
            if problem:
                continue
            made, problem = _try(root, count, file_plan, world, resumed, cuda)
            if made:
                return made
    return FastTier([], summary={"slots": 0, "problem": problem})


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _sweep(root: Path, file_plan: FilePlan, rank: int, resumed: MemoryCheckpoint | None) -> None:
    """Invalidate all old slots, except the one that the run resumes from."""
    plan = plan_folder(root, file_plan.content)
    try:
        found = list(slot_folders(root))
    except OSError:  # then no slot can be made there either, which is reported
        return
    for slot in found:
        if resumed is not None and slot == resumed.path:
            continue
        if slot.parent == plan:
            seal_path(slot, rank).unlink(missing_ok=True)
        else:
            remove_folder(slot)


def _no_room(root: Path, count: int, file_plan: FilePlan, world: BackgroundGroup) -> str:
    """Say why the ranks of some host would not fit; the ranks of a host share its memory."""
    name, plan = state_file_name(world.rank), plan_folder(root, file_plan.content)
    try:
        private_folder(root)
        there = [plan / f"slot-{n}" / name for n in range(count)]
        have = sum(path.stat().st_blocks * 512 for path in there if path.is_file())
        need = max(0, count * file_plan.index.files[name] - have)
        own: tuple[object, int, int] = ((boot_id(), root.stat().st_dev), need, free_bytes(root))
    except OSError as error:
        own = (str(error), 1, 0)
    needs: dict[object, int] = defaultdict(int)
    answers = world.gather(own)
    for host, need, _ in answers:
        needs[host] += need
    for host, _, free in answers:
        if needs[host] > free:
            return f"{root}: {count} copies need {needs[host]} bytes, {free} are free"
    return ""


def _try(
    root: Path,
    count: int,
    file_plan: FilePlan,
    world: BackgroundGroup,
    resumed: MemoryCheckpoint | None,
    cuda: bool,
) -> tuple[FastTier | None, str]:
    plan = plan_folder(root, file_plan.content)
    numbers = list(range(SLOTS))
    if resumed is not None and resumed.path.parent == plan:  # the other one is written first
        numbers.sort(key=lambda number: plan / f"slot-{number}" == resumed.path)
    made, problem = FastTier([]), ""
    folders = [plan / f"slot-{number}" for number in numbers[:count]]
    try:
        for folder in folders:
            first = made.slots[0].files.state if made.slots else None
            twin = None if first is None or first.direct else first.landing
            made.slots.append(_slot(folder, file_plan, world.rank, cuda, twin))
    except OSError as error:  # somebody else took the room meanwhile
        problem = str(error)
    problems = [why for why in world.gather(problem) if why]
    if problems:
        for slot in made.slots:
            slot.files.close()
        for folder in folders:
            if resumed is None or folder != resumed.path:
                remove_folder(folder)
        return None, problems[0]
    if resumed is not None:
        kept = [slot for slot in made.slots if slot.folder == resumed.path]
        for slot in kept:
            slot.step = resumed.step
        if not kept:
            made.obsolete.append(resumed.path)
    made.summary = {
        "slots": count,
        "tier": "memory" if is_memory_backed(root) else "disk",
        "bytes": sum(file_plan.index.files.values()),
        "direct": made.slots[0].files.state.direct,
    }
    return made, ""


def _slot(folder: Path, file_plan: FilePlan, rank: int, cuda: bool, twin: Tensor | None) -> Slot:
    def make() -> RankFiles:
        folder.mkdir(parents=True, exist_ok=True)
        index = folder / INDEX
        if not index.is_file() or index.read_bytes() != file_plan.content:
            aside = folder / f".index-r{rank:05d}"
            aside.write_bytes(file_plan.content)
            aside.replace(index)
        return RankFiles(folder, file_plan, rank, cuda, twin)

    return Slot(folder, make)
