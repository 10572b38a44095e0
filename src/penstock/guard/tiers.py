"""Which checkpoint to go on from: the newest good one of any tier, every hash verified first.

Memory, then disk, then a durable place elsewhere; of equal steps the nearest. What is damaged is
told and put aside once an older one turns out good; while none does, everything stays as it is,
since a disk that fails to read today may read tomorrow. `policy/resume.py` decides what follows.

The supervisor searches before it starts ranks (`expected`), the ranks search when they load
(`newest_good`): the same search, in the same order. The supervisor compares sizes, the ranks
hashes.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from penstock.errors import RunFailed, system_words
from penstock.guard.on_record import recorded_step
from penstock.guard.places import Disk, Place, place_of
from penstock.guard.published import MANIFEST, Checkpoint, folder_name
from penstock.guard.room import boot_id
from penstock.guard.slots import InMemory, sealed
from penstock.policy import resume
from penstock.run.file import Run
from penstock.run.folder import RunFolder

IDENTITY = "identity"
MEMORY = -1  # as the number of a tier; durable places count from 0


@dataclass(frozen=True)
class Found:
    """The checkpoint to go on from, and what was wrong with others."""

    checkpoint: Checkpoint | None  # None: there is none, begin at the first step
    rejected: list[str]  # what was wrong with newer ones
    unreachable: list[str]  # places that did not answer


@dataclass(frozen=True)
class OneProcess:
    """A world of one rank: the supervisor, which searches before there are ranks."""

    rank: int = 0
    ranks: int = 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value


@dataclass
class _Problems:
    """What a search could not use, by the number of the tier."""

    rejected: list[tuple[int, str]] = field(default_factory=list)
    unreachable: list[tuple[int, str]] = field(default_factory=list)

    def found(self, checkpoint: Checkpoint | None) -> Found:
        rejected = [words for _, words in self.rejected]
        return Found(checkpoint, rejected, [words for _, words in self.unreachable])

    def of(self, tier: int) -> list[str]:
        return [words for at, words in [*self.unreachable, *self.rejected] if at == tier]


@dataclass(frozen=True)
class Tiers:
    """Where to look. `landing` is the folder of this host that remote ones are brought to."""

    fast: Sequence[Path]  # folders of the fast tier
    places: Sequence[Place]
    landing: Path
    run: str  # identity
    world: Any  # chunks.Ranks, which would bring torch
    leads: bool = True  # whether this rank works for its host
    recorded: Callable[[], int | None] = lambda: None  # newest durable step by the journal
    anew: str = "--fresh"  # how a person starts the run from its first step
    lost: str = ""  # why the memory of this host could not be searched

    def newest_good(self, before_step: int | None = None) -> Found:
        """Verify every hash; all ranks together. With `before_step`, of an earlier step than that.

        Raises RunFailed where there is nothing to load and the run must not begin again.
        """
        aside: list[tuple[Place, int]] = []

        def judge(tier: int, step: int, slot: InMemory | None) -> tuple[str, Checkpoint | None]:
            if slot is not None:
                return self._judge_memory(slot)
            return self._judge(self.places[tier], step, aside)

        found = self._search(judge, before_step)
        if found.checkpoint is not None:
            self._put_aside(aside)
        return found

    def expected(self) -> Found:
        """Compare sizes only and change nothing: what `newest_good` will find unless bytes differ.

        One in a remote place is believed to be whole.
        """

        def judge(tier: int, step: int, slot: InMemory | None) -> tuple[str, Checkpoint | None]:
            found: Checkpoint
            if slot is not None:
                found = slot
            elif (place := self.places[tier]).tier == "remote":
                return "", Listed(Path(folder_name(step)))
            else:
                found = Checkpoint(place.fetch(step, self.landing))
            damage = found.damage(hashed=False)
            return f"{found.name}: {'; '.join(damage)}", None if damage else found

        return self._search(judge)

    def _search(self, judge: Callable[..., Any], before_step: int | None = None) -> Found:
        """Judge what there is, newest first, until one is good."""
        slots, problems = self._memory()
        memory = {(slot.step, slot.mark): slot for slot in slots}
        listed, unreachable = self.world.broadcast(self._listed() if self._first else None)
        problems.unreachable += unreachable
        order = [(step, MEMORY, mark) for step, mark in memory]
        order += [(step, number, "") for step, number in listed]
        order.sort(key=lambda one: (-one[0], one[1]))
        for step, tier, mark in order:
            if before_step is not None and step >= before_step:
                continue
            problem, found = judge(tier, step, memory.get((step, mark)) if mark else None)
            if found:
                return problems.found(found)
            problems.rejected.append((tier, problem))
        self._refuse_to_begin_again(problems)
        return problems.found(None)

    def durable_steps(self) -> list[int]:
        """List the steps of all published checkpoints, in any place."""
        return sorted({step for place in self.places for step in place.steps()})

    def forget(self, after_step: int) -> list[str]:
        """Later steps were taken back: nobody may go on from them. The saver does its slots.

        What could not be deleted, on every rank."""
        problems = []
        for place in self.places if self._first else ():
            try:
                for step in place.steps():
                    if step > after_step:
                        place.delete(step)
            except OSError as error:
                problems.append(f"{type(error).__name__}: {error}")
        return self.world.broadcast(problems)

    @property
    def _first(self) -> bool:
        return self.world.rank == 0

    def memory(self) -> list[InMemory]:
        """Slots that every rank sees whole, newest first: hosts have memories of their own."""
        return self._memory()[0]

    def _memory(self) -> tuple[list[InMemory], _Problems]:
        own: list[InMemory] = []
        lost = self.lost
        try:
            own = [slot for fast in self.fast for slot in sealed(fast, self.run)]
        except OSError as error:
            lost = system_words(error)
        told = self.world.gather(([(s.step, s.mark) for s in own], lost))
        whole = [s for s in own if all((s.step, s.mark) in keys for keys, _ in told)]
        problems = sorted({why for _, why in told if why})
        order = sorted(whole, key=lambda slot: slot.step, reverse=True)
        return order, _Problems(unreachable=[(MEMORY, f"memory: {why}") for why in problems])

    def _listed(self) -> tuple[list[tuple[int, int]], list[tuple[int, str]]]:
        """(step, number of the place) of all that are published, and who did not answer."""
        listed, unreachable = [], []
        for number, place in enumerate(self.places):
            try:
                listed += [(step, number) for step in place.steps()]
            except OSError as error:
                unreachable.append((number, system_words(error)))
        return listed, unreachable

    def _judge_memory(self, slot: InMemory) -> tuple[str, Checkpoint | None]:
        damage = self._damage(slot)
        if damage:
            slot.forget()
        return f"{slot.name}: {'; '.join(damage)}", None if damage else slot

    def _judge(
        self, place: Place, step: int, aside: list[tuple[Place, int]]
    ) -> tuple[str, Checkpoint | None]:
        """Add it to `aside` where it was read and is damaged; a link that fails damages nothing."""
        away = place.tier == "remote"
        name = f"{folder_name(step)} ({place.tier})" if away else folder_name(step)
        path, problem = self._land(place, step) if away else (place.fetch(step, self.landing), "")
        if problem:
            return f"{name}: {problem}", None
        found = Checkpoint(path)
        damage = self._damage(found, shared=not away)
        if damage:
            aside.append((place, step))
            if away and self.leads:
                shutil.rmtree(path, ignore_errors=True)
        self.world.gather(None)
        return f"{name}: {'; '.join(damage)}", None if damage else found

    def _put_aside(self, damaged: list[tuple[Place, int]]) -> None:
        """Move damaged ones out of the way of the good ones that will be of those steps."""
        for place, step in damaged if self._first else ():
            with contextlib.suppress(OSError):
                place.put_aside(step)
        if damaged:
            self.world.gather(None)

    def _land(self, place: Place, step: int) -> tuple[Path, str]:
        """Brought by rank 0, and by one rank of each host that does not see what it brought."""
        path, problem, seen = self.landing / folder_name(step), "", b""
        for mine in (self._first, self.leads and not self._first):
            manifest = path / MANIFEST
            there = manifest.is_file() and manifest.read_bytes() == seen
            if mine and not there:
                try:
                    place.fetch(step, self.landing)
                except (OSError, ValueError, KeyError, TypeError) as error:
                    problem = f"{type(error).__name__}: {error}"
            seen = self.world.broadcast(manifest.read_bytes() if manifest.is_file() else b"")
        problems = [why for why in self.world.gather(problem) if why]
        return path, "; ".join(problems)

    def _damage(self, found: Checkpoint, shared: bool = False) -> list[str]:
        """Ranks that see the same files share the reading of them."""
        here = "" if shared else f"{boot_id()} {found.path}"
        peers = [rank for rank, where in enumerate(self.world.gather(here)) if where == here]
        own = found.damage(peers.index(self.world.rank), len(peers))
        return sorted({problem for part in self.world.gather(own) for problem in part})

    def _refuse_to_begin_again(self, problems: _Problems) -> None:
        """Raise where nothing can be loaded and the run must not train over what may be there."""
        step, why = self.world.broadcast(self._on_record() if self._first else None)
        durable = [tier for tier, _ in problems.rejected if tier != MEMORY]
        unreadable = len(problems.unreachable) + bool(why)
        search = resume.Search(False, len(durable), unreadable, step)
        if resume.decide(search) == "begin":
            return
        known = "" if step is None else f"the journal says that step {step} was saved, but "
        silent = ", and not every place could be asked" if problems.unreachable else ""
        lines = [f"memory: {self._words(problems.of(MEMORY), 'no copy of this run')}"]
        for number, place in enumerate(self.places):
            words = self._words(problems.of(number), "no checkpoint")
            lines.append(f"{place.tier} ({place.where}): {words}")
        lines += [f"journal: {why}"] * bool(why)
        raise RunFailed(
            f"{known}no checkpoint in any tier can be loaded{silent}:\n  "
            + "\n  ".join(lines)
            + "\nRestore what is missing (mount the disk, give access, copy the folder back) and "
            f"give the same command; or train from the first step with {self.anew}"
        )

    def _on_record(self) -> tuple[int | None, str]:
        try:
            return self.recorded(), ""
        except OSError as error:
            return None, system_words(error)

    @staticmethod
    def _words(problems: list[str], none: str) -> str:
        return "; ".join(words.removeprefix("memory: ") for words in problems) or none


class Listed(Checkpoint):
    """A checkpoint in a remote place, of which only the step is known."""

    tier: ClassVar[str] = "remote"


def places_of(folder: RunFolder, run: Run) -> list[Place]:
    """Return where durable checkpoints go. Hosts that may not share a disk share the durable
    place."""
    here, durable = Disk(folder.checkpoints), run.guard.durable
    if durable is None:
        return [here]
    there = place_of(durable, folder.name)
    return [there] if run.cluster.nodes > 1 else [here, there]


def spill(folder: RunFolder) -> Path:
    """Return where copies go that do not fit into memory."""
    return folder.path / ".spill"


def memory_folders(folder: RunFolder) -> list[Path]:
    """Return the folders of the fast tier. Raises OSError where they cannot be listed."""
    try:
        names = [name for name in os.listdir(folder.scratch) if name.startswith("fast-")]
    except FileNotFoundError:
        names = []
    return [*(folder.scratch / name for name in sorted(names)), spill(folder)]


def everywhere(
    folder: RunFolder, run: Run, world: Any, leads: bool = True, ranks: bool = True
) -> Tiers:
    """Return all tiers of a run. `ranks` give the run its identity; the supervisor only reads."""
    places = places_of(folder, run)
    who = identity(places[0], world) if ranks else _known(places[0])
    fast, lost = [], ""
    try:
        fast = memory_folders(folder)
    except OSError as error:
        lost = system_words(error)
    anew = "`--fresh`, which keeps the old run folder aside"
    if run.cluster.nodes > 1:
        anew = "another name for the run"
    return Tiers(
        fast,
        places,
        folder.checkpoints,
        who,
        world,
        leads,
        lambda: recorded_step(folder),
        anew,
        lost,
    )


def identity(place: Place, world: Any) -> str:
    """Which run this is, of all that ever had its name: memory may hold states of an earlier one.

    Made at the first start, and kept with the checkpoints.
    """
    return world.broadcast(_identity(place) if world.rank == 0 else None)


def _identity(place: Place) -> str:
    made = uuid.uuid4().hex
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read(place)
        place.create(IDENTITY, made.encode())
        return _read(place)
    except OSError:  # cannot be written: nothing in memory is of this run, and nothing will be
        return made


def _known(place: Place) -> str:
    """Return the identity as it is on disk; one that no copy in memory has, if there is none."""
    try:
        return _read(place)
    except OSError:
        return "unknown"


def _read(place: Place) -> str:
    return place.read(IDENTITY).decode(errors="replace")
