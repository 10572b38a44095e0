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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from penstock.errors import RunFailed, system_words
from penstock.guard.format.manifest import MANIFEST, UNSUPPORTED
from penstock.guard.format.published import (
    USE_OTHER_VERSION,
    Checkpoint,
    folder_name,
    published_checkpoints,
)
from penstock.guard.tiers.free_space import boot_id
from penstock.guard.tiers.identity import IdentityCopies
from penstock.guard.tiers.journal_facts import forked_step, recorded_manifests, recorded_step
from penstock.guard.tiers.ownership import ADOPT, Owner
from penstock.guard.tiers.slots import MemoryCheckpoint, damaged_seals, sealed_slots
from penstock.guard.tiers.stores import DAMAGED, FOREIGN, CheckpointStore, DiskStore, open_store
from penstock.policy import resume
from penstock.run.fingerprint import settings
from penstock.run.folder import RunFolder
from penstock.run.schema.run import Run

MEMORY = -1  # as the number of a tier; durable places count from 0


@dataclass(frozen=True)
class SearchResult:
    """The checkpoint to go on from, and what was wrong with others."""

    checkpoint: Checkpoint | None  # None: there is none, begin at the first step
    rejected: list[str]  # what was wrong with newer ones
    unreachable: list[str]  # places that did not answer
    told: list[str] = field(default_factory=list)  # what was put right on the way


@dataclass(frozen=True)
class SingleProcess:
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
    told: list[str] = field(default_factory=list)
    foreign: bool = False  # whole ones were of another run

    def found(self, checkpoint: Checkpoint | None) -> SearchResult:
        rejected = [words for _, words in self.rejected]
        return SearchResult(
            checkpoint, rejected, [words for _, words in self.unreachable], self.told
        )

    def of(self, tier: int) -> list[str]:
        return [words for at, words in [*self.unreachable, *self.rejected] if at == tier]


@dataclass(frozen=True)
class CheckpointSearch:
    """Where to look. `landing` is the folder of this host that remote ones are brought to."""

    fast: Sequence[Path]  # folders of the fast tier
    places: Sequence[CheckpointStore]
    landing: Path
    run: str  # identity
    world: Any  # chunks.Ranks, which would bring torch
    leads: bool = True  # whether this rank works for its host
    recorded: Callable[[], int | None] = lambda: None  # newest durable step by the journal
    anew: str = "--fresh"  # how a person starts the run from its first step
    lost: str = ""  # why the memory of this host could not be searched
    owner: Owner | None = None  # what else a checkpoint must be; None: the identity alone
    told: Sequence[str] = ()  # what was put right before the search

    def newest_good(self, before_step: int | None = None) -> SearchResult:
        """Verify every hash; all ranks together. With `before_step`, of an earlier step than that.

        Raises RunFailed where there is nothing to load and the run must not begin again.
        """
        aside: list[tuple[CheckpointStore, int, str]] = []

        def judge(tier: int, step: int, slot: MemoryCheckpoint | None) -> _Judgement:
            if slot is not None:
                return self._judge_memory(slot)
            return self._judge(self.places[tier], step, aside)

        renamed = self.world.broadcast(self._name_rightly() if self._first else None)
        found = self._search(judge, before_step, renamed)
        if found.checkpoint is not None:
            self._put_aside(aside)
        return found

    def expected(self) -> SearchResult:
        """Compare sizes only and change nothing: what `newest_good` will find unless bytes differ.

        One in a remote place is believed to be whole.
        """
        wrong = self._misnamed()
        names = {(number, true): step for number, step, true in wrong}

        def judge(tier: int, step: int, slot: MemoryCheckpoint | None) -> _Judgement:
            found: Checkpoint
            if slot is not None:
                found = slot
            elif (place := self.places[tier]).tier == "remote":
                return _Judgement(UnverifiedRemote(Path(folder_name(step))))
            else:
                found = Checkpoint(place.fetch(names.get((tier, step), step), self.landing))
            called = (tier, step) not in names
            damage = found.damage(hashed=False, called=called)
            _refuse_other_format(found, damage)
            verdict = _judge_found(found, damage, "" if damage else self.refusal(found))
            if called or verdict.checkpoint is None:
                return verdict
            return _Judgement(MisnamedCheckpoint(found.path.with_name(folder_name(step))))

        told = [_renamed_words(step, true) for _, step, true in wrong]
        return self._search(judge, None, told, {(n, step): true for n, step, true in wrong})

    def _search(
        self,
        judge: Callable[[int, int, MemoryCheckpoint | None], "_Judgement"],
        before_step: int | None,
        told: Sequence[str] = (),
        true_steps: Mapping[tuple[int, int], int] | None = None,
    ) -> SearchResult:
        """Judge what there is, newest first, until one is good."""
        slots, problems = self._memory()
        problems.told += [*self.told, *told]
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
        """Return number of the place, step by its name and true step of every checkpoint on disk
        whose folder was renamed."""
        found = []
        for number, place in enumerate(self.places):
            if isinstance(place, DiskStore):
                with contextlib.suppress(OSError):  # told where it is listed
                    found += [(number, step, true) for step, true in place.misnamed().items()]
        return found

    def _name_rightly(self) -> list[str]:
        """Call folders by the steps that they are of; what was done."""
        told = []
        for number, step, true in self._misnamed():
            place = self.places[number]
            assert isinstance(place, DiskStore)
            with contextlib.suppress(OSError):  # then it is rejected
                place.rename(step, true)
                told.append(_renamed_words(step, true))
        return told

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

    def memory(self) -> list[MemoryCheckpoint]:
        """Slots that every rank sees whole, newest first: hosts have memories of their own."""
        return self._memory()[0]

    def _memory(self) -> tuple[list[MemoryCheckpoint], _Problems]:
        own: list[MemoryCheckpoint] = []
        damaged: list[str] = []
        lost = self.lost
        try:
            own = [slot for fast in self.fast for slot in sealed_slots(fast, self.run)]
            damaged = [words for fast in self.fast for words in damaged_seals(fast)]
        except OSError as error:
            lost = system_words(error)
        told = self.world.gather(([(s.step, s.mark) for s in own], lost, damaged))
        whole = [s for s in own if all((s.step, s.mark) in keys for keys, _, _ in told)]
        order = sorted(whole, key=lambda slot: slot.step, reverse=True)
        problems = _Problems()
        for why in sorted({why for _, why, _ in told if why}):
            problems.unreachable.append((MEMORY, f"memory: {why}"))
        for words in sorted({words for _, _, part in told for words in part}):
            problems.rejected.append((MEMORY, words))
        return order, problems

    def _listed(self) -> tuple[list[tuple[int, int]], list[tuple[int, str]]]:
        """(step, number of the place) of all that are published, and who did not answer."""
        listed, unreachable = [], []
        for number, place in enumerate(self.places):
            try:
                listed += [(step, number) for step in place.steps()]
            except OSError as error:
                unreachable.append((number, system_words(error)))
        return listed, unreachable

    def _judge_memory(self, slot: MemoryCheckpoint) -> "_Judgement":
        damage = self._damage(slot)
        refusal = "" if damage else self._refused(slot)
        if damage:
            slot.forget()
        return _judge_found(slot, damage, refusal)

    def _judge(
        self, place: CheckpointStore, step: int, aside: list[tuple[CheckpointStore, int, str]]
    ) -> "_Judgement":
        """Add it to `aside` where it was read and is damaged; a link that fails damages nothing."""
        away = place.tier == "remote"
        name = f"{folder_name(step)} ({place.tier})" if away else folder_name(step)
        path, problem = self._land(place, step) if away else (place.fetch(step, self.landing), "")
        if problem:
            return _Judgement(None, f"{name}: {problem}")
        found = Checkpoint(path)
        damage = self._damage(found, shared=not away)
        _refuse_other_format(found, damage)
        refusal = "" if damage else self._refused(found)
        if damage or refusal:
            aside.append((place, step, DAMAGED if damage else FOREIGN))
            if away and self.leads:
                shutil.rmtree(path, ignore_errors=True)
        self.world.gather(None)
        return _judge_found(found, damage, refusal, name)

    def _refused(self, found: Checkpoint) -> str:
        """Return the same answer on all ranks: the first one knows the journal."""
        return self.world.broadcast(self.refusal(found) if self._first else None)

    def refusal(self, found: Checkpoint) -> str:
        """Say why a whole checkpoint is not one of this run."""
        try:
            return (self.owner or Owner(self.run)).refusal(found)
        except (OSError, ValueError, RecursionError) as error:
            return f"it does not tell which run it is of: {error}"

    def _put_aside(self, bad: list[tuple[CheckpointStore, int, str]]) -> None:
        """Move bad ones out of the way of the good ones that will be of those steps."""
        for place, step, why in bad if self._first else ():
            with contextlib.suppress(OSError):
                place.put_aside(step, why)
        if bad:
            self.world.gather(None)

    def _land(self, place: CheckpointStore, step: int) -> tuple[Path, str]:
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
            + (f". {ADOPT}" if problems.foreign else "")
        )

    def _on_record(self) -> tuple[int | None, str]:
        try:
            return self.recorded(), ""
        except OSError as error:
            return None, system_words(error)

    @staticmethod
    def _words(problems: list[str], none: str) -> str:
        return "; ".join(words.removeprefix("memory: ") for words in problems) or none


class UnverifiedRemote(Checkpoint):
    """A checkpoint in a remote place, of which only the step is known."""

    tier: ClassVar[str] = "remote"


class MisnamedCheckpoint(Checkpoint):
    """A checkpoint whose folder is called by another step, under the name that it will have."""


@dataclass(frozen=True)
class _Judgement:
    """A good checkpoint, or what is wrong with it."""

    checkpoint: Checkpoint | None
    problem: str = ""
    foreign: bool = False


def _judge_found(found: Checkpoint, damage: list[str], refusal: str, name: str = "") -> _Judgement:
    if not damage and not refusal:
        return _Judgement(found)
    return _Judgement(None, f"{name or found.name}: {'; '.join(damage) or refusal}", bool(refusal))


def _refuse_other_format(found: Checkpoint, damage: list[str]) -> None:
    """Raise where it is whole and newer than all that this version could go on from."""
    for problem in damage:
        if UNSUPPORTED in problem:
            raise RunFailed(f"{found.path}: {problem.partition(': ')[2]}; {USE_OTHER_VERSION}")


def _renamed_words(step: int, true: int) -> str:
    was, now = folder_name(step), folder_name(true)
    return f"{was} is a checkpoint of step {true} by its manifest: it is called {now} again"


def stores_of_run(folder: RunFolder, run: Run) -> list[CheckpointStore]:
    """Return where durable checkpoints go. Hosts that may not share a disk share the durable
    place."""
    here, durable = DiskStore(folder.checkpoints), run.guard.durable
    if durable is None:
        return [here]
    there = open_store(durable, folder.name)
    return [there] if run.cluster.nodes > 1 else [here, there]


def spill_folder(folder: RunFolder) -> Path:
    """Return where copies go that do not fit into memory."""
    return folder.path / ".spill"


def memory_folders(folder: RunFolder) -> list[Path]:
    """Return the folders of the fast tier. Raises OSError where they cannot be listed."""
    try:
        names = [name for name in os.listdir(folder.scratch) if name.startswith("fast-")]
    except FileNotFoundError:
        names = []
    return [*(folder.scratch / name for name in sorted(names)), spill_folder(folder)]


def search_of_run(
    folder: RunFolder, run: Run, world: Any, leads: bool = True, ranks: bool = True
) -> CheckpointSearch:
    """Return all tiers of a run. `ranks` give the run its identity; the supervisor only reads."""
    places = stores_of_run(folder, run)
    # Hosts have folders of their own, and share the durable place: there that decides.
    homes = places if run.cluster.nodes > 1 else [DiskStore(folder.path), *places]
    kept = IdentityCopies(homes, lambda: _remembered(places, run))
    who = kept.known() if not ranks else world.broadcast(kept.kept() if world.rank == 0 else None)
    fast, lost = [], ""
    try:
        fast = memory_folders(folder)
    except OSError as error:
        lost = system_words(error)
    anew = "`--fresh`, which keeps the old run folder aside"
    if run.cluster.nodes > 1:
        anew = "another name for the run"
    return CheckpointSearch(
        fast,
        places,
        folder.checkpoints,
        who,
        world,
        leads,
        lambda: recorded_step(folder),
        anew,
        lost,
        Owner(who, run, cache(lambda: _manifests(folder)), forked_step(folder)),
        kept.told,
    )


def problems_of(folder: RunFolder, run: Run, found: Checkpoint) -> list[str]:
    """Return why a checkpoint in a run folder is not used: damage, or that it is of another run."""
    if damage := found.damage():
        return damage
    refusal = search_of_run(folder, run, SingleProcess(), ranks=False).refusal(found)
    return [refusal] if refusal else []


def newest_in_memory(folder: RunFolder, run: Run) -> MemoryCheckpoint | None:
    """Return the newest good state in the memory of this host, as a crash leaves it.

    None while the run is at work: it would write over the slot that is being read.
    """
    if folder.running():
        return None
    tiers = search_of_run(folder, run, SingleProcess(), ranks=False)
    good = (one for one in tiers.memory() if not one.damage() and not tiers.refusal(one))
    return next(good, None)


def _manifests(folder: RunFolder) -> dict[int, str]:
    """Return what the journal has on record; a journal that cannot be read holds nothing against
    a checkpoint."""
    try:
        return recorded_manifests(folder)
    except OSError:
        return {}


def _remembered(places: Sequence[CheckpointStore], run: Run) -> str | None:
    """Return the run that checkpoints on disk say they are of, newest first; first by those with
    the settings of this run."""
    said: list[tuple[bool, str]] = []
    own = settings(run)
    for place in places:
        if isinstance(place, DiskStore):
            with contextlib.suppress(OSError):
                for found in published_checkpoints(place.root):
                    with contextlib.suppress(OSError, ValueError):
                        about = found.about()
                        if about.run:
                            said.append((about.settings != own, about.run))
    return min(said, key=lambda one: one[0])[1] if said else None
