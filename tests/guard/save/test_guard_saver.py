"""Saves behind the loop: what is staged is sealed and published as it was, whatever fails."""

import random
import shutil
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import real_ranks
from one_rank import Alone
from penstock.guard import checkpoints
from penstock.guard.format.published import StoredCheckpoint, published_checkpoints
from penstock.guard.save import fast_tier
from penstock.guard.save.saver import Saver
from penstock.guard.tiers import free_space
from penstock.guard.tiers.identity import run_identity
from penstock.guard.tiers.search import CheckpointSearch, SearchResult
from penstock.guard.tiers.slots import MemoryCheckpoint, sealed_slots
from penstock.guard.tiers.stores import DiskStore
from penstock.ledger.journal.events import JournalEvent


class Told:
    """A journal that remembers, and a pulse that can do something at a place."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.traps: dict[str, Any] = {}

    def write(self, event: JournalEvent) -> None:
        self.events.append((event.kind, event.to_payload()))

    def at(self, phase: str, step: int | None = None) -> None:
        self.beside(phase, step or 0)

    def beat(self) -> None: ...

    def beside(self, phase: str, step: int) -> None:
        if phase in self.traps:
            self.traps[phase](step)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [payload for found, payload in self.events if found == kind]


class Training:
    """A state that changes with every step, and a saver for it."""

    def __init__(self, home: Path, **options: Any) -> None:
        self.home, self.told = home, Told()
        self.disk = DiskStore(home / "checkpoints")
        self.run = run_identity(self.disk, Alone())
        places = options.pop("places", [self.disk])
        self.saver = Saver(
            home / "fast-0", places, Alone(), self.told, self.told, 3, self.run, **options
        )
        self.weights = {"model/a": torch.zeros(5, 7), "optimizer/a/m": torch.zeros(3)}
        self.local: dict[str, Tensor] = {"residual.0": torch.zeros(4)}

    def step(self, step: int) -> None:
        for tensor in (*self.weights.values(), *self.local.values()):
            tensor.fill_(float(step))

    def prepare(self, resumed: MemoryCheckpoint | None = None) -> "Training":
        self.saver.prepare(self.weights, resumed)
        self.saver.wait_prepared()
        return self

    def save(self, step: int, durable: bool = False, wait: bool = True) -> None:
        self.step(step)
        self.saver.stage(step, self.weights, self.local, {"step": step}, durable)
        self.step(-1)  # weights change at once: what was staged must not
        if wait:
            self.saver.wait()

    def look(self, before_step: int | None = None) -> SearchResult:
        fast = [self.home / "fast-0", self.home / "spill"]
        places = self.saver.stores
        return CheckpointSearch(fast, places, self.disk.root, self.run, Alone()).newest_good(
            before_step
        )

    def found(self) -> StoredCheckpoint:
        found = self.look().checkpoint
        assert found is not None
        return found


def holds(found: StoredCheckpoint, step: int) -> bool:
    """Whether a checkpoint has the state of a step, in every part."""
    state = {"model/a": torch.empty(5, 7), "optimizer/a/m": torch.empty(3)}
    checkpoints.load(found, state, None)
    local = checkpoints.load_local(found, 0)
    parts = (*state.values(), *local.values())
    return found.step == found.scalars["step"] == step and all(
        bool((part == step).all()) for part in parts
    )


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path).prepare()


def test_a_fast_save_is_in_memory_alone(training: Training) -> None:
    training.save(5)
    assert holds(training.found(), 5)
    assert training.found().tier == "memory"
    assert training.disk.steps() == []
    assert training.saver.fast_tier


def test_a_durable_save_is_on_disk_too_and_told(training: Training) -> None:
    training.save(5, durable=True)
    (on_disk,) = published_checkpoints(training.disk.root)
    assert on_disk.find_damage() == []
    assert holds(on_disk, 5)
    assert holds(training.found(), 5)
    assert (training.saver.failed, training.saver.durable_step) == ("", 5)
    (told,) = training.told.of("saved")
    assert (told["step"], told["tier"], told["path"]) == (5, "disk", str(on_disk.path))


def test_the_two_slots_are_written_in_turn(training: Training) -> None:
    for step in range(1, 8):
        training.save(step)
        steps = [slot.step for slot in sealed_slots(training.saver.fast)]
        assert steps == [step, step - 1][: min(step, 2)]
        assert holds(training.found(), step)


@pytest.mark.parametrize("when", ["between saves", "while it is sealed"])
def test_shared_memory_that_is_cleared_is_made_again(training: Training, when: str) -> None:
    training.save(1)

    def clear(step: int) -> None:
        shutil.rmtree(training.saver.fast, ignore_errors=True)

    if when == "between saves":
        clear(0)
    else:
        training.told.traps["seal"] = clear
        training.save(2)
        assert "FileNotFoundError" in training.saver.failed
        training.told.traps = {}
        assert not training.saver.busy
    for step in (3, 4):
        training.save(step, durable=step == 4)
        assert holds(training.found(), step)
    assert [found.step for found in sealed_slots(training.saver.fast)] == [4, 3]
    assert training.disk.steps() == [4]


def test_a_slot_without_a_seal_is_nothing_and_the_other_is_good(training: Training) -> None:
    """Killed while staging: the seal went first."""
    for step in (1, 2):
        training.save(step)

    def killed(_: int) -> None:
        raise KeyboardInterrupt

    training.told.traps["stage"] = killed
    with pytest.raises(KeyboardInterrupt):
        training.save(3)
    assert holds(training.found(), 2)


@pytest.mark.parametrize("phase", ["seal", "write", "publish"])
def test_killed_before_the_seal_or_the_rename_the_older_one_counts(
    training: Training, phase: str
) -> None:
    training.save(1, durable=True)
    training.told.traps = {phase: _raise}
    training.save(2, durable=True)
    assert holds(training.found(), 1 if phase == "seal" else 2)  # in memory it is whole already
    assert training.disk.steps() == [1]
    assert "trap" in training.saver.failed
    assert training.told.of("save_failed")
    training.told.traps = {}
    training.save(3, durable=True)
    assert training.saver.failed == ""
    assert training.disk.steps() == [3, 1]
    assert sorted(p.name for p in training.disk.root.glob(".writing-*")) == []


def test_what_could_not_be_sealed_is_tried_again_before_anything_is_staged(
    training: Training,
) -> None:
    training.save(1)
    training.told.traps = {"seal": _raise}
    training.save(2)
    assert holds(training.found(), 1)
    assert training.saver.busy
    training.told.traps = {}
    while training.saver.busy:
        training.saver.wait()
    assert holds(training.found(), 2)
    assert [slot.step for slot in sealed_slots(training.saver.fast)] == [2, 1]


def _raise(step: int) -> None:
    raise RuntimeError("trap")


def test_it_is_busy_until_the_seal_and_stages_no_earlier(training: Training) -> None:
    go_on = threading.Event()
    training.told.traps["seal"] = lambda step: go_on.wait(30)
    assert not training.saver.busy
    training.save(1, wait=False)
    assert training.saver.busy
    go_on.set()
    training.saver.wait()
    assert not training.saver.busy


def test_a_slot_that_is_being_written_to_disk_is_not_staged_over(training: Training) -> None:
    go_on = threading.Event()
    training.told.traps["write"] = lambda step: go_on.wait(30)
    training.save(1, durable=True, wait=False)
    training.save(2, wait=False)  # into the other slot
    while training.saver._sealing and not training.saver._sealing.done():
        pass
    assert training.saver.busy  # the next one is the first again, which is held
    assert training.saver.writing
    late = threading.Thread(target=training.save, args=(3,))
    late.start()
    go_on.set()
    late.join()
    assert holds(published_checkpoints(training.disk.root)[0], 1)
    assert holds(training.found(), 3)


def test_damage_in_memory_is_noticed_and_the_older_slot_taken(training: Training) -> None:
    for step in (1, 2):
        training.save(step)
    newest = training.found()
    path = newest.path / "state/__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    looked = training.look()
    assert looked.checkpoint is not None
    assert holds(looked.checkpoint, 1)
    assert looked.rejected == [
        "step 2 in memory: state/__0_0.distcp: content does not match its hash"
    ]
    assert training.look().rejected == []


def test_memory_that_is_gone_leaves_the_disk(training: Training) -> None:
    training.save(4, durable=True)
    training.save(6)
    shutil.rmtree(training.saver.fast)
    assert holds(training.found(), 4)
    assert training.found().tier == "disk"


def test_the_same_step_is_taken_from_memory(training: Training) -> None:
    training.save(4, durable=True)
    assert training.found().tier == "memory"


def test_memory_of_an_earlier_run_of_that_name_is_not_believed(tmp_path: Path) -> None:
    training = Training(tmp_path).prepare()
    training.save(4)
    shutil.rmtree(training.disk.root)  # begun afresh
    assert Training(tmp_path).look().checkpoint is None


def test_a_restart_keeps_what_it_resumed_from_until_there_is_more(tmp_path: Path) -> None:
    first = Training(tmp_path).prepare()
    for step in (1, 2):
        first.save(step)
    second = Training(tmp_path)
    resumed = second.found()
    assert isinstance(resumed, MemoryCheckpoint)
    second.prepare(resumed)
    assert holds(second.found(), 2)
    assert [slot.step for slot in sealed_slots(second.saver.fast)] == [
        2
    ]  # nobody goes on from step 1
    second.told.traps["seal"] = _raise
    second.save(3)
    assert holds(second.found(), 2)
    second.told.traps.clear()
    second.save(4)
    second.save(5)
    assert holds(second.found(), 5)


def test_another_layout_has_slots_of_its_own_and_the_old_ones_go(tmp_path: Path) -> None:
    first = Training(tmp_path).prepare()
    first.save(2)
    second = Training(tmp_path)
    resumed = second.found()
    assert isinstance(resumed, MemoryCheckpoint)
    second.weights["model/b"] = torch.zeros(2)
    second.prepare(resumed)
    assert holds(second.found(), 2)
    second.save(3)
    assert second.found().step == 3
    assert resumed.path.exists()
    second.save(4)
    assert not resumed.path.exists()
    assert [slot.step for slot in sealed_slots(second.saver.fast)] == [4, 3]


def test_seals_of_two_attempts_make_no_checkpoint(training: Training) -> None:
    training.save(2)
    (slot,) = sealed_slots(training.saver.fast)
    other = dict(vars(slot.seals[0]))
    fake = type(slot.seals[0])(**(other | {"ranks": 2}))
    fake.write(slot.path)
    type(fake)(**(other | {"ranks": 2, "rank": 1, "mark": "other"})).write(slot.path)
    assert sealed_slots(training.saver.fast) == []
    type(fake)(**(other | {"ranks": 2, "rank": 1})).write(slot.path)
    assert [found.step for found in sealed_slots(training.saver.fast)] == [2]


def test_steps_that_were_taken_back_are_gone_everywhere(training: Training) -> None:
    training.save(2, durable=True)
    training.save(4, durable=True)
    training.save(6)
    training.saver.discard_after(3)
    tiers = CheckpointSearch(
        [training.saver.fast], [training.disk], training.disk.root, "r", Alone()
    )
    assert tiers.discard_after(3) == []
    assert holds(training.found(), 2)
    training.save(4, durable=True)  # again, and otherwise
    assert holds(training.found(), 4)
    assert training.disk.steps() == [4, 2]


def test_rollback_looks_before_a_step(training: Training) -> None:
    for step in (2, 4, 6):
        training.save(step, durable=True)
    found = training.look(before_step=4).checkpoint
    assert found is not None
    assert holds(found, 2)


class Broken(DiskStore):
    """A disk that is full, or cannot be read."""

    def put(self, step: int, name: str, source: Path | bytes) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk_stops_nobody_and_leaves_nothing_behind(tmp_path: Path) -> None:
    training = Training(tmp_path, places=[Broken(tmp_path / "checkpoints")]).prepare()
    training.save(2, durable=True)
    assert "No space left" in training.saver.failed
    assert training.saver.durable_step == 0
    (told,) = training.told.of("save_failed")
    assert (told["step"], told["tier"]) == (2, "disk")
    assert holds(training.found(), 2)
    assert not list(training.disk.root.glob(".writing-*"))


class Tight(DiskStore):
    """A disk with room for so many checkpoints and no more."""

    room: ClassVar[int] = 3

    def put(self, step: int, name: str, source: Path | bytes) -> None:
        if len(self.steps()) >= self.room:
            raise OSError(28, "No space left on device")
        super().put(step, name, source)


@pytest.mark.parametrize("room", [3, 2])
def test_a_disk_with_room_for_what_is_there_gives_up_its_oldest(tmp_path: Path, room: int) -> None:
    disk = type("Room", (Tight,), {"room": room})(tmp_path / "checkpoints")
    training = Training(tmp_path, places=[disk]).prepare()
    for step in range(1, 6):
        training.save(step, durable=True)
        assert training.saver.failed == ""
        assert training.saver.durable_step == step
    assert disk.steps() == [5, 4, 3][:room]
    dropped = [told["step"] for told in training.told.of("checkpoint_dropped")]
    assert dropped == list(range(1, 6 - room))
    assert not training.told.of("save_failed")


def test_the_last_checkpoint_is_never_given_up(tmp_path: Path) -> None:
    disk = type("Room", (Tight,), {"room": 1})(tmp_path / "checkpoints")
    training = Training(tmp_path, places=[disk]).prepare()
    training.save(1, durable=True)
    training.save(2, durable=True)
    assert disk.steps() == [1]
    assert "No space left" in training.saver.failed


def test_a_second_place_gets_it_when_the_first_cannot(tmp_path: Path) -> None:
    second = DiskStore(tmp_path / "elsewhere")
    training = Training(tmp_path, places=[Broken(tmp_path / "checkpoints"), second]).prepare()
    training.save(2, durable=True)
    assert holds(published_checkpoints(second.root)[0], 2)
    assert training.saver.durable_step == 2
    assert "No space left" in training.saver.failed


def test_the_second_place_is_written_from_the_first_and_the_slot_is_free(tmp_path: Path) -> None:
    second = DiskStore(tmp_path / "elsewhere")
    training = Training(tmp_path, places=[DiskStore(tmp_path / "checkpoints"), second]).prepare()
    for step in (1, 2, 3, 4, 5):
        training.save(step, durable=True)
    assert training.disk.steps() == second.steps() == [5, 4, 3]
    assert holds(published_checkpoints(second.root)[0], 5)
    shutil.rmtree(training.saver.fast)
    shutil.rmtree(training.disk.root)
    assert training.look().checkpoint is None or holds(training.found(), 5)


def test_what_a_peer_is_sent_may_fail(training: Training) -> None:
    sent: list[tuple[Path, list[str], int]] = []
    training.saver.on_sealed = lambda *what: sent.append(what)
    training.save(2)
    (slot,) = sealed_slots(training.saver.fast)
    files = ["state/__0_0.distcp", "local-r00000.safetensors"]
    assert sent == [(slot.path, files, 2)]

    def fails(*_: object) -> None:
        raise OSError("no peer")

    training.saver.on_sealed = fails
    training.save(3)
    assert holds(training.found(), 3)
    assert training.told.of("copy_failed")[0]["step"] == 3


def test_replica_local_state_that_finds_no_room_stops_nobody(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.save(1, durable=True)
    training.save(2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.guard.save.staging.MappedFile", full)
        training.local = {"residual.0": torch.zeros(1000)}
        training.save(3, durable=True)
        assert "No space left" in training.saver.failed
        assert holds(training.found(), 2)
    training.save(4, durable=True)
    assert training.saver.failed == ""
    assert holds(training.found(), 4)


def room_of(monkeypatch: pytest.MonkeyPatch, **free: int) -> None:
    """As many bytes as said in folders of these names."""
    monkeypatch.setattr(
        fast_tier, "free_bytes", lambda folder: free["spill" if folder.name == "spill" else "fast"]
    )


@pytest.mark.parametrize(
    ("fast", "spill", "slots", "where"),
    [(10**6, 10**6, 2, "fast-0"), (0, 10**6, 2, "spill"), (4000, 0, 1, "fast-0"), (0, 0, 0, "")],
)
def test_slots_go_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: int, spill: int, slots: int, where: str
) -> None:
    room_of(monkeypatch, fast=fast, spill=spill)
    training = Training(tmp_path, spill=tmp_path / "spill").prepare()
    (told,) = training.told.of("fast_tier")
    assert told["slots"] == slots
    assert training.saver.fast_tier == (slots == 2)
    training.save(1, durable=True)
    if slots:
        assert training.disk.steps() == [1]
        assert where in str(training.found().path)
    else:
        assert "room" in training.saver.failed
        assert training.look().checkpoint is None


def test_room_in_memory_is_what_is_left_of_it() -> None:
    assert free_space.free_bytes(Path("/proc/self")) >= 0
    if free_space.is_memory_backed(Path("/dev/shm")):
        assert 0 < free_space.free_bytes(Path("/dev/shm")) < 1 << 50
    assert not free_space.is_memory_backed(Path("/proc"))


@given(st.lists(st.sampled_from("fdxsk"), max_size=12))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_happens_the_newest_that_was_safe_is_found(
    tmp_path_factory: pytest.TempPathFactory, story: list[str]
) -> None:
    """f: fast save, d: durable save, x: a save that dies before its seal, s: restart, k: memory
    is lost."""
    home = tmp_path_factory.mktemp("story")
    training, safe, durable = Training(home).prepare(), 0, 0
    for step, what in enumerate(story, start=1):
        if what in "fd":
            training.save(step, durable=what == "d")
            safe, durable = step, step if what == "d" else durable
        elif what == "x":
            training.told.traps["seal"] = _raise
            training.save(step)
            training.told.traps.clear()
        elif what == "s":
            training = Training(home)
            found = training.look().checkpoint
            training.prepare(found if isinstance(found, MemoryCheckpoint) else None)
        else:
            training.saver.close()
            shutil.rmtree(home / "fast-0")
            training, safe = Training(home).prepare(), durable
        found = training.look().checkpoint
        reached = found.step if found else 0
        assert reached >= durable
        if what != "x" and "x" not in story:
            assert reached == safe
        if found:
            assert holds(found, reached)


def save_for_ever(home: str, told: Any) -> None:
    """In a process of its own: goes on from what is there, and saves until it is killed."""
    training = Training(Path(home))
    found = training.look().checkpoint
    training.prepare(found if isinstance(found, MemoryCheckpoint) else None)
    step = found.step if found else 0
    while True:
        told.send(step)
        step += 1
        training.save(step, durable=step % 3 == 0, wait=False)


def test_a_process_that_is_killed_anywhere_leaves_a_good_one(tmp_path: Path) -> None:
    """Real kills at random moments of staging, sealing, copying and publishing."""
    numbers, reached = random.Random(7), 0
    for _ in range(5):
        here, there = real_ranks.CONTEXT.Pipe(duplex=False)
        process = real_ranks.CONTEXT.Process(target=save_for_ever, args=(str(tmp_path), there))
        process.start()
        there.close()
        seen = [here.recv() for _ in range(1 + numbers.randrange(25))]
        process.kill()
        process.join()
        while here.poll():
            try:
                seen.append(here.recv())
            except EOFError:
                break
        assert seen[0] >= reached  # it went on from what was found before
        looked = Training(tmp_path).look()
        assert looked.rejected == []
        if looked.checkpoint is None:
            assert seen[-1] < 3
            continue
        reached = looked.checkpoint.step
        assert holds(looked.checkpoint, reached)
        assert reached >= seen[-1] - 1  # staging waits for the seal before
    assert reached > 0
