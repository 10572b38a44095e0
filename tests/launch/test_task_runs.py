"""Whole runs with benchmark tasks: their scores, the same weights, with and without faults."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.run.fingerprint import fingerprint
from penstock.run.folder import RunFolder
from penstock.watch.facts.event_lines import event_lines
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.html import page
from penstock.watch.report.screen import summary
from penstock.watch.web.metrics import exposition
from penstock.watch.web.sections import tasks as tasks_section
from task_peer import SMALL, TASKS

MakeFile = Callable[..., Path]
PLAIN: dict[str, Any] = {
    "data.sequence": 64,
    "train.steps": 8,
    "train.batch_tokens": 512,
    "evaluate.every": "4 steps",
    "guard.checkpoint": "3 steps",
    "guard.fast": "never",
    "cluster.accelerators": 2,
}
FIELDS = PLAIN | {
    "evaluate.tasks": list(TASKS),
    "evaluate.tasks_dir": str(SMALL),
    "evaluate.tasks_every": "5 steps",
}


def by_step(report: penstock.Report) -> dict[int | None, Any]:
    assert all(one.during for one in report.task_scores)
    return {one.step: one.scores for one in report.task_scores}


def test_scores_of_a_run_are_told_everywhere_and_change_no_weight(run_file: MakeFile) -> None:
    plain = penstock.train(run_file("plain", **PLAIN))
    seen: list[penstock.Event] = []
    path = run_file("tasks", **FIELDS)
    found = penstock.train(path, on_event=seen.append)
    assert found.weights_hash == plain.weights_hash
    assert found.validation == plain.validation
    a, b = penstock.load(run_file("plain", **PLAIN)), penstock.load(path)
    assert fingerprint(a) == fingerprint(b)

    scores = by_step(found)
    assert list(scores) == [5, 8]  # at the interval, and at the end
    assert [(one.task, one.metric) for one in scores[5]] == [
        ("sums_choice", "acc"),
        ("sums_choice", "acc_norm"),
        ("sums_write", "exact_match"),
        ("sums_text", "word_perplexity"),
        ("sums_text", "bits_per_byte"),
    ]
    assert scores[5] != scores[8]
    assert found.ledger.seconds["evaluate"] > plain.ledger.seconds["evaluate"]  # type: ignore[index]
    told = [event for event in seen if isinstance(event, penstock.TaskEvaluation)]
    assert {event.step: event.scores for event in told} == scores

    view = RunView(RunFolder(found.folder))
    assert summary(view.folder)["task_scores"][-1]["step"] == 8
    assert any(
        line.words.startswith("tasks at step 8: sums_choice acc") for line in event_lines(view)
    )
    shown = tasks_section(RunFacts(view))
    assert shown["titles"] == ["step 5", "step 8"]
    assert shown["rows"][0][:2] == ["sums_choice", "acc"]
    assert all(text in page(view.folder) for text in ("<h2>Tasks</h2>", *shown["rows"][0]))
    name = 'penstock_task_score{filter="none",metric="bits_per_byte",run="tasks",task="sums_text"}'
    assert f"{name} {scores[8][-1].value}" in exposition([view])

    # The same checkpoint by the verb, with the run's own tasks; only longer texts are not cut.
    (after,) = penstock.evaluate(found.folder, limit=5)
    assert after.results.step == 8
    assert after.results.limit == 5
    titles = tasks_section(RunFacts(RunView(RunFolder(found.folder))))["titles"]
    assert titles[-1] == "step 8 evaluate, first 5"


@pytest.mark.slow
def test_a_rank_killed_in_tasks_changes_no_score(run_file: MakeFile) -> None:
    fields = FIELDS | {"evaluate.tasks_limit": 4}
    calm = penstock.train(run_file("calm", **fields | {"cluster.accelerators": 1}))
    folder = RunFolder(calm.folder.parent / "killed")
    arm(folder.traps, Failpoint("a", "kill", "evaluate", step=5))
    killed = penstock.train(run_file("killed", **fields | {"cluster.accelerators": 1}))
    assert killed.faults == 1
    assert killed.weights_hash == calm.weights_hash
    assert by_step(killed) == by_step(calm)


STOPS = '''from pathlib import Path


def text(doc):
    """Ask the run to stop, once, when it is there."""
    note = Path(__file__).with_name("stop.txt")
    if note.exists() and (control := Path(note.read_text())).is_dir():
        note.unlink()
        (control / "stop").touch()
    return doc["question"]
'''


@pytest.mark.slow
def test_tasks_that_a_stop_cuts_short_are_done_when_the_run_goes_on(
    run_file: MakeFile, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(SMALL, tmp_path / "own"))
    file = own / "sums_choice.yaml"
    asked = 'doc_to_text: "{{question}}\\nIt is"'
    assert asked in file.read_text()
    file.write_text(file.read_text().replace(asked, "doc_to_text: !function stops.text"))
    (own / "stops.py").write_text(STOPS)
    fields = FIELDS | {"evaluate.tasks_dir": str(own), "cluster.accelerators": 1}
    calm = penstock.train(run_file("calm", **fields))
    (own / "stop.txt").write_text(str(tmp_path / "runs" / "stopped" / "control"))
    first = penstock.train(run_file("stopped", **fields))
    assert (first.status, first.step, by_step(first)) == ("stopped", 5, {})
    again = penstock.train(run_file("stopped", **fields))
    assert again.status == "done"
    assert by_step(again) == by_step(calm)
    assert again.weights_hash == calm.weights_hash


def test_a_task_that_fails_does_not_fail_the_run(run_file: MakeFile, tmp_path: Path) -> None:
    own = Path(shutil.copytree(SMALL, tmp_path / "own"))
    file = own / "sums_write.yaml"
    file.write_text(file.read_text().replace("do_sample: false", "num_beams: 3"))
    found = penstock.train(run_file("failing", **FIELDS | {"evaluate.tasks_dir": str(own)}))
    assert found.status == "done"
    assert found.faults == 0
    assert found.task_scores == ()
    lines = event_lines(RunView(RunFolder(found.folder)))
    told = [line for line in lines if line.kind == "tasks_failed"]
    assert {line.level for line in told} == {"warning"}
    assert "generation_kwargs has num_beams, which is not built" in told[0].words


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["shard", "tensor", "pipeline", "context"])
def test_every_layout_gives_the_scores_of_one_rank(run_file: MakeFile, ways: str) -> None:
    fields = FIELDS | {"train.precision": "fp64", "evaluate.tasks_limit": 4}
    alone = penstock.train(run_file("alone", **fields | {"cluster.accelerators": 1}))
    split = penstock.train(run_file("split", **fields | {f"layout.{ways}": 2}))
    assert split.layout is not None
    assert split.layout[ways] == 2
    for step, scores in by_step(alone).items():
        for one, other in zip(scores, by_step(split)[step], strict=True):
            assert other.value == pytest.approx(one.value, rel=1e-9)
