"""Which checkpoint to go on from: the newest good one of any tier, every hash verified first.

Memory, then disk, then a durable place elsewhere; of equal steps the nearest. What is damaged is
told and put aside, and the next older one is tried.
"""

import contextlib
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import RunFailed
from penstock.guard.places import Place
from penstock.guard.published import MANIFEST, Checkpoint, folder_name
from penstock.guard.room import boot_id
from penstock.guard.slots import InMemory, sealed

IDENTITY = "identity"


@dataclass(frozen=True)
class Found:
    checkpoint: Checkpoint | None  # None: there is none, begin at the first step
    rejected: list[str]  # what was wrong with newer ones
    unreachable: list[str]  # places that did not answer


@dataclass(frozen=True)
class Tiers:
    """Where to look. `landing` is the folder of this host that remote ones are brought to."""

    fast: Sequence[Path]  # folders of the fast tier
    places: Sequence[Place]
    landing: Path
    run: str  # identity
    world: Any  # chunks.Ranks, which would bring torch
    leads: bool = True  # whether this rank works for its host

    def newest_good(self, before_step: int | None = None) -> Found:
        """All ranks together. With `before_step`, of an earlier step than that."""
        memory = {(slot.step, slot.mark): slot for slot in self.memory()}
        listed, unreachable = self.world.broadcast(self._listed() if self._first else None)
        order = [(step, 0, mark) for step, mark in memory]
        order += [(step, 1 + number, "") for step, number in listed]
        order.sort(key=lambda one: (-one[0], one[1]))
        rejected: list[str] = []
        for step, tier, mark in order:
            if before_step is not None and step >= before_step:
                continue
            if tier == 0:
                problem, found = self._judge_memory(memory[step, mark])
            else:
                problem, found = self._judge(self.places[tier - 1], step)
            if found:
                return Found(found, rejected, unreachable)
            rejected.append(problem)
        self._refuse_to_begin_again(bool(listed), rejected, unreachable)
        return Found(None, rejected, unreachable)

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
        own = [slot for fast in self.fast for slot in sealed(fast, self.run)]
        seen = [set(keys) for keys in self.world.gather([(s.step, s.mark) for s in own])]
        whole = [s for s in own if all((s.step, s.mark) in keys for keys in seen)]
        return sorted(whole, key=lambda slot: slot.step, reverse=True)

    def _listed(self) -> tuple[list[tuple[int, int]], list[str]]:
        """(step, number of the place) of all that are published, and who did not answer."""
        listed, unreachable = [], []
        for number, place in enumerate(self.places):
            try:
                listed += [(step, number) for step in place.steps()]
            except OSError as error:
                unreachable.append(str(error))
        return listed, unreachable

    def _judge_memory(self, slot: InMemory) -> tuple[str, Checkpoint | None]:
        damage = self._damage(slot)
        if damage:
            slot.forget()
        return f"{slot.name}: {'; '.join(damage)}", None if damage else slot

    def _judge(self, place: Place, step: int) -> tuple[str, Checkpoint | None]:
        away = place.tier == "remote"
        name = f"{folder_name(step)} ({place.tier})" if away else folder_name(step)
        path, problem = self._land(place, step) if away else (place.fetch(step, self.landing), "")
        if problem:
            return f"{name}: {problem}", None
        found = Checkpoint(path)
        damage = self._damage(found, shared=not away)
        if damage:  # out of the way of the good one that will be of that step
            if away and self.leads:
                shutil.rmtree(path, ignore_errors=True)
            if self._first:
                with contextlib.suppress(OSError):
                    place.put_aside(step)
        self.world.gather(None)
        return f"{name}: {'; '.join(damage)}", None if damage else found

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

    def _refuse_to_begin_again(
        self, listed: bool, rejected: list[str], unreachable: list[str]
    ) -> None:
        """Nothing to go on from is no reason to train over what may be there."""
        if unreachable:
            raise RunFailed(
                "no checkpoint to go on from was found, and not every place could be asked:\n  "
                + "\n  ".join(unreachable)
                + "\nGive the same command when it can be reached."
            )
        if listed and rejected:
            raise RunFailed(
                f"no checkpoint in {self.landing} is whole:\n  " + "\n  ".join(rejected) + "\n"
                "They were renamed to .damaged-*. Restore one from a copy, or start again to train "
                "from the first step."
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
            return place.read(IDENTITY).decode()
        place.create(IDENTITY, made.encode())
        return place.read(IDENTITY).decode()
    except OSError:  # cannot be written: nothing in memory is of this run, and nothing will be
        return made
