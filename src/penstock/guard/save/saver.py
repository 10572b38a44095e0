"""Background saving: a state is staged into memory, sealed, and published while training goes on.

    saver = Saver(scratch / "fast", stores, world, journal, pulse, keep=3, identity=identity)
    saver.prepare(state)                 # in warm-up: plans; a thread allocates and pins memory
    saver.stage(step, state, local_state, scalars, durable=False)  # returns at once
    saver.before_update()                # weights change only after they are copied
    saver.busy                           # ranks vote on it: while one is busy, none stages
    saver.wait()                         # everything begun is safe, or has failed

`stage` copies this rank's tensors into a slot of the fast tier. One thread hashes and seals the
slot; another, for durable saves, brings the files to every store. All ranks make the same calls in
the same order. A failed save does not stop training: `failed` says why, and so does the journal
(`save_failed`).
"""

import contextlib
import uuid
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from penstock.guard.format.file_names import FileTable
from penstock.guard.format.file_plan import FilePlan, RankGroup, local_part, plan_files
from penstock.guard.format.manifest import manifest_fields
from penstock.guard.format.published import folder_name, hash_file
from penstock.guard.save.background_group import BackgroundGroup
from penstock.guard.save.durable import DurableSave
from penstock.guard.save.fast_tier import Slot, allocate_slots, remove_folder
from penstock.guard.save.staging import PendingCopies, TensorCopy
from penstock.guard.tiers.slots import SLOTS, MemoryCheckpoint, Seal, index_entry
from penstock.guard.tiers.stores import NONE_PROTECTED, CheckpointStore, DiskStore, ProtectedSteps
from penstock.ledger.journal.events import (
    CheckpointDropped,
    CheckpointSaved,
    FastTierReady,
    JournalEvent,
    PeerCopyFailed,
    SaveFailed,
)
from penstock.meter.clock import now

BEAT_S = 0.5  # between signs of life while it waits


class EventSink(Protocol):
    """A journal, as far as a save needs it."""

    def write(self, event: JournalEvent) -> None: ...


class PulseSink(Protocol):
    """A pulse, as far as a save needs it."""

    def at(self, phase: str, step: int | None = None) -> None: ...
    def beat(self) -> None: ...
    def beside(self, phase: str, step: int) -> None: ...


@dataclass(frozen=True)
class SaveTiming:
    """Durations of the last saves, for the next decision about when to save."""

    stall_s: float = 0.0  # how long one held up the training
    seal_s: float = 0.0  # from the copy to the seal
    write_s: float = 0.0  # of a durable one, behind the training


@dataclass(frozen=True)
class _Save:
    step: int
    slot: Slot
    copying: PendingCopies
    scalars: dict[str, Any]
    problem: str  # why it could not be copied
    best: ProtectedSteps


@dataclass
class Saver:
    """Background saves of one rank."""

    fast: Path  # the fast tier's folder
    stores: Sequence[CheckpointStore]
    world: RankGroup
    journal: EventSink
    pulse: PulseSink
    keep: int
    identity: str  # identity: which run, of all that ever had this folder
    spill: Path | None = None  # where slots go when memory has no room for them
    group: Any = None  # gloo, for the threads behind the loop
    # Called behind the loop with a sealed slot's folder, this rank's files in it, and the step.
    on_sealed: Callable[[Path, list[str], int], None] | None = None
    threads: int = 1  # for hashing
    slots: int = SLOTS  # one is enough where every save is durable

    failed: str = ""  # why the last durable save did not succeed
    durable_step: int = 0  # of the last that did

    def __post_init__(self) -> None:
        self._slots: list[Slot] = []
        self._turn = 0
        self._mark = ""
        self._file_plan: FilePlan | None = None
        self._making: Future[None] | None = None
        self._behind = BackgroundGroup(self.world.rank, self.world.ranks, self.group)
        self._stream: Any = None
        self._copying: PendingCopies | None = None
        self._sealing: Future[tuple[FileTable, str]] | None = None
        self._unsealed: _Save | None = None  # could not be, and is tried again
        self._writing: Future[None] | None = None
        self._old: list[Path] = []
        self._sealer = ThreadPoolExecutor(1, "seal")
        self._writer = ThreadPoolExecutor(1, "write")
        self._host_s = self._seal_s = self._write_s = 0.0

    def prepare(self, state: dict[str, Tensor], resumed: MemoryCheckpoint | None = None) -> None:
        """Do once what every save needs: plan the files, begin to allocate slots. All ranks
        together.

        The slot that was `resumed` from stays until a newer one is whole; the rest of the tier is
        reused.
        """
        self._file_plan = plan_files(state, self.world)
        self._mark = self.world.broadcast(uuid.uuid4().hex)
        held = [local_part(tensor).device for tensor in state.values()]
        device = next((device for device in held if device.type == "cuda"), None)
        if device is not None:
            self._stream = torch.cuda.Stream(device)
        self._making = self._sealer.submit(self._make, self._file_plan, resumed, device)

    def _make(
        self, file_plan: FilePlan, resumed: MemoryCheckpoint | None, device: torch.device | None
    ) -> None:
        """Allocate and pin the slots, which takes seconds for a large state."""
        if device is not None:
            torch.cuda.set_device(device)  # a thread begins with the first
        roots = [self.fast] if self.spill is None else [self.fast, self.spill]
        made = allocate_slots(
            roots, self.slots, file_plan, self._behind, resumed, device is not None
        )
        self._slots, self._turn, self._old = made.slots, made.first, made.obsolete
        if self.world.rank == 0:
            self._record(FastTierReady(**made.summary))

    def wait_prepared(self) -> None:
        """Wait until saves can begin."""
        self._wait_for(self._making)
        if self._making:
            self._making.result()

    @property
    def fast_tier(self) -> bool:
        """Whether copies exist between durable saves. A single slot would overwrite the only
        copy."""
        return len(self._slots) > 1

    @property
    def busy(self) -> bool:
        """Whether a save now would have to wait for an earlier one, or overwrite the last whole
        copy."""
        if self._making is not None and not self._making.done():
            return True
        if self._sealing is None or not self._slots:
            return False
        if not self._sealing.done():
            return True
        if self._unsealed is not None:
            again, self._unsealed = self._unsealed, None
            again.slot.hold(1)
            self._sealing = self._sealer.submit(self._seal, again)
            return True
        return self._slots[self._turn].held

    @property
    def writing(self) -> bool:
        """Whether a durable save is in progress."""
        return self._writing is not None and not self._writing.done()

    @property
    def timing(self) -> SaveTiming:
        held_s = self._copying.held_s() if self._copying else 0.0
        return SaveTiming(self._host_s + held_s, self._seal_s, self._write_s)

    def stage(
        self,
        step: int,
        state: dict[str, Tensor],
        local_state: dict[str, Tensor],
        scalars: dict[str, Any],
        durable: bool,
        best: ProtectedSteps = NONE_PROTECTED,
    ) -> None:
        """Copy the state of `step` now; seal it, and publish it if `durable`, later.

        `best` are the checkpoints that rotation keeps.
        """
        start = now()
        self.wait_prepared()
        if not self._slots:
            self._fail(step, "memory", "neither memory nor disk has room for a copy of the state")
            return
        if self._sealing:
            self._sealing.result()
            self._unsealed = None
            while self._old:  # every rank has sealed a state since: that of the old layout can go
                remove_folder(self._old.pop())
        slot = self._slots[self._turn]
        slot.wait_free()
        slot.unseal()
        self.pulse.at("stage", step)
        ways: list[TensorCopy] = []
        problem = ""
        try:
            slot.recreate_if_deleted()
            ways = slot.files.copies(state, local_state)
        except OSError as error:  # no room for replica-local state, which may grow
            problem = f"{type(error).__name__}: {error}"
        self._copying = PendingCopies(ways, self._stream)
        save = _Save(step, slot, self._copying, scalars, problem, best)
        slot.hold(2 if durable else 1)
        self._turn = (self._turn + 1) % len(self._slots)
        self._sealing = self._sealer.submit(self._seal, save)
        if durable:
            self._writing = self._writer.submit(self._write, save, self._sealing)
        self._host_s = now() - start

    def before_update(self) -> None:
        """Make the device wait for pending copies, since the weights are about to change."""
        if self._copying is not None:
            self._copying.hold_device()

    def wait(self) -> None:
        """Wait until everything that was begun is safe, or has failed."""
        self.wait_sealed()
        self._wait_for(self._writing)

    def wait_sealed(self) -> None:
        """Wait until the last staged state is whole in memory, or has failed."""
        self._wait_for(self._sealing)

    def _wait_for(self, begun: Future[Any] | None) -> None:
        while begun and not begun.done():  # storage has patience of its own: this is no hang
            futures.wait([begun], BEAT_S)
            self.pulse.beat()

    def discard_after(self, after_step: int) -> None:
        """Discard the slots of later steps, after a rollback. All ranks together."""
        self.wait()
        for slot in self._slots:
            if slot.step is not None and slot.step > after_step:
                slot.unseal()
        # The newest of what is left is written over last.
        steps = [-1 if slot.step is None else slot.step for slot in self._slots]
        self._turn = steps.index(min(steps)) if steps else 0

    def close(self) -> None:
        """Wait for all saves and release the slots."""
        self._wait_for(self._making)
        self.wait()
        self._sealer.shutdown()
        self._writer.shutdown()
        for slot in self._slots:
            slot.files.close()
        self._slots = []

    def _seal(self, save: _Save) -> tuple[FileTable, str]:
        """Seal a slot; return size and hash of this rank's files, or why it could not be sealed."""
        if save.problem:
            self._fail(save.step, "memory", save.problem)
            save.slot.release()
            return {}, save.problem
        try:
            save.copying.wait()
            start = now()
            self.pulse.beside("seal", save.step)
            folder, names = save.slot.folder, save.slot.files.names
            files = {name: self._hashed(folder / name) for name in names}
            self._seal_of(save, files).write(folder)
            save.slot.step = save.step
            self._seal_s = now() - start
            self._pass_on(folder, names, save.step)
            return files, ""
        except Exception as error:  # in a thread: nobody else would hear of it
            why = f"{type(error).__name__}: {error}"
            # Files that are not there any more are made again by the next save.
            self._unsealed = None if isinstance(error, FileNotFoundError) else save
            self._fail(save.step, "memory", why)
            return {}, why
        finally:
            save.slot.release()

    def _hashed(self, path: Path) -> dict[str, Any]:
        return {"bytes": path.stat().st_size, "blake3": hash_file(path, self.threads)}

    def _seal_of(self, save: _Save, files: FileTable) -> Seal:
        assert self._file_plan is not None, "nothing is sealed before its files are planned"
        every = files | index_entry(self._file_plan.content)
        rank, ranks = self.world.rank, self.world.ranks
        return Seal(self.identity, self._mark, save.step, rank, ranks, every, save.scalars)

    def _pass_on(self, folder: Path, names: list[str], step: int) -> None:
        """Send a copy to a peer. If that fails, this host's copy is still good."""
        if self.on_sealed is None:
            return
        try:
            self.on_sealed(folder, names, step)
        except Exception as error:
            self._record(PeerCopyFailed(step=step, error=f"{type(error).__name__}: {error}"))

    def _write(self, save: _Save, sealing: Future[tuple[FileTable, str]]) -> None:
        """Publish a sealed slot in every store."""
        assert self._file_plan is not None, "nothing is written before its files are planned"
        (own, problem), start = sealing.result(), now()
        source, bad = save.slot.folder, ""
        shared = self._file_plan.shared_files(save.scalars)
        durable = DurableSave(
            save.step, own, problem, shared, self.keep, self._behind, self.pulse.beside, save.best
        )
        durable.about.update(manifest_fields(self.identity, save.scalars))
        for store in self.stores:
            try:
                began = now()
                where, manifest = durable.write(store, source)
                if where and self.world.rank == 0:
                    size = sum(self._file_plan.index.files.values())
                    self._record(
                        CheckpointSaved(
                            step=save.step,
                            tier=store.tier,
                            path=where,
                            bytes=size,
                            seconds=now() - began,
                            manifest=manifest,
                        )
                    )
                for step in durable.dropped:
                    self._record(CheckpointDropped(step=step, why="the disk is full"))
                durable.dropped.clear()
                self.durable_step = save.step
            except OSError as error:  # of this store, and known to all ranks
                bad = str(error)
                self._fail(save.step, store.tier, bad)
                continue
            except Exception as error:  # the ranks cannot meet any more: one of them is gone
                bad = f"{type(error).__name__}: {error}"
                self._fail(save.step, store.tier, bad)
                break
            if isinstance(store, DiskStore) and source == save.slot.folder:
                source = store.root / folder_name(save.step)  # for the stores that follow
                save.slot.release()
        if source == save.slot.folder:
            save.slot.release()
        self.failed, self._write_s = bad, now() - start

    def _fail(self, step: int, tier: str, why: str) -> None:
        self.failed = why
        if self.world.rank == 0:
            self._record(SaveFailed(step=step, tier=tier, error=why))

    def _record(self, event: JournalEvent) -> None:
        with contextlib.suppress(OSError):  # a full disk is the journal's, too
            self.journal.write(event)
