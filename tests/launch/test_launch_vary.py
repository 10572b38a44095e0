"""`train --vary`: every combination as a run of its own, whatever happens to the others."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import commands
from penstock.errors import NotYet, PenstockError
from penstock.launch import vary
from penstock.ledger.journal.records import journal_files
from penstock.run.folder import RunFolder
from whole_runs import reached

MakeFile = Callable[..., Path]


def test_every_combination_is_a_run_whose_name_says_what_it_has(run_file: MakeFile) -> None:
    path = run_file("base")
    found = vary.variants(
        str(path),
        ["train.clip=0"],
        ["train.learning_rate=1e-3,3e-3", "train.betas=[0.9, 0.95],[0.8, 0.9]"],
    )
    assert [variant.run.name for variant in found] == [
        "base-vary-learning_rate-1e-3-betas-_0.9_0.95_",
        "base-vary-learning_rate-1e-3-betas-_0.8_0.9_",
        "base-vary-learning_rate-3e-3-betas-_0.9_0.95_",
        "base-vary-learning_rate-3e-3-betas-_0.8_0.9_",
    ]
    last = found[-1]
    assert (last.run.learning_rate, last.run.train.betas) == (3e-3, (0.8, 0.9))
    assert all(variant.run.train.clip == 0 for variant in found)
    assert last.values == {"train.learning_rate": "3e-3", "train.betas": "[0.8, 0.9]"}


def test_fields_that_end_alike_are_named_in_full(run_file: MakeFile) -> None:
    (one,) = vary.variants(str(run_file("b")), [], ["evaluate.tokens=1024", "train.tokens=1M"])
    assert one.run.name == "b-vary-evaluate.tokens-1024-train.tokens-1M"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["train.seed"], "not a field and its values; write --vary train.learning_rate"),
        (["train.seed=1,,2"], "not a field and its values"),
        (["train.sead=1,2"], "train.sead.*Did you mean"),
        (["train.seed=1,x"], "train.seed"),
        (["name=a,b"], "named by what is varied"),
        (["train.seed=1,2", "train.seed=3"], "given twice"),
        (["train.clip=1,2"], "given twice"),
        (["train.seed=1,1"], "two of the runs would be called base-vary-seed-1"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    given: list[str], said: str, run_file: MakeFile, tmp_path: Path
) -> None:
    with pytest.raises(PenstockError, match=said):
        vary.variants(str(run_file("base")), ["train.clip=0"], given)
    assert not (tmp_path / "runs").exists()


def test_what_is_not_built_is_refused_before_anything_starts(run_file: MakeFile) -> None:
    with pytest.raises(NotYet, match="a run at a URL"):
        vary.variants(str(run_file("base")), ["dir=s3://bucket/runs"], ["train.seed=0,1"])


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_a_failed_run_stops_no_other(
    run_file: MakeFile, tiny: str, tmp_path: Path
) -> None:
    path = run_file(
        "s", **{"train.steps": 300, "guard.checkpoint": "20 steps", "cluster.accelerators": 1}
    )
    sets = f"data.dataset={tiny},nowhere"
    words = ["train", path, "--json", "--vary", "train.seed=0,1", "--vary", sets]
    folders = [
        RunFolder(variant.run.folder)
        for variant in vary.variants(str(path), [], ["train.seed=0,1", sets])
    ]
    process = commands.popen(*words)
    while reached(folders[2]) < 30:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    done = commands.run(*words, code=1)
    assert "2 of 4 runs failed" in done.stderr
    found = json.loads(done.stdout)
    first, lost, second, _ = found["runs"]
    assert [run["status"] for run in found["runs"]] == ["done", "failed", "done", "failed"]
    assert first["steps"] == second["steps"] == 300
    assert "nowhere" in lost["error"]
    assert lost["loss"] is None
    assert first["values"] == {"train.seed": "0", "data.dataset": tiny}
    assert found["best"] == min((first, second), key=lambda run: run["val_loss"])["run"]
    attempts = [len(journal_files(folder.journal, "events")) for folder in folders[::2]]
    assert attempts == [1, 2]  # the first was not begun again, the second went on


@pytest.mark.slow
def test_a_stop_ends_the_whole_sweep(run_file: MakeFile) -> None:
    path = run_file("s", **{"train.steps": 100_000, "cluster.accelerators": 1})
    first, second = vary.variants(str(path), [], ["train.seed=0,1"])
    process = commands.popen("train", path, "--vary", "train.seed=0,1")
    while reached(first.folder) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    rows = [line.split() for line in out.splitlines()[-2:]]
    assert rows[0][-1] == "stopped"
    assert rows[1][-2:] == ["not", "started"]
    assert not second.folder.exists()
