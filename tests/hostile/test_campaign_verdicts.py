"""The judge of the campaign fails where it should; tampering does what it says. Without root."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hostile.campaign import BEGIN, END, Round, Told, put, table, total
from hostile.own_processes import descends, parent, send
from hostile.tampering import WAYS, Target, tamper
from hostile.verdicts import (
    Ended,
    Finished,
    counted,
    numbered,
    still_there,
    traceback_in,
    wrong_end,
    wrong_refusal,
)
from penstock.data.read.stream import rank_slice
from penstock.drill.audit import SampleCounts, UsedSamples
from penstock.run.folder import RunFolder

REFUSED = Ended(
    1, "penstock 0.1\n", "error: run 'own': no checkpoint can be loaded:\n  memory: none\n"
)
TRACE = "Traceback (most recent call last):\n  ...\nKeyError: 'step'\n"
DONE = Finished("done", "abc", 160, (), {"state/__0_0.distcp": "1", "state/__1_0.distcp": "2"})
NOTHING_WRONG = SampleCounts(0, 0)


def test_a_refusal_in_words_is_right() -> None:
    assert wrong_refusal(REFUSED, tampered=True) == []
    assert wrong_refusal(replace(REFUSED, code=2), tampered=True) == []


@pytest.mark.parametrize(
    ("ended", "tampered", "words"),
    [
        (REFUSED, False, "nobody had touched its records"),
        (replace(REFUSED, code=3), True, "exit code 3"),
        (replace(REFUSED, code=-9), True, "exit code -9"),
        (replace(REFUSED, stderr=""), True, "0 messages"),
        (replace(REFUSED, stderr="error: \n"), True, "not a message in words"),
        (replace(REFUSED, stderr="error: 'step'\n"), True, "not a message in words"),
        (replace(REFUSED, stderr=2 * REFUSED.stderr), True, "2 messages"),
        (replace(REFUSED, stderr=REFUSED.stderr + TRACE), True, "a traceback in stderr"),
        (replace(REFUSED, stdout=TRACE), True, "a traceback in stdout"),
        (Ended(1, "", TRACE), True, "a traceback in stderr"),
    ],
)
def test_any_other_end_is_wrong(ended: Ended, tampered: bool, words: str) -> None:
    assert any(words in problem for problem in wrong_refusal(ended, tampered))


def test_a_traceback_in_the_log_of_a_rank_is_named() -> None:
    assert traceback_in({"logs/attempt-0/rank-1.err": TRACE, "stdout": "well"}) == [
        "a traceback in logs/attempt-0/rank-1.err"
    ]


def test_a_rank_may_write_how_it_lost_a_peer_that_was_killed_and_nothing_else() -> None:
    lost = TRACE.replace("KeyError: 'step'", "RuntimeError: [x.cc:5] Connection reset by peer. Hi")
    name, struck = "logs/attempt-2/rank-1.err", {"logs/attempt-2"}
    assert traceback_in({name: lost}, struck) == []
    assert traceback_in({name: lost + TRACE}, struck) == [f"a traceback in {name}"]
    assert traceback_in({name: TRACE}, struck) == [f"a traceback in {name}"]
    assert traceback_in({name: lost}, {"logs/attempt-1"}) == [f"a traceback in {name}"]
    assert traceback_in({"stderr": lost}, struck) == ["a traceback in stderr"]
    for cut in ("Traceback (most recent call last):\n", TRACE[: TRACE.index("KeyError")]):
        assert traceback_in({name: cut}, struck) == []  # killed while it wrote
        assert traceback_in({name: lost + cut}, struck) == []
        assert traceback_in({name: TRACE + cut}, struck) == [f"a traceback in {name}"]
        assert traceback_in({name: cut}) == [f"a traceback in {name}"]


def test_the_undisturbed_end_is_right() -> None:
    assert wrong_end(DONE, DONE, NOTHING_WRONG) == []


@pytest.mark.parametrize(
    ("found", "samples", "words"),
    [
        (replace(DONE, weights_hash="abd"), NOTHING_WRONG, "weights abd, undisturbed abc"),
        (replace(DONE, weights_hash=None), NOTHING_WRONG, "weights None"),
        (replace(DONE, status="stopped"), NOTHING_WRONG, "status is 'stopped'"),
        (replace(DONE, step=156), NOTHING_WRONG, "of step 156, not 160"),
        (replace(DONE, damage=("x: missing",)), NOTHING_WRONG, "x: missing"),
        (replace(DONE, state={}), NOTHING_WRONG, "state on disk"),
        (replace(DONE, state={**DONE.state, "state/__1_0.distcp": "3"}), NOTHING_WRONG, "state on"),
        (DONE, SampleCounts(4, 0), "4 samples lost, 0 doubled"),
        (DONE, SampleCounts(0, 2), "0 samples lost, 2 doubled"),
    ],
)
def test_any_other_result_is_wrong(found: Finished, samples: SampleCounts, words: str) -> None:
    assert any(words in problem for problem in wrong_end(found, DONE, samples))


def test_weights_that_nobody_knows_are_not_equal() -> None:
    unknown = replace(DONE, weights_hash=None)
    assert wrong_end(unknown, unknown, NOTHING_WRONG)


def test_a_late_refusal_has_to_name_what_was_tampered_with() -> None:
    said = "error: no checkpoint can be loaded:\n  disk (x): step-00000012: manifest.json: torn\n"
    assert still_there("checkpoints/step-00000012/manifest.json torn at byte 5 of 9", said)
    assert still_there("step-00000012 renamed to step-00000024", said)
    assert not still_there("checkpoints/step-00000024/manifest.json torn at byte 5 of 9", said)
    assert not still_there("run.toml torn at byte 5 of 9", said)
    assert not still_there("", said)


# Signals


def test_only_processes_of_its_own_are_signalled() -> None:
    """The campaign is root, and an orphan's parent is pid 1."""
    assert not descends(1, os.getpid())
    assert not descends(0, os.getpid())
    assert not descends(os.getpid(), os.getpid())
    assert not descends(os.getpid(), 1)  # everybody descends from it
    sleeps = "import time; print(flush=True); time.sleep(60)"
    with (
        subprocess.Popen([sys.executable, "-c", sleeps], stdout=subprocess.PIPE) as own,
        subprocess.Popen([sys.executable, "-c", sleeps], stdout=subprocess.PIPE) as other,
    ):
        try:
            for process in (own, other):
                assert process.stdout is not None
                process.stdout.readline()
            assert parent(own.pid) == os.getpid()
            assert descends(own.pid, os.getpid())
            assert not send(own.pid, signal.SIGKILL, ancestor=other.pid)
            for nobody in (-1, 0, 1):
                assert not send(nobody, 0, ancestor=os.getpid())
            with pytest.raises(subprocess.TimeoutExpired):
                own.wait(0.2)
            assert send(own.pid, signal.SIGKILL, ancestor=os.getpid())
            assert own.wait(10) == -signal.SIGKILL
            assert not send(own.pid, signal.SIGKILL, ancestor=os.getpid())
        finally:
            own.kill()
            other.kill()


def test_an_orphan_is_nobodys_and_neither_is_its_new_parent() -> None:
    made = subprocess.run(
        ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"],
        capture_output=True,
        text=True,
        check=True,
    )
    orphan = int(made.stdout)
    try:
        assert parent(orphan) != os.getpid()
        assert not descends(orphan, os.getpid())
        assert not descends(parent(orphan), os.getpid())
    finally:
        os.kill(orphan, signal.SIGKILL)


# The count of samples


def made(attempt: int, first: int, last: int) -> list[UsedSamples]:
    """Lines of two ranks that make steps `first` to `last` of 8 samples."""
    lines = []
    for rank in range(2):
        for step in range(first, last + 1):
            part = rank_slice((step - 1) * 8, step * 8, rank, 2)
            lines.append(UsedSamples(rank, attempt, step, rank, *part, data_ranks=2))
    return lines


def test_attempts_that_a_power_cut_numbered_again_are_told_apart() -> None:
    """Rank 1 had written one step more than rank 0 when the disk forgot the attempt."""
    before = [one for one in made(0, 1, 6) if (one.rank, one.step) != (0, 6)]
    after = made(0, 6, 10)
    lines = numbered(before, 1) + numbered(after, 2)
    assert counted(lines, 10, 8) == SampleCounts(0, 0)
    assert counted(before + after, 10, 8) != SampleCounts(0, 0)  # as one attempt it looks broken


def test_lost_and_doubled_samples_are_counted() -> None:
    lost = numbered(made(0, 1, 4), 1) + numbered(made(0, 6, 10), 2)
    assert counted(lost, 10, 8) == SampleCounts(8, 0)
    again = replace(made(0, 5, 5)[0], step=11)  # of step 5, used for another one
    doubled = [*numbered(made(0, 1, 10), 1), *numbered([again], 2)]
    assert counted(doubled, 10, 8) == SampleCounts(0, 4)
    assert counted([], 10, 8) == SampleCounts(80, 0)


# Tampering


def run_folder(root: Path, salt: str, steps: tuple[int, ...] = (12, 24, 36)) -> RunFolder:
    """Files with the names that a run gives them; what is in them does not matter here."""
    folder = RunFolder(root / "own")

    def write(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{salt} {path.relative_to(root)} " + "x" * 40)

    for step in steps:
        place = folder.checkpoints / f"step-{step:08d}"
        for name in ("manifest.json", "index.json", "scalars.json", "state/__0_0", "state/__1_0"):
            write(place / name)
    for path in (folder.run_file, folder.plan_file, folder.path / "identity"):
        write(path)
    write(folder.checkpoints / "identity")
    write(folder.journal / "supervisor.events")
    write(folder.journal / "a0000-r00000.events")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Target:
    memory = tmp_path / "memory"
    for slot in ("slot-0", "slot-1"):
        place = memory / "0123" / "fast-0" / "plan" / slot
        place.mkdir(parents=True)
        for name in ("seal-r00000.json", "index.json"):
            (place / name).write_text(f"{slot} {name} " + "y" * 40)
    other = run_folder(tmp_path / "other", "other")
    return Target(run_folder(tmp_path / "runs", "own"), memory, {"rate": other}, 12, 160)


def content(target: Target) -> str:
    """A hash of all that a run has, names included."""
    seen = hashlib.sha256()
    for root in (target.folder.path, target.memory):
        for path in sorted(root.rglob("*")):
            seen.update(str(path.relative_to(root)).encode())
            seen.update(path.read_bytes() if path.is_file() else b"")
    return seen.hexdigest()


@pytest.fixture
def put_back(target: Target, tmp_path: Path) -> Callable[[], None]:
    kept = tmp_path / "kept"
    shutil.copytree(target.folder.path, kept / "run")
    shutil.copytree(target.memory, kept / "memory")

    def restore() -> None:
        for name, path in (("run", target.folder.path), ("memory", target.memory)):
            shutil.rmtree(path)
            shutil.copytree(kept / name, path)

    return restore


@pytest.mark.parametrize("way", WAYS)
def test_what_says_that_it_tampered_has(
    way: str, target: Target, put_back: Callable[[], None]
) -> None:
    before, did = content(target), 0
    for seed in range(30):
        told = WAYS[way](target, random.Random(seed))
        assert (content(target) != before) == bool(told), told
        did += bool(told)
        put_back()
    assert did >= 15


@pytest.mark.parametrize("way", WAYS)
def test_where_nothing_is_nothing_is_done(way: str, tmp_path: Path) -> None:
    folder, memory = RunFolder(tmp_path / "own"), tmp_path / "memory"
    for path in (folder.checkpoints, memory):
        path.mkdir(parents=True)
    other = run_folder(tmp_path / "other", "other", steps=())
    target = Target(folder, memory, {"rate": other}, 12, 160)
    if way in ("foreign identity", "deleted record"):  # a folder can always be given one, or go
        return
    for seed in range(30):
        assert WAYS[way](target, random.Random(seed)) == ""


@pytest.mark.parametrize("way", ["swapped files", "swapped ranks", "foreign file"])
def test_a_swap_of_equal_files_is_not_counted(way: str, target: Target) -> None:
    """The index of two checkpoints is often the same to the byte."""
    for folder in (target.folder, *target.foreign.values()):
        for path in folder.checkpoints.rglob("*"):
            if path.is_file():
                path.write_bytes(b"the same everywhere")
    for seed in range(30):
        assert WAYS[way](target, random.Random(seed)) == ""


def test_an_identity_that_is_there_already_is_not_counted(target: Target) -> None:
    for home in (target.folder.path, target.folder.checkpoints):
        shutil.copyfile(target.foreign["rate"].path / "identity", home / "identity")
    assert WAYS["foreign identity"](target, random.Random(0)) == ""


def test_copies_in_memory_are_tampered_with_often_where_there_are_any(
    target: Target, put_back: Callable[[], None]
) -> None:
    hit = 0
    for seed in range(200):
        hit += "slot-" in tamper(target, random.Random(seed))[1]
        put_back()
    assert hit >= 60


def test_a_seed_draws_the_same_every_time(target: Target, put_back: Callable[[], None]) -> None:
    drawn = []
    for _ in range(2):
        drawn.append([])
        for seed in range(40):
            drawn[-1].append((tamper(target, random.Random(seed)), content(target)))
            put_back()
    assert drawn[0] == drawn[1]
    assert len({way for (way, _), _ in drawn[0]}) == len(WAYS)


def test_the_table_counts_every_fault_and_every_tampering() -> None:
    rounds = [
        Round("power cut", "step", 3, "torn record", "x torn", "refused", "why"),
        Round("power cut", "step", 9, "", "", "went on"),
        Round("all killed", "step", 12, "harmed slot", "a/slot-1/seal deleted", "went on"),
        Round("rank killed", "step", 20, "", "", "too late"),
    ]
    told = [Told(0, "late", rounds[:3], starts=5), Told(1, "late", rounds[3:], ["why"], starts=1)]
    assert [line for line in table(told) if line.startswith("| ") and " n " not in line] == [
        "| all killed | 1 | 1 | 0 | 0 | 0 |",
        "| power cut | 2 | 1 | 1 | 0 | 0 |",
        "| rank killed | 1 | 0 | 0 | 0 | 1 |",
        "| harmed slot | 1 | 1 | 0 | 0 | 0 |",
        "| torn record | 1 | 0 | 1 | 0 | 0 |",
    ]
    assert total(told) == (
        "2 runs, 3 faults, 2 times tampered with (1 times with copies in memory; 1 were refused, "
        "and the records put back), 6 starts: 1 ended with equal weights and every sample used "
        "once; seeds [1] failed."
    )


def test_the_page_keeps_what_stands_around_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    put(page, ["new", "lines"])
    assert page.read_text() == f"before\n\n{BEGIN}\nnew\nlines\n{END}\n\nafter\n"
    page.write_text("without marks")
    with pytest.raises(ValueError, match="has no lines"):
        put(page, [])
