"""A run uses what is its own: by identity, by settings and by the journal, not by names."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from old_formats import as_format
from penstock.errors import RunFailed
from penstock.guard import checkpoints
from penstock.guard.checkpoints import search_of_run
from penstock.guard.format.manifest import MANIFEST
from penstock.guard.format.published import StoredCheckpoint, published_checkpoints
from penstock.guard.save.saver import Saver
from penstock.guard.tiers.identity import IDENTITY, IdentityCopies, decode_identity, encode_identity
from penstock.guard.tiers.journal_facts import recorded_manifests, recorded_step
from penstock.guard.tiers.locations import spill_folder
from penstock.guard.tiers.search import SearchResult, SingleProcess
from penstock.guard.tiers.slots import sealed_slots
from penstock.guard.tiers.stores import DiskStore
from penstock.ledger.journal.events import JournalEvent
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.run.diff import with_choices
from penstock.run.fingerprint import settings_fingerprint
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import to_table

MakeFile = Callable[..., Path]


class World(SingleProcess):
    """One rank that can save."""

    host_group: Any = None


class Run:
    """A run folder with its file, to save and to look into."""

    def __init__(self, path: Path) -> None:
        self.run = with_choices(load(path))
        self.folder = RunFolder(self.run.folder)
        self.folder.make()

    @property
    def identity(self) -> str:
        return search_of_run(self.folder, self.run, World()).identity

    def scalars(self, step: int) -> dict[str, Any]:
        table = json.loads(json.dumps(to_table(self.run)))
        return {
            "step": step,
            "settings": settings_fingerprint(self.run),
            "run": table,
            "layout": {"shard": 1},
        }

    def save(self, step: int, value: float | None = None) -> StoredCheckpoint:
        state = {"a": torch.full((4,), float(step if value is None else value))}
        folder, scalars = self.folder.checkpoints, self.scalars(step)
        return checkpoints.save(folder, step, state, {}, scalars, World(), self.identity)

    def told(self, attempt: int, kind: str, **payload: Any) -> None:
        with Journal(self.folder.journal, attempt, again=True) as journal:
            journal.event(kind, **payload)

    def look(self, deep: bool = True) -> SearchResult:
        looked = search_of_run(self.folder, self.run, World(), ranks=deep)
        return looked.newest_good() if deep else looked.expected()


@pytest.fixture
def own(run_file: MakeFile) -> Run:
    """A run with steps 4 and 8 on disk."""
    made = Run(run_file("own"))
    made.save(4)
    made.save(8)
    return made


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def step_of(found: SearchResult) -> int | None:
    return found.checkpoint.step if found.checkpoint else None


@pytest.mark.parametrize("deep", [True, False])
def test_what_it_saved_is_its_own(own: Run, deep: bool) -> None:
    found = own.look(deep)
    assert (step_of(found), found.rejected, found.notes) == (8, [], [])
    about = StoredCheckpoint(own.folder.checkpoints / "step-00000008").read_manifest()
    assert (about.step, about.run, about.settings) == (
        8,
        own.identity,
        settings_fingerprint(own.run),
    )
    assert about.layout == {"shard": 1}


# The manifest: every field is under its hash.

FIELDS = ["format", "step", "run", "settings", "layout", "origin", "files", "blake3", "whole"]


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("field", FIELDS)
def test_a_changed_field_of_the_manifest_is_damage(own: Run, field: str, deep: bool) -> None:
    path = own.folder.checkpoints / "step-00000008" / MANIFEST
    table = json.loads(path.read_text())
    value = table[field]
    other = {int: lambda: value ^ 1, str: lambda: value[:-1] + "!", dict: lambda: value | {"x": {}}}
    path.write_text(json.dumps(table | {field: other[type(value)]()}))
    found = own.look(deep)
    assert step_of(found) == 4
    assert "does not match its hash" in found.rejected[0]
    del table[field]
    if not deep:
        path.write_text(json.dumps(table))
        assert step_of(own.look(deep)) == 4


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_format_is_damage_and_not_another_version(own: Run, bit: int) -> None:
    path = own.folder.checkpoints / "step-00000008" / MANIFEST
    flip(path, path.read_bytes().index(b'"format": ') + len(b'"format": '), bit)
    found = own.look()
    assert step_of(found) == 4
    assert "format 2" not in str(found.rejected)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("deep", [True, False])
def test_a_checkpoint_that_is_really_of_an_older_format_is_refused(
    own: Run, number: int, deep: bool
) -> None:
    newest = own.folder.checkpoints / "step-00000008"
    as_format(newest, number)
    with pytest.raises(RunFailed, match=f"in format {number}, and this version of Penstock reads"):
        own.look(deep)
    assert newest.is_dir()
    own.save(9)  # nobody needs the old one
    assert step_of(own.look(deep)) == 9


def test_a_flipped_format_of_format_3_is_damage(own: Run) -> None:
    newest = own.folder.checkpoints / "step-00000008"
    as_format(newest, 3)
    assert step_of(own.look()) == 8
    text = (newest / MANIFEST).read_text()
    (newest / MANIFEST).write_text(text.replace('"format": 3', '"format": 2'))
    assert step_of(own.look()) == 4


# Names


@pytest.mark.parametrize("format_", [3, 4])
def test_a_renamed_folder_is_called_by_its_step_again(own: Run, format_: int) -> None:
    checkpoints = own.folder.checkpoints
    shutil.rmtree(checkpoints / "step-00000004")
    if format_ == 3:
        as_format(checkpoints / "step-00000008", 3)
    (checkpoints / "step-00000008").rename(checkpoints / "step-00000080")
    found = own.look(deep=False)
    assert step_of(found) == 8
    assert (checkpoints / "step-00000080").is_dir()  # the supervisor changes nothing
    found = own.look()
    assert step_of(found) == 8
    assert "step-00000080 is a checkpoint of step 8" in found.notes[0]
    assert [one.step for one in published_checkpoints(checkpoints)] == [8]
    assert own.look().notes == []


def test_a_copy_under_another_name_is_put_aside(own: Run) -> None:
    checkpoints = own.folder.checkpoints
    shutil.copytree(checkpoints / "step-00000008", checkpoints / "step-00000080")
    for deep in (False, True):
        found = own.look(deep)
        assert step_of(found) == 8
        assert "a checkpoint of step 8, under the name of step 80" in found.rejected[0]
    assert [one.step for one in published_checkpoints(checkpoints)] == [8, 4]


def test_a_wrong_name_that_is_damaged_too_is_damaged(own: Run) -> None:
    checkpoints = own.folder.checkpoints
    (checkpoints / "step-00000008").rename(checkpoints / "step-00000080")
    flip(checkpoints / "step-00000080" / "scalars.json", 3)
    assert step_of(own.look()) == 4


# Other runs


@pytest.mark.parametrize("deep", [True, False])
def test_one_of_another_run_is_passed_over_and_both_are_named(
    own: Run, run_file: MakeFile, deep: bool
) -> None:
    other = Run(run_file("other", **{"train.learning_rate": 0.5}))
    shutil.copytree(other.save(9).path, own.folder.checkpoints / "step-00000009")
    found = own.look(deep)
    assert step_of(found) == 8
    (said,) = found.rejected
    assert f"another run, 'other' ({other.identity[:8]}), and this is 'own' (" in said
    assert "train.learning_rate is 0.5 there" in said
    assert (own.folder.checkpoints / ".foreign-00000009").is_dir() == deep


def test_the_same_run_with_other_settings_is_passed_over(own: Run, run_file: MakeFile) -> None:
    own.run = with_choices(load(run_file("own", **{"train.clip": 0.25})))
    with pytest.raises(RunFailed, match=r"made with other settings: train\.clip is 1\.0 there"):
        own.look()
    own.save(9)
    assert step_of(own.look()) == 9


def test_a_longer_run_and_other_safe_changes_are_the_same_run(own: Run, run_file: MakeFile) -> None:
    before = settings_fingerprint(own.run)
    changes = {"train.steps": 99, "guard.keep": 7, "evaluate.every": "7 steps", "layout.shard": 1}
    own.run = with_choices(load(run_file("own", **changes)))
    assert settings_fingerprint(own.run) == before
    assert step_of(own.look()) == 8


def test_a_backup_of_a_step_that_was_taken_back_is_not_believed(own: Run) -> None:
    def saved(found: StoredCheckpoint, attempt: int) -> None:
        manifest = found.read_manifest().digest
        own.told(attempt, "saved", step=found.step, tier="disk", manifest=manifest)

    for number in (4, 8):
        saved(StoredCheckpoint(own.folder.checkpoints / f"step-{number:08d}"), 0)
    backup = own.folder.path / "backup"
    (own.folder.checkpoints / "step-00000008").rename(backup)
    own.told(1, "taken_back", after_step=6, left=[4])
    saved(own.save(8, value=0.5), 1)
    assert step_of(own.look()) == 8
    shutil.rmtree(own.folder.checkpoints / "step-00000008")
    backup.rename(own.folder.checkpoints / "step-00000008")
    found = own.look()
    assert step_of(found) == 4
    assert "not the checkpoint of step 8 that the journal recorded" in found.rejected[0]


def test_what_is_made_again_is_not_held_to_the_record_of_the_first_time(own: Run) -> None:
    own.told(0, "saved", step=8, tier="disk", manifest="0" * 64)
    assert step_of(own.look()) == 4
    own.save(8, value=0.5)
    own.told(1, "resumed", step=4, tier="disk")  # killed between the rename and its line
    assert recorded_manifests(own.folder) == {}
    assert step_of(own.look()) == 8


def test_the_record_of_an_adoption_comes_after_all_before_it(own: Run) -> None:
    own.told(0, "saved", step=8, tier="disk", manifest="a")
    own.told(1, "saved", step=10, tier="disk", manifest="b")
    journal = SupervisorJournal(own.folder.journal, clock=lambda: 5.0)
    journal.event("adopted", step=9, manifest="c", next_attempt=2)
    journal.close()
    assert recorded_manifests(own.folder) == {8: "a", 9: "c"}
    assert recorded_step(own.folder) == 9
    own.told(2, "saved", step=12, tier="disk", manifest="d")
    assert recorded_step(own.folder) == 12


# Identity


@pytest.mark.parametrize("at", [0, 5, 31, 34])
@pytest.mark.parametrize("bit", [0, 7])
@pytest.mark.parametrize("where", ["folder", "checkpoints", "both"])
def test_a_flipped_identity_is_told_and_written_again(
    own: Run, at: int, bit: int, where: str
) -> None:
    known = own.identity
    homes = {"folder": [own.folder.path], "checkpoints": [own.folder.checkpoints]}
    homes["both"] = homes["folder"] + homes["checkpoints"]
    for home in homes[where]:
        flip(home / IDENTITY, at, bit)
    for deep in (False, True):
        found = own.look(deep)
        assert step_of(found) == 8
        assert [words for words in found.notes if "it is written again" in words]
    assert own.look().notes == []
    for home in homes["both"]:
        assert decode_identity((home / IDENTITY).read_bytes()) == known
    assert (homes[where][0] / "identity.bad-1").is_file()


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff" * 40, b"0" * 31, b"g" * 32, b"{}"])
def test_an_odd_identity_is_none(own: Run, content: bytes) -> None:
    known = own.identity
    for home in (own.folder.path, own.folder.checkpoints):
        (home / IDENTITY).write_bytes(content)
    assert own.identity == known  # by the checkpoints
    assert step_of(own.look()) == 8


def test_an_identity_of_before_has_no_checksum(tmp_path: Path) -> None:
    (tmp_path / IDENTITY).write_text("ab" * 16)
    assert IdentityCopies([DiskStore(tmp_path)]).read_or_create() == "ab" * 16
    assert decode_identity(encode_identity("ab" * 16)) == "ab" * 16


def test_a_deleted_identity_is_remembered_by_the_checkpoints(own: Run, run_file: MakeFile) -> None:
    known = own.identity
    other = Run(run_file("other", **{"train.seed": 9}))
    shutil.copytree(other.save(9).path, own.folder.checkpoints / "step-00000009")
    (own.folder.path / IDENTITY).unlink()
    (own.folder.checkpoints / IDENTITY).unlink()
    assert own.identity == known  # not the stranger's, which has other settings
    assert step_of(own.look()) == 8


@pytest.mark.parametrize("deep", [True, False])
def test_a_run_that_has_saved_nothing_takes_no_identity_from_a_checkpoint(
    run_file: MakeFile, deep: bool
) -> None:
    """It was cut off before its first save, and somebody put a checkpoint into its folder."""
    cut, other = Run(run_file("cut")), Run(run_file("other"))
    assert settings_fingerprint(cut.run) == settings_fingerprint(other.run)
    place = cut.folder.checkpoints / "step-00000009"
    shutil.copytree(other.save(9).path, place)
    cut.told(0, "start")
    with pytest.raises(RunFailed, match=r"step-00000009: a checkpoint of another run, 'other'"):
        cut.look(deep)
    assert place.is_dir()
    if deep:
        assert cut.identity != other.identity
    shutil.rmtree(place)
    assert step_of(cut.look(deep)) is None


@pytest.mark.parametrize("journal", ["deleted", "of supervisor", "of fork", "of save"])
def test_a_run_that_may_have_saved_takes_its_identity_from_a_checkpoint(
    own: Run, journal: str
) -> None:
    known = own.identity
    (own.folder.path / IDENTITY).unlink()
    (own.folder.checkpoints / IDENTITY).unlink()
    if journal == "of supervisor":
        written = SupervisorJournal(own.folder.journal)
        written.event("adopted", step=8, manifest="c", next_attempt=0)
        written.close()
    elif journal == "of fork":
        own.told(0, "start")
        own.folder.write_plan({"forked_from": {"run": "other", "step": 4}})
    elif journal == "of save":
        own.told(0, "saved", step=4, tier="disk")
    assert own.identity == known


def test_the_identity_of_a_recorded_checkpoint_comes_before_that_of_a_newer_one(
    own: Run, run_file: MakeFile
) -> None:
    known, other = own.identity, Run(run_file("other"))
    saved = StoredCheckpoint(own.folder.checkpoints / "step-00000008").read_manifest().digest
    own.told(0, "saved", step=8, tier="disk", manifest=saved)
    shutil.copytree(other.save(9).path, own.folder.checkpoints / "step-00000009")
    (own.folder.path / IDENTITY).unlink()
    (own.folder.checkpoints / IDENTITY).unlink()
    assert own.identity == known
    found = own.look()
    assert step_of(found) == 8
    assert "another run, 'other'" in found.rejected[0]


def test_a_place_that_another_run_began_is_told(own: Run, tmp_path: Path) -> None:
    far = tmp_path / "far"
    guard = own.run.guard.model_copy(update={"durable": str(far)})
    own.run = own.run.model_copy(update={"guard": guard})
    (far / "own").mkdir(parents=True)
    (far / "own" / IDENTITY).write_bytes(encode_identity("12" * 16))
    found = own.look()
    assert step_of(found) == 8
    assert [words for words in found.notes if "begun by another run of this name" in words]


# Memory


class Told:
    """A journal and a pulse that keep quiet."""

    def write(self, event: JournalEvent) -> None: ...
    def at(self, phase: str, step: int | None = None) -> None: ...
    def beat(self) -> None: ...
    def beside(self, phase: str, step: int) -> None: ...


def test_a_flipped_seal_is_told(own: Run) -> None:
    spilled = spill_folder(own.folder)  # the same as in memory, and searched by all
    saver = Saver(spilled, [], World(), Told(), Told(), 3, own.identity)
    saver.prepare({"a": torch.zeros(4)})
    for number in (20, 21):
        saver.stage(number, {"a": torch.ones(4)}, {}, own.scalars(number), durable=False)
        saver.wait()
    saver.close()
    assert (step_of(own.look()), own.look().rejected) == (21, [])
    newest = sealed_slots(spilled, own.identity)[0].path
    flip(newest / "seal-r00000.json", 200)
    for deep in (False, True):
        found = own.look(deep)
        assert step_of(found) == 20
        assert found.rejected == [
            f"{newest.name} in memory: seal-r00000.json: content does not match its hash"
        ]
    (newest / "seal-r00000.json").unlink()  # as it is while a slot is written over
    assert own.look().rejected == []


@pytest.mark.parametrize("there", ["foreign", "misnamed", "torn", "own"])
def test_what_has_the_name_of_a_save_does_not_stand_for_it(
    own: Run, run_file: MakeFile, there: str
) -> None:
    """It came while the run was at work, after its search."""
    place = own.folder.checkpoints
    other = Run(run_file("other", **{"train.seed": 9})).save(9).path
    source = {"foreign": other, "own": own.save(9).path}.get(there, place / "step-00000004")
    if there != "own":
        shutil.rmtree(place / "step-00000009")
        shutil.copytree(source, place / "step-00000009")
    if there == "torn":
        (place / "step-00000009" / MANIFEST).write_bytes(b"{")
    saver = Saver(
        spill_folder(own.folder), [DiskStore(place)], World(), Told(), Told(), 3, own.identity
    )
    saver.prepare({"a": torch.zeros(4)})
    saver.stage(9, {"a": torch.full((4,), 0.5)}, {}, own.scalars(9), durable=True)
    saver.wait()
    saver.close()
    assert saver.failed == ""
    newest = published_checkpoints(place)[0]
    assert (newest.step, newest.find_damage(), newest.read_manifest().run) == (9, [], own.identity)
    held = {"a": torch.zeros(4)}
    checkpoints.load(newest, held, None)
    assert held["a"].tolist() == [9.0 if there == "own" else 0.5] * 4
    assert (place / ".foreign-00000009").is_dir() == (there != "own")
