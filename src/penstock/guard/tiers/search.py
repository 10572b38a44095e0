"""Search for the checkpoint to resume from: the newest good one of any tier, every hash verified.

The order is memory, then disk, then the durable store; of equal steps the nearest wins. Damaged
checkpoints are reported, and put aside once an older one turns out good. While none does,
everything stays as it is: a disk that fails to read today may read tomorrow. `policy/resume.py`
decides what follows.

The supervisor searches before it starts ranks (`expected`), the ranks search when they load
(`newest_good`): the same search, in the same order. The supervisor compares sizes, the ranks
hashes.
"""

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from penstock.errors import RunFailed, system_words
from penstock.guard.format.manifest import MANIFEST, UNSUPPORTED
from penstock.guard.format.published import (
    USE_OTHER_VERSION,
    StoredCheckpoint,
    folder_name,
)
from penstock.guard.tiers.free_space import boot_id
from penstock.guard.tiers.ownership import ADOPT, Owner
from penstock.guard.tiers.slots import MemoryCheckpoint, damaged_seals, sealed_slots
from penstock.guard.tiers.stores import DAMAGED, FOREIGN, CheckpointStore, DiskStore
from penstock.policy import resume

MEMORY = -1  # as the number of a tier; durable stores count from 0


@dataclass(frozen=True)
class SearchResult:
    """The checkpoint to resume from, and what was wrong with others."""

    checkpoint: StoredCheckpoint | None  # None: there is none, begin at the first step
    rejected: list[str]  # what was wrong with newer ones
    unreachable: list[str]  # stores that did not answer
    notes: list[str] = field(default_factory=list)  # what was put right on the way


@dataclass(frozen=True)
class SingleProcess:
    """A group of one rank, for the supervisor, which searches before there are ranks."""

    rank: int = 0
    ranks: int = 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value


@dataclass
class _Problems:
    """Checkpoints and stores that a search could not use, by the number of the tier."""

    rejected: list[tuple[int, str]] = field(default_factory=list)
    unreachable: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was put right on the way
    foreign: bool = False  # whole ones were of another run

    def found(self, checkpoint: StoredCheckpoint | None) -> SearchResult:
        rejected = [words for _, words in self.rejected]
        return SearchResult(
            checkpoint, rejected, [words for _, words in self.unreachable], self.notes
        )

    def of(self, tier: int) -> list[str]:
        return [words for at, words in [*self.unreachable, *self.rejected] if at == tier]


@dataclass(frozen=True)
class CheckpointSearch:
    """The places to search. Remote checkpoints are downloaded to `download_folder` on this host."""

    fast: Sequence[Path]  # folders of the fast tier
    stores: Sequence[CheckpointStore]
    download_folder: Path
    identity: str  # identity
    world: Any  # chunks.Ranks, which would bring torch
    is_host_leader: bool = True  # whether this rank works for its host
    recorded_step: Callable[[], int | None] = lambda: None  # newest durable step by the journal
    restart_hint: str = "--fresh"  # how a person starts the run from its first step
    memory_error: str = ""  # why the memory of this host could not be searched
    owner: Owner | None = None  # what else a checkpoint must be; None: the identity alone
    notes: Sequence[str] = ()  # what was put right before the search

    def newest_good(self, before_step: int | None = None) -> SearchResult:
        """Verify every hash; all ranks together. With `before_step`, only earlier steps.

        Raises RunFailed if nothing can be loaded and the run must not begin again.
        """
        aside: list[tuple[CheckpointStore, int, str]] = []

        def judge(tier: int, step: int, slot: MemoryCheckpoint | None) -> _Judgement:
            if slot is not None:
                return self._judge_memory(slot)
            return self._judge(self.stores[tier], step, aside)

        renamed = self.world.broadcast(self._name_rightly() if self._first else None)
        found = self._search(judge, before_step, renamed)
        if found.checkpoint is not None:
            self._put_aside(aside)
        return found

    def expected(self) -> SearchResult:
        """Compare sizes only and change nothing: `newest_good` finds the same unless bytes differ.

        A remote checkpoint counts as whole.
        """
        wrong = self._misnamed()
        names = {(number, true): step for number, step, true in wrong}

        def judge(tier: int, step: int, slot: MemoryCheckpoint | None) -> _Judgement:
            found: StoredCheckpoint
            if slot is not None:
                found = slot
            elif (store := self.stores[tier]).tier == "remote":
                return _Judgement(UnverifiedRemote(Path(folder_name(step))))
            else:
                found = StoredCheckpoint(
                    store.fetch(names.get((tier, step), step), self.download_folder)
                )
            called = (tier, step) not in names
            damage = found.find_damage(hashed=False, called=called)
            _refuse_other_format(found, damage)
            verdict = _judge_found(found, damage, "" if damage else self.refusal(found))
            if called or verdict.checkpoint is None:
                return verdict
            return _Judgement(MisnamedCheckpoint(found.path.with_name(folder_name(step))))

        notes = [_renamed_words(step, true) for _, step, true in wrong]
        return self._search(judge, None, notes, {(n, step): true for n, step, true in wrong})

    def _search(
        self,
        judge: Callable[[int, int, MemoryCheckpoint | None], "_Judgement"],
        before_step: int | None,
        notes: Sequence[str] = (),
        true_steps: Mapping[tuple[int, int], int] | None = None,
    ) -> SearchResult:
        """Check the checkpoints, newest first, until one is good."""
        slots, problems = self._memory()
        problems.notes += [*self.notes, *notes]
        memory = {(slot.step, slot.mark): slot for slot in slots}
        listed, unreachable = self.world.broadcast(self._listed() if self._first else None)
        problems.unreachable += unreachable
        order = [(step, MEMORY, mark) for step, mark in memory]
        true = true_steps or {}
        order += [(true.get((number, step), step), number, "") for step, number in listed]
        order.sort(key=lambda one: (-one[0], one[1]))
        for step, tier, mark in order:
            if before_step is not None and step >= before_step:
                continue
            verdict = judge(tier, step, memory.get((step, mark)) if mark else None)
            if verdict.checkpoint:
                return problems.found(verdict.checkpoint)
            problems.rejected.append((tier, verdict.problem))
            problems.foreign |= verdict.foreign
        self._refuse_to_begin_again(problems)
        return problems.found(None)

    def _misnamed(self) -> list[tuple[int, int, int]]:
        """Return store number, step by folder name and true step of every renamed folder on
        disk."""
        found = []
        for number, store in enumerate(self.stores):
            if isinstance(store, DiskStore):
                with contextlib.suppress(OSError):  # reported where it is listed
                    found += [(number, step, true) for step, true in store.misnamed().items()]
        return found

    def _name_rightly(self) -> list[str]:
        """Rename folders to the steps of their content; return what was done."""
        renamed = []
        for number, step, true in self._misnamed():
            store = self.stores[number]
            assert isinstance(store, DiskStore)
            with contextlib.suppress(OSError):  # then it is rejected
                store.rename(step, true)
                renamed.append(_renamed_words(step, true))
        return renamed

    def durable_steps(self) -> list[int]:
        """List the steps of all published checkpoints, in any store."""
        return sorted({step for store in self.stores for step in store.steps()})

    def discard_after(self, after_step: int) -> list[str]:
        """Delete the checkpoints of later steps, after a rollback. The saver discards its slots.

        Returns on every rank what could not be deleted.
        """
        problems = []
        for store in self.stores if self._first else ():
            try:
                for step in store.steps():
                    if step > after_step:
                        store.delete(step)
            except OSError as error:
                problems.append(f"{type(error).__name__}: {error}")
        return self.world.broadcast(problems)

    @property
    def _first(self) -> bool:
        return self.world.rank == 0

    def memory(self) -> list[MemoryCheckpoint]:
        """Return the slots that every rank sees whole, newest first. Every host has its own
        memory."""
        return self._memory()[0]

    def _memory(self) -> tuple[list[MemoryCheckpoint], _Problems]:
        own: list[MemoryCheckpoint] = []
        damaged: list[str] = []
        lost = self.memory_error
        try:
            own = [slot for fast in self.fast for slot in sealed_slots(fast, self.identity)]
            damaged = [words for fast in self.fast for words in damaged_seals(fast)]
        except OSError as error:
            lost = system_words(error)
        answers = self.world.gather(([(s.step, s.mark) for s in own], lost, damaged))
        whole = [s for s in own if all((s.step, s.mark) in keys for keys, _, _ in answers)]
        order = sorted(whole, key=lambda slot: slot.step, reverse=True)
        problems = _Problems()
        for why in sorted({why for _, why, _ in answers if why}):
            problems.unreachable.append((MEMORY, f"memory: {why}"))
        for words in sorted({words for _, _, part in answers for words in part}):
            problems.rejected.append((MEMORY, words))
        return order, problems

    def _listed(self) -> tuple[list[tuple[int, int]], list[tuple[int, str]]]:
        """Return (step, store number) of all published checkpoints, and the stores that failed."""
        listed, unreachable = [], []
        for number, store in enumerate(self.stores):
            try:
                listed += [(step, number) for step in store.steps()]
            except OSError as error:
                unreachable.append((number, system_words(error)))
        return listed, unreachable

    def _judge_memory(self, slot: MemoryCheckpoint) -> "_Judgement":
        damage = self._damage(slot)
        refusal = "" if damage else self._refused(slot)
        if damage:
            slot.discard()
        return _judge_found(slot, damage, refusal)

    def _judge(
        self, store: CheckpointStore, step: int, aside: list[tuple[CheckpointStore, int, str]]
    ) -> "_Judgement":
        """Check one checkpoint of a store; add it to `aside` if it is damaged or foreign.

        A failed download is not damage.
        """
        away = store.tier == "remote"
        name = f"{folder_name(step)} ({store.tier})" if away else folder_name(step)
        path, problem = (
            self._land(store, step) if away else (store.fetch(step, self.download_folder), "")
        )
        if problem:
            return _Judgement(None, f"{name}: {problem}")
        found = StoredCheckpoint(path)
        damage = self._damage(found, shared=not away)
        _refuse_other_format(found, damage)
        refusal = "" if damage else self._refused(found)
        if damage or refusal:
            aside.append((store, step, DAMAGED if damage else FOREIGN))
            if away and self.is_host_leader:
                shutil.rmtree(path, ignore_errors=True)
        self.world.gather(None)
        return _judge_found(found, damage, refusal, name)

    def _refused(self, found: StoredCheckpoint) -> str:
        """Return the same answer on all ranks: rank 0 reads the journal."""
        return self.world.broadcast(self.refusal(found) if self._first else None)

    def refusal(self, found: StoredCheckpoint) -> str:
        """Say why a whole checkpoint does not belong to this run; "" if it does."""
        try:
            return (self.owner or Owner(self.identity)).refusal(found)
        except (OSError, ValueError, RecursionError) as error:
            return f"it does not tell which run it is of: {error}"

    def _put_aside(self, bad: list[tuple[CheckpointStore, int, str]]) -> None:
        """Move bad checkpoints away: good ones of the same steps will be written."""
        for store, step, why in bad if self._first else ():
            with contextlib.suppress(OSError):
                store.put_aside(step, why)
        if bad:
            self.world.gather(None)

    def _land(self, store: CheckpointStore, step: int) -> tuple[Path, str]:
        """Download a checkpoint on rank 0, and on one rank of each host that does not share its
        disk."""
        path, problem, seen = self.download_folder / folder_name(step), "", b""
        for mine in (self._first, self.is_host_leader and not self._first):
            manifest = path / MANIFEST
            there = manifest.is_file() and manifest.read_bytes() == seen
            if mine and not there:
                try:
                    store.fetch(step, self.download_folder)
                except (OSError, ValueError, KeyError, TypeError) as error:
                    problem = f"{type(error).__name__}: {error}"
            seen = self.world.broadcast(manifest.read_bytes() if manifest.is_file() else b"")
        problems = [why for why in self.world.gather(problem) if why]
        return path, "; ".join(problems)

    def _damage(self, found: StoredCheckpoint, shared: bool = False) -> list[str]:
        """List the damage; ranks that see the same files share the reading."""
        here = "" if shared else f"{boot_id()} {found.path}"
        peers = [rank for rank, where in enumerate(self.world.gather(here)) if where == here]
        own = found.find_damage(peers.index(self.world.rank), len(peers))
        return sorted({problem for part in self.world.gather(own) for problem in part})

    def _refuse_to_begin_again(self, problems: _Problems) -> None:
        """Raise RunFailed if nothing can be loaded but checkpoints may exist."""
        step, why = self.world.broadcast(self._on_record() if self._first else None)
        durable = [tier for tier, _ in problems.rejected if tier != MEMORY]
        unreadable = len(problems.unreachable) + bool(why)
        search = resume.Search(False, len(durable), unreadable, step)
        if resume.decide(search) == "begin":
            return
        known = "" if step is None else f"the journal says that step {step} was saved, but "
        silent = ", and not every place could be asked" if problems.unreachable else ""
        lines = [f"memory: {self._words(problems.of(MEMORY), 'no copy of this run')}"]
        for number, store in enumerate(self.stores):
            words = self._words(problems.of(number), "no checkpoint")
            lines.append(f"{store.tier} ({store.where}): {words}")
        lines += [f"journal: {why}"] * bool(why)
        raise RunFailed(
            f"{known}no checkpoint in any tier can be loaded{silent}:\n  "
            + "\n  ".join(lines)
            + "\nRestore what is missing (mount the disk, give access, copy the folder back) and "
            f"give the same command; or train from the first step with {self.restart_hint}"
            + (f". {ADOPT}" if problems.foreign else "")
        )

    def _on_record(self) -> tuple[int | None, str]:
        try:
            return self.recorded_step(), ""
        except OSError as error:
            return None, system_words(error)

    @staticmethod
    def _words(problems: list[str], none: str) -> str:
        return "; ".join(words.removeprefix("memory: ") for words in problems) or none


class UnverifiedRemote(StoredCheckpoint):
    """A checkpoint in a remote store of which only the step is known."""

    tier: ClassVar[str] = "remote"


class MisnamedCheckpoint(StoredCheckpoint):
    """A checkpoint in a folder with a wrong step, under the name that it will get."""


@dataclass(frozen=True)
class _Judgement:
    """A good checkpoint, or what is wrong with it."""

    checkpoint: StoredCheckpoint | None
    problem: str = ""
    foreign: bool = False


def _judge_found(
    found: StoredCheckpoint, damage: list[str], refusal: str, name: str = ""
) -> _Judgement:
    if not damage and not refusal:
        return _Judgement(found)
    return _Judgement(None, f"{name or found.name}: {'; '.join(damage) or refusal}", bool(refusal))


def _refuse_other_format(found: StoredCheckpoint, damage: list[str]) -> None:
    """Raise RunFailed if it is whole but in a format that this version cannot read."""
    for problem in damage:
        if UNSUPPORTED in problem:
            raise RunFailed(f"{found.path}: {problem.partition(': ')[2]}; {USE_OTHER_VERSION}")


def _renamed_words(step: int, true: int) -> str:
    was, now = folder_name(step), folder_name(true)
    return f"{was} is a checkpoint of step {true} by its manifest: it is called {now} again"
