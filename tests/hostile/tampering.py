"""What a stranger, a careless hand or a bad disk does to the records of a run that is down.

Each way is drawn by a generator, works on what is there and says in words what it did. It says
nothing where it has changed no byte: the folder has no such record, or both files are equal.
"""

import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.guard.format.published import published_folders, step_of
from penstock.run.folder import RunFolder

SMALL = ("manifest.json", "index.json", "scalars.json")


@dataclass(frozen=True)
class Target:
    """A run that is down, and checkpoints of other runs that fit into it."""

    folder: RunFolder
    memory: Path  # PENSTOCK_MEMORY
    foreign: dict[str, RunFolder]  # by what is other there
    every: int  # steps between checkpoints
    steps: int

    @property
    def checkpoints(self) -> list[Path]:
        """The published ones, oldest first."""
        return published_folders(self.folder.checkpoints)[::-1]

    @property
    def slots(self) -> list[Path]:
        return sorted(self.memory.glob("*/fast-*/*/slot-*"))

    def named(self, path: Path) -> str:
        """A path as it is told."""
        for root in (self.folder.path, self.memory):
            if path.is_relative_to(root):
                return str(path.relative_to(root))
        return str(path)


Way = Callable[[Target, random.Random], str]


def rename(target: Target, dice: random.Random) -> str:
    """Call a checkpoint by another step, in the place of one that is there or of none."""
    there = target.checkpoints
    if not there:
        return ""
    one, step = dice.choice(there), target.every * dice.randint(1, target.steps // target.every)
    name = one.with_name(f"step-{step:08d}")
    if name == one:
        return ""
    shutil.rmtree(name, ignore_errors=True)
    one.rename(name)
    return f"{one.name} renamed to {name.name}"


def swap_checkpoints(target: Target, dice: random.Random) -> str:
    return _swapped(target, _two(dice, target.checkpoints))


def swap_files(target: Target, dice: random.Random) -> str:
    """Swap a file of one checkpoint with that of the same name in another."""
    two = _two(dice, target.checkpoints)
    if not two:
        return ""
    names = {str(p.relative_to(two[0])) for p in _files(two[0])}
    names &= {str(p.relative_to(two[1])) for p in _files(two[1])}
    name = dice.choice(sorted(names))
    return _swapped(target, [one / name for one in two])


def swap_ranks(target: Target, dice: random.Random) -> str:
    """Swap the files of two ranks in one checkpoint."""
    there = target.checkpoints
    two = _two(dice, _files(dice.choice(there) / "state")) if there else []
    return _swapped(target, two)


def swap_slots(target: Target, dice: random.Random) -> str:
    """Swap the two slots in memory, or a file of them."""
    two = _two(dice, target.slots)
    if two and dice.random() < 0.5:
        names = {str(p.relative_to(two[0])) for p in _files(two[0])}
        names &= {str(p.relative_to(two[1])) for p in _files(two[1])}
        if names:
            name = dice.choice(sorted(names))
            return _swapped(target, [one / name for one in two])
    return _swapped(target, two)


def foreign_checkpoint(target: Target, dice: random.Random) -> str:
    """Put a checkpoint of another run in the place of an own one, or after the newest one."""
    kind = dice.choice(sorted(target.foreign))
    others = {step_of(path): path for path in published_folders(target.foreign[kind].checkpoints)}
    own = [step_of(path) for path in target.checkpoints]
    steps = [step for step in [*own, max(own, default=0) + target.every] if step in others]
    if not steps:
        return ""
    step = dice.choice(steps)
    place = target.folder.checkpoints / f"step-{step:08d}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(others[step], place)
    return f"{place.name} replaced by one of a run with another {kind}"


def foreign_file(target: Target, dice: random.Random) -> str:
    """Put one file of another run's checkpoint of the same step in the place of an own one."""
    kind = dice.choice(sorted(target.foreign))
    there = target.foreign[kind].checkpoints
    own = [one for one in target.checkpoints if (there / one.name).is_dir()]
    if not own:
        return ""
    one = dice.choice(own)
    name = dice.choice([path.relative_to(one) for path in _files(one)])
    if not (there / one.name / name).is_file() or _equal(there / one.name / name, one / name):
        return ""
    shutil.copyfile(there / one.name / name, one / name)
    return f"{one.name}/{name} replaced by that of a run with another {kind}"


def foreign_identity(target: Target, dice: random.Random) -> str:
    """Give the run the identity of another one, in one place or in both."""
    kind = dice.choice(sorted(target.foreign))
    homes = [target.folder.path, target.folder.checkpoints]
    foreign = target.foreign[kind].path / "identity"
    chosen = [
        home
        for home in dice.sample(homes, dice.randint(1, 2))
        if not _equal(home / "identity", foreign)
    ]
    if not chosen:
        return ""
    for home in chosen:
        shutil.copyfile(foreign, home / "identity")
    told = " and ".join(target.named(home / "identity") for home in chosen)
    return f"{told} replaced by that of a run with another {kind}"


def tear(target: Target, dice: random.Random) -> str:
    """Cut a record short at a random byte."""
    return _tear(target, dice, _record(target, dice))


def flip(target: Target, dice: random.Random) -> str:
    """Flip a random bit of a record."""
    return _flip(target, dice, _record(target, dice))


def delete(target: Target, dice: random.Random) -> str:
    """Delete a record, or all checkpoints, or the journal."""
    if dice.random() < 0.15:
        whole = dice.choice([target.folder.checkpoints, target.folder.journal])
        if not whole.is_dir():
            return ""
        shutil.rmtree(whole)
        return f"{target.named(whole)}/ deleted"
    return _delete(target, dice, _record(target, dice))


def harm_slot(target: Target, dice: random.Random) -> str:
    """Tear, flip or delete a seal or another file of a copy in memory."""
    files = [path for slot in target.slots for path in _files(slot)]
    seals = [path for path in files if path.name.startswith("seal-")]
    chosen = dice.choice([seals, [path for path in files if path not in seals]])
    return dice.choice([_tear, _flip, _delete])(target, dice, dice.choice(chosen or [None]))


def _tear(target: Target, dice: random.Random, path: Path | None) -> str:
    if path is None or not path.stat().st_size:
        return ""
    size = path.stat().st_size
    at = dice.randrange(size)
    os.truncate(path, at)
    return f"{target.named(path)} torn at byte {at} of {size}"


def _flip(target: Target, dice: random.Random, path: Path | None) -> str:
    if path is None or not path.stat().st_size:
        return ""
    content = bytearray(path.read_bytes())
    at, bit = dice.randrange(len(content)), dice.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"{target.named(path)}: bit {bit} of byte {at} flipped"


def _delete(target: Target, dice: random.Random, path: Path | None) -> str:
    if path is None:
        return ""
    path.unlink()
    return f"{target.named(path)} deleted"


WAYS: dict[str, Way] = {
    "renamed checkpoint": rename,
    "swapped checkpoints": swap_checkpoints,
    "swapped files": swap_files,
    "swapped ranks": swap_ranks,
    "swapped slots": swap_slots,
    "harmed slot": harm_slot,
    "foreign checkpoint": foreign_checkpoint,
    "foreign file": foreign_file,
    "foreign identity": foreign_identity,
    "torn record": tear,
    "flipped bit": flip,
    "deleted record": delete,
}
# Slots are there only after the faults that leave the memory: there they are drawn often.
_WEIGHTS = (2, 2, 2, 1, 5, 8, 3, 1, 1, 4, 4, 3)


def tamper(target: Target, dice: random.Random) -> tuple[str, str]:
    """Do one of them that can be done; its name and what it did. Something always can be."""
    for _ in range(100):
        way = dice.choices(list(WAYS), _WEIGHTS)[0]
        if told := WAYS[way](target, dice):
            return way, told
    return "", ""


def _record(target: Target, dice: random.Random) -> Path | None:
    """Draw the kind of a record first: there are many journal files and one run.toml."""
    folder, newest = target.folder, target.checkpoints[::-1]
    weighed = newest[:1] * 3 + newest  # the newest one is the one that is gone on from
    kinds: list[Sequence[Path]] = [
        *([one / name for one in weighed] for name in SMALL),
        [path for one in weighed for path in _files(one) if path.name not in SMALL],
        [folder.plan_file],
        [folder.run_file],
        [folder.path / "identity", folder.checkpoints / "identity"],
        [path for slot in target.slots for path in slot.glob("seal-*")],
        [path for slot in target.slots for path in _files(slot) if "seal" not in path.name],
        _files(folder.journal),
        [folder.journal / "supervisor.events"],
    ]
    there = [path for path in dice.choice(kinds) if path.is_file()]
    return dice.choice(there) if there else None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _equal(one: Path, other: Path) -> bool:
    """Return whether two files have the same bytes; folders never count as equal."""
    both = one.is_file() and other.is_file()
    return both and one.read_bytes() == other.read_bytes()


def _two(dice: random.Random, paths: Sequence[Path]) -> list[Path]:
    return dice.sample(list(paths), 2) if len(paths) > 1 else []


def _swapped(target: Target, two: Sequence[Path]) -> str:
    if not two:
        return ""
    one, other = two
    if _equal(one, other):
        return ""
    aside = one.with_name(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    return f"{target.named(one)} and {target.named(other)} swapped"
