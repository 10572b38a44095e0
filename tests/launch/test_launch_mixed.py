"""Real runs whose records were renamed, swapped, copied in, torn or deleted.

Each ends with the weights of the run that nothing happened to and with every sample used once, or
is refused in words.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from old_formats import as_format
from penstock.drill import audit
from penstock.errors import PenstockError, RunFailed
from penstock.guard.format.manifest import MANIFEST
from penstock.guard.format.published import StoredCheckpoint, published_checkpoints
from penstock.launch.prepare.adopt import adopt
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.resume import decide_resume
from penstock.launch.start import start
from penstock.launch.supervisor.preload import PreloadClient
from penstock.launch.verify import verify
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.train.export.generate import generate_text
from penstock.train.export.model import choose_checkpoint
from penstock.watch.report.screen import summary

MakeFile = Callable[..., Path]
CutOff = Callable[[Path], RunFolder]
STEPS, BATCH = 12, 8
FIELDS = {
    "train.steps": STEPS,
    "cluster.accelerators": 1,
    "evaluate.every": "never",
    "guard.fast": "never",
    "guard.checkpoint": "3 steps",
    "guard.keep": 4,
}


class Warnings(Listener):
    """What is told before the launch."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def warning(self, words: str) -> None:
        self.words.append(words)


def told(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    files = sorted(journal_files(folder.journal, "events"), key=lambda file: file.attempt)
    paths = [*(file.path for file in files), folder.journal / "supervisor.events"]
    events = [event for path in paths for event in read_events(path)]
    return [event.payload for event in events if event.kind == kind]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tiny: str, warm: PreloadClient) -> RunFolder:
    """The run that nothing happens to, with steps 3, 6, 9 and 12 on disk."""
    folder = tmp_path_factory.mktemp("done")
    path = folder / "own.toml"
    path.write_text(
        f'name = "own"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 32\nheads = 4\n'
        f'kv_heads = 2\nffn = 64\ntied = true\n[data]\ndataset = "{tiny}"\nsequence = 16\n'
        '[train]\nprecision = "fp32"\nsteps = 12\nbatch_tokens = 128\n'
        '[evaluate]\nevery = "never"\n[guard]\ncheckpoint = "3 steps"\nfast = "never"\nkeep = 4\n'
        "[cluster]\naccelerators = 1\n"
    )
    RunFolder(load(path).folder).audit.mkdir(parents=True)
    return start(load(path))


@pytest.fixture
def cut_off(done: RunFolder) -> Callable[[Path], RunFolder]:
    """cut_off(file): a copy of that run as a power cut at step 11 leaves it."""

    def make(path: Path) -> RunFolder:
        folder = RunFolder(load(path).folder)
        shutil.copytree(done.path, folder.path)
        shutil.rmtree(step(folder, 12))
        journal = SupervisorJournal(folder.journal)
        journal.event("invocation", ranks=1, machine="one that was cut off")
        journal.close()
        return folder

    return make


def resumed(folder: RunFolder) -> list[Any]:
    """The steps that attempts went on from, in order."""
    return [one["step"] for one in told(folder, "resumed")]


def step(folder: RunFolder, number: int) -> Path:
    return folder.checkpoints / f"step-{number:08d}"


def is_exact(folder: RunFolder, done: RunFolder) -> bool:
    """Equal weights, and every sample once."""
    samples = audit.count_samples(audit.final_uses(audit.read(folder.audit)), STEPS, BATCH)
    assert samples == audit.SampleCounts(lost=0, doubled=0)
    report = summary(folder)
    assert report["status"] == "done"
    return report["weights_hash"] == summary(done)["weights_hash"]


# A checkpoint is what its manifest says, whatever its folder is called.


@pytest.mark.parametrize("alone", [False, True])
def test_a_renamed_checkpoint_is_what_it_is(
    alone: bool, run_file: MakeFile, cut_off: CutOff, done: RunFolder
) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    shutil.rmtree(step(folder, 9))
    step(folder, 6).rename(step(folder, 9))
    if alone:
        shutil.rmtree(step(folder, 3))
    how = decide_resume(folder, load(path))
    assert (how.step, how.tier) == (6, "disk")
    listener = Warnings()
    start(load(path), listener=listener)
    words = "step-00000009 is a checkpoint of step 6 by its manifest: it is called step-00000006"
    assert any(words in said for said in listener.words)
    assert any(words in str(one["words"]) for one in told(folder, "record_mended"))
    assert resumed(folder)[-1] == 6
    assert is_exact(folder, done)


def test_two_swapped_checkpoints_and_a_copy_under_another_name(
    run_file: MakeFile, cut_off: CutOff, done: RunFolder
) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    step(folder, 9).rename(folder.path / "nine")
    step(folder, 6).rename(step(folder, 9))
    (folder.path / "nine").rename(step(folder, 6))
    shutil.copytree(step(folder, 3), step(folder, 12))  # of the last step: it would be "saved"
    start(load(path))
    assert resumed(folder)[-1] == 3  # both names are taken, so neither is believed
    said = [str(one["problem"]) for one in told(folder, "checkpoint_rejected")]
    assert any("a checkpoint of step 6, under the name of step 9" in words for words in said)
    assert any("a checkpoint of step 3, under the name of step 12" in words for words in said)
    assert is_exact(folder, done)
    assert [
        one.step for one in published_checkpoints(folder.checkpoints) if not one.find_damage()
    ] == [
        12,
        9,
        6,
        3,
    ]


# A checkpoint of another run is passed over.

OTHERS: dict[str, dict[str, Any]] = {
    "rate": {"train.learning_rate": 1e-4},
    "clip": {"train.clip": 0.1},
    "decay": {"train.weight_decay": 0.7},
    "seed": {"train.seed": 5},
    "same": {},
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_run_is_passed_over(
    other: str, run_file: MakeFile, cut_off: CutOff, done: RunFolder
) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    foreign = start(load(run_file("other", **FIELDS | {"train.steps": 10} | OTHERS[other])))
    shutil.copytree(step(foreign, 10), step(folder, 10))
    listener = Warnings()
    start(load(path), listener=listener)
    (problem,) = [str(one["problem"]) for one in told(folder, "checkpoint_rejected")]
    assert "step-00000010: a checkpoint of another run, 'other' (" in problem
    assert "and this is 'own' (" in problem
    for field in OTHERS[other]:
        assert f"{field} is {OTHERS[other][field]} there" in problem
    assert f"passed over: {problem}" in listener.words
    assert resumed(folder)[-1] == 9
    assert is_exact(folder, done)
    assert (folder.checkpoints / ".foreign-00000010").is_dir()


def test_a_run_with_nothing_but_a_strangers_checkpoint_refuses(
    run_file: MakeFile, cut_off: CutOff
) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    foreign = start(load(run_file("other", **FIELDS | {"train.clip": 0.1})))
    for number in (3, 6, 9):
        shutil.rmtree(step(folder, number))
    shutil.copytree(step(foreign, 9), step(folder, 9))
    before = len(told(folder, "start"))
    with pytest.raises(RunFailed) as caught:
        start(load(path))
    said = str(caught.value)
    assert "no checkpoint in any tier can be loaded" in said
    assert "train.clip is 0.1 there, 1.0 here" in said
    assert "`penstock checkpoint adopt`" in said
    assert len(told(folder, "start")) == before  # no process was started
    assert step(folder, 9).is_dir()  # and nothing was moved


def test_ranks_that_refuse_say_it_in_words_in_their_logs_too(
    run_file: MakeFile, cut_off: CutOff
) -> None:
    """The supervisor compares sizes, so a flipped bit is found by the ranks."""
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    for number in (3, 6, 9):
        damaged = step(folder, number) / "scalars.json"
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
    with pytest.raises(RunFailed, match="no checkpoint in any tier can be loaded"):
        start(load(path))
    last = max(folder.logs.iterdir(), key=lambda one: int(one.name.rpartition("-")[2]))
    said = (last / "rank-0.err").read_text()
    assert said.startswith("error: the journal says that step 12 was saved, but no checkpoint")
    assert "Traceback" not in said


def test_a_checkpoint_of_a_copied_folder_with_other_settings_is_passed_over(
    run_file: MakeFile, cut_off: CutOff, done: RunFolder
) -> None:
    """The copy has the same identity: its settings tell."""
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    twin = RunFolder(folder.path.with_name("twin"))
    shutil.copytree(folder.path, twin.path)
    file = twin.run_file
    text = file.read_text().replace('name = "own"', 'name = "twin"')
    file.write_text(text.replace("clip = 1.0", "clip = 0.1"))
    for found in published_checkpoints(twin.checkpoints):
        table = json.loads((found.path / "scalars.json").read_text())
        assert table["run"]["train"]["clip"] == 1.0
    with pytest.raises(RunFailed, match=r"train\.clip is 1\.0 there, 0\.1 here"):
        start(load(run_file("twin", **FIELDS | {"train.clip": 0.1})))
    start(load(path))
    assert is_exact(folder, done)


class CutAtLaunch(Listener):
    """Ends the supervisor when everything is on record and no rank was started."""

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("identity", ["kept", "deleted"])
def test_a_run_cut_off_before_its_first_save_takes_no_checkpoint_of_another_run(
    identity: str, run_file: MakeFile, done: RunFolder
) -> None:
    """The other run has the same name and settings, so only the identity tells them apart."""
    path = run_file("own", **FIELDS)
    folder = RunFolder(load(path).folder)
    with pytest.raises(KeyboardInterrupt):
        start(load(path), listener=CutAtLaunch())
    assert folder.exists()
    own = (folder.path / "identity").read_bytes()
    assert own != (done.path / "identity").read_bytes()
    if identity == "deleted":
        (folder.path / "identity").unlink()
        (folder.checkpoints / "identity").unlink()
        journal = SupervisorJournal(folder.journal)
        journal.event("invocation", ranks=1, machine="one that was cut off")
        journal.close()
    shutil.copytree(step(done, 3), step(folder, 3))
    with pytest.raises(RunFailed, match="step-00000003: a checkpoint of another run, 'own'"):
        start(load(path))
    shutil.rmtree(step(folder, 3))
    folder.audit.mkdir(exist_ok=True)
    start(load(path))
    assert is_exact(folder, done)
    assert ((folder.path / "identity").read_bytes() == own) == (identity == "kept")


def test_a_foreign_checkpoint_that_came_while_it_ran_does_not_stand_for_the_own_one(
    run_file: MakeFile, cut_off: CutOff, done: RunFolder
) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    foreign = start(load(run_file("other", **FIELDS | {"train.clip": 0.1})))

    class Drops(Listener):
        def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
            shutil.copytree(step(foreign, 12), folder.checkpoints / "aside")
            (folder.checkpoints / "aside").rename(step(folder, 12))

    # After the search of the supervisor; the ranks pass it over, or save over its name.
    start(load(path), listener=Drops())
    assert is_exact(folder, done)
    newest = published_checkpoints(folder.checkpoints)[0]
    assert newest.read_manifest().run == StoredCheckpoint(step(folder, 9)).read_manifest().run
    assert decide_resume(folder, load(path)).finished


def test_nothing_else_uses_a_strangers_checkpoint(run_file: MakeFile, cut_off: CutOff) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    foreign = start(load(run_file("other", **FIELDS | {"train.clip": 0.1, "train.steps": 10})))
    shutil.copytree(step(foreign, 10), step(folder, 10))
    found, passed_over = choose_checkpoint(folder)
    assert found.step == 9
    assert "step-00000010: a checkpoint of another run, 'other'" in passed_over[0]
    with pytest.raises(RunFailed, match="cannot be used: a checkpoint of another run"):
        generate_text(folder, "def", 3, 0.0, 0)
    fork = start(load(path, ["train.steps=14"]), fork="second")
    assert resumed(fork) == [9]


# What must keep working.


def test_safe_changes_moved_folders_and_older_formats_go_on(
    run_file: MakeFile, cut_off: CutOff
) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    for number in (3, 6, 9):
        as_format(step(folder, number), 3)
    (folder.checkpoints / "identity").unlink()
    (folder.path / "identity").unlink()
    moved = folder.path.parent / "elsewhere" / "own"
    moved.parent.mkdir()
    shutil.move(folder.path, moved)
    where = f'dir="{moved.parent}"'
    start(load(path, [where, "train.steps=14", "guard.keep=9", "cluster.accelerators=2"]))
    folder = RunFolder(moved)
    assert resumed(folder)[-1] == 9
    start(load(path, [where, "train.steps=16"]))
    assert resumed(folder)[-2:] == [9, 14]
    assert told(folder, "checkpoint_rejected") == []
    assert published_checkpoints(folder.checkpoints)[0].read_manifest().format == 4


def test_a_renamed_checkpoint_of_the_format_before(
    run_file: MakeFile, cut_off: CutOff, done: RunFolder
) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    shutil.rmtree(step(folder, 9))
    as_format(step(folder, 6), 3)
    step(folder, 6).rename(step(folder, 9))
    start(load(path))
    assert resumed(folder)[-1] == 6
    assert is_exact(folder, done)


# run.toml and plan.json


def test_without_run_toml_its_checkpoints_tell_what_it_was(
    run_file: MakeFile, cut_off: CutOff, done: RunFolder
) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    folder.run_file.unlink()
    for changed in (["train.learning_rate=1e-3"], ["train.batch_tokens=256"], ["train.seed=3"]):
        with pytest.raises(PenstockError) as caught:
            start(load(path, changed))
        assert changed[0].partition("=")[0] in str(caught.value)
        assert "needs a fork" in str(caught.value)
        assert "step-00000009" in str(caught.value)
    assert not folder.run_file.exists()
    listener = Warnings()
    start(load(path), listener=listener)
    assert any("run.toml is gone" in words for words in listener.words)
    assert any("run.toml is gone" in str(one["words"]) for one in told(folder, "record_mended"))
    assert resumed(folder)[-1] == 9
    assert is_exact(folder, done)


def test_without_run_toml_a_fresh_start_is_fresh(run_file: MakeFile, cut_off: CutOff) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    folder.run_file.unlink()
    start(load(path), fresh=True)
    assert told(folder, "resumed") == []
    assert (folder.path.with_name("own.old-1") / "checkpoints/step-00000009").is_dir()


ODD = [b"", b'{"layout": {', b"[]", b"3", b'"x"', b"null", b"\xff\xfe", b'{"dataset": 7}',
       b'{"forked_from": "x"}', b'{"replanned": [1]}', b"[" * 100_000]  # fmt: skip


@pytest.mark.parametrize("content", [*ODD[:3], "flipped"], ids=str)
def test_a_damaged_plan_is_put_aside_and_made_again(
    content: bytes | str, run_file: MakeFile, cut_off: CutOff, done: RunFolder
) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    whole = folder.read_plan()
    if isinstance(content, str):  # another version of the dataset, by one bit
        text = folder.plan_file.read_text()
        at = text.index(whole["dataset"]) + len(whole["dataset"]) - 1
        content = (text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]).encode()
    folder.plan_file.write_bytes(content)
    checked = verify(load(path))
    assert checked.refused is None or isinstance(checked.refused, RunFailed)
    assert folder.plan_file.read_bytes() == content  # `check` changes nothing
    listener = Warnings()
    start(load(path), listener=listener)
    assert any("plan.json is damaged" in words for words in listener.words)
    assert any("made again by step-00000009" in words for words in listener.words)
    assert any("plan.json" in str(one["words"]) for one in told(folder, "record_mended"))
    assert (folder.path / "plan.json.bad-1").read_bytes() == content
    assert folder.read_plan()["dataset"] == whole["dataset"]
    assert is_exact(folder, done)


@pytest.mark.parametrize("content", ODD, ids=lambda content: content[:20])
def test_a_damaged_plan_is_one_message(content: bytes, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.plan_file.write_bytes(content)
    with pytest.raises(RunFailed, match=r"plan\.json is damaged"):
        folder.read_plan()


def test_a_fork_with_a_torn_plan_is_still_a_fork(run_file: MakeFile) -> None:
    path = run_file("own", **FIELDS)
    start(load(path))
    fork = start(load(path, ["train.steps=14", "train.seed=4"]), fork="second")
    fork.plan_file.write_bytes(b"{")
    start(load(path, ["train.steps=16", "train.seed=4", "name=second"]))
    assert fork.read_plan()["forked_from"] == {"run": "own", "step": 12}
    # An unfinished fork is gone on with by the command that made it.
    assert start(load(path, ["train.steps=16", "train.seed=4"]), fork="second").path == fork.path


# Forks and adoption


@pytest.mark.parametrize("moment", ["publish", "plan", "run"])
def test_a_fork_that_was_cut_is_made_by_the_same_command(
    moment: str, run_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run_file("own", **FIELDS)
    start(load(path))
    longer = load(path, ["train.steps=14", "train.learning_rate=1e-3"])

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    where = {
        "publish": "penstock.guard.tiers.stores.DiskStore.publish",
        "plan": "penstock.run.folder.RunFolder.write_plan",
        "run": "penstock.launch.prepare.resume.save",
    }
    with monkeypatch.context() as patch:
        patch.setattr(where[moment], cut)
        with pytest.raises(KeyboardInterrupt):
            start(longer, fork="second")
    fork = start(longer, fork="second")
    assert resumed(fork) == [12]
    assert published_checkpoints(fork.checkpoints)[0].step == 14
    assert fork.read_plan()["forked_from"] == {"run": "own", "step": 12}
    assert not list(fork.checkpoints.glob(".damaged-*"))


def test_a_fork_of_before_that_was_cut(run_file: MakeFile) -> None:
    """As an earlier version left it: the checkpoint is there, and nothing else."""
    path = run_file("own", **FIELDS)
    first = start(load(path))
    fork = RunFolder(first.path.with_name("second"))
    fork.make()
    shutil.copytree(step(first, 12), step(fork, 12))
    as_format(step(fork, 12), 3)
    start(load(path, ["train.steps=14"]), fork="second")
    assert resumed(fork) == [12]
    assert published_checkpoints(fork.checkpoints)[0].step == 14


def test_a_fork_does_not_take_the_place_of_a_run_whose_file_is_gone(run_file: MakeFile) -> None:
    path = run_file("own", **FIELDS)
    start(load(path))
    other = start(load(run_file("second", **FIELDS)))
    other.run_file.unlink()
    with pytest.raises(PenstockError, match=r"another run of that name, whose run\.toml is gone"):
        start(load(path, ["train.steps=14"]), fork="second")


def test_a_run_goes_on_from_an_adopted_checkpoint(run_file: MakeFile, cut_off: CutOff) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    foreign = start(load(run_file("other", **FIELDS | {"train.clip": 0.1})))
    with pytest.raises(PenstockError, match=r"not older \(step 6, 9\); add --replace"):
        adopt(folder, step(foreign, 6))
    with pytest.raises(PenstockError, match="is of step 12, and run 'own' ends at step 12"):
        adopt(folder, step(foreign, 12))
    backup = folder.path.parent / "backup"  # whatever it is called
    shutil.copytree(step(foreign, 6), backup)
    made = adopt(folder, backup, replace=True)
    assert (made.step, made.name, made.replaced) == (6, "other", (6, 9))
    how = decide_resume(folder, load(path))
    assert (how.step, how.tier) == (6, "disk")
    origin = StoredCheckpoint(step(folder, 6)).read_manifest().origin
    assert (origin["name"], origin["step"]) == ("other", 6)
    (event,) = told(folder, "adopted")
    assert (event["step"], event["name"], event["path"]) == (6, "other", str(backup))
    start(load(path))
    assert resumed(folder)[-1] == 6
    assert summary(folder)["status"] == "done"
    assert told(folder, "checkpoint_rejected") == []
    shutil.rmtree(step(folder, 12))  # and it stays one of the run's own
    shutil.rmtree(step(folder, 9))
    assert decide_resume(folder, load(path, ["train.steps=13"])).step == 6


@pytest.mark.parametrize("name", [9, 10])
def test_a_checkpoint_that_lies_in_the_run_already_is_adopted_where_it_lies(
    name: int, run_file: MakeFile, cut_off: CutOff
) -> None:
    path = run_file("own", **FIELDS)
    folder = cut_off(path)
    foreign = start(load(run_file("other", **FIELDS | {"train.clip": 0.1})))
    shutil.rmtree(step(folder, 9))
    shutil.copytree(step(foreign, 9), step(folder, name))
    with pytest.raises(PenstockError, match="is one of run 'own' itself"):
        adopt(folder, step(folder, 6), replace=True)
    assert adopt(folder, step(folder, name)).replaced == ()
    start(load(path))
    assert resumed(folder)[-1] == 9
    assert told(folder, "checkpoint_rejected") == []


def test_a_finished_run_goes_on_from_what_it_adopts(run_file: MakeFile) -> None:
    path = run_file("own", **FIELDS)
    folder = start(load(path))
    foreign = start(load(run_file("other", **FIELDS | {"train.seed": 3})))
    adopt(folder, step(foreign, 9), replace=True)
    start(load(path))
    assert resumed(folder)[-1] == 9
    assert [one["now"]["seed"] for one in told(folder, "stream_changed")] == [0]


def test_what_does_not_fit_or_is_damaged_is_not_adopted(
    run_file: MakeFile, cut_off: CutOff
) -> None:
    folder = cut_off(run_file("own", **FIELDS))
    wide = start(load(run_file("wide", **FIELDS | {"model.ffn": 96, "train.steps": 10})))
    with pytest.raises(
        PenstockError, match=r"its weights do not fit run 'own': .* 96 × 32 there and 64 × 32"
    ):
        adopt(folder, step(wide, 10))
    damaged = step(wide, 9) / "scalars.json"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(RunFailed, match=r"no whole checkpoint: scalars\.json"):
        adopt(folder, step(wide, 9))
    as_format(step(wide, 6), 2)
    with pytest.raises(RunFailed, match="in format 2"):
        adopt(folder, step(wide, 6))
    assert told(folder, "adopted") == []
    assert [one.step for one in published_checkpoints(folder.checkpoints)] == [9, 6, 3]


def test_an_adoption_that_was_killed_is_made_by_the_same_command(
    run_file: MakeFile, cut_off: CutOff, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cut_off(run_file("own", **FIELDS))
    foreign = start(load(run_file("other", **FIELDS | {"train.clip": 0.1})))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for where in (
        "penstock.guard.tiers.stores.DiskStore.publish",
        "penstock.launch.prepare.adopt._record",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, killed)
            with pytest.raises(KeyboardInterrupt):
                adopt(folder, step(foreign, 9), replace=True)
    assert adopt(folder, step(foreign, 9), replace=True).step == 9
    assert len(told(folder, "adopted")) == 1
    assert (step(folder, 9) / MANIFEST).is_file()
