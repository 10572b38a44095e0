"""The table of a sweep: the best run, and when there is none."""

import json
from pathlib import Path
from typing import Any

import pytest

from made_run import made_run
from penstock.launch.vary import Variant
from penstock.ledger.journal.writer import Journal
from penstock.run.load import load
from penstock.watch.report.sweep import NOTE, NOTE_KIND, same_tokenizer, sweep_summary, table


def variant(root: Path, name: str, val_loss: float | None = None, **plan: Any) -> Variant:
    folder = made_run(root, name, ranks=1, steps=4)
    folder.plan_file.write_text(json.dumps(folder.read_plan() | plan))
    if val_loss is not None:
        with Journal(folder.journal, 1) as journal:
            journal.span("evaluate", 1_790_000_100.0, 1_790_000_100.5, step=4, val_loss=val_loss)
    return Variant(load(folder.run_file, [f"dir={root}"]), {"train.seed": name})


def test_the_best_has_the_least_validation_loss(tmp_path: Path) -> None:
    found = sweep_summary([variant(tmp_path, "a", 3.5), variant(tmp_path, "b", 3.1)], [])
    assert (found["best"], found["note"]) == ("b", None)


def test_a_validation_loss_is_not_compared_with_a_training_loss(tmp_path: Path) -> None:
    """The training losses are equal, so the first is taken."""
    found = sweep_summary([variant(tmp_path, "a"), variant(tmp_path, "b", 0.1)], [])
    assert found["best"] == "a"


def test_runs_of_different_tokenizers_have_no_best(tmp_path: Path) -> None:
    one, other = variant(tmp_path, "a", 3.5, tokenizer="x"), variant(tmp_path, "b", tokenizer="y")
    found = sweep_summary([one, other], [])
    assert (found["best"], found["note"]) == (None, NOTE)
    assert {row["tokenizer"] for row in found["runs"]} == {"x", "y"}


def of_pairs(root: Path, name: str, objective: str, margin: float) -> Variant:
    """A run on pairs, evaluated once; without a margin it failed before that."""
    one = variant(root, name)
    text = one.folder.run_file.read_text().replace('preset = "llama-3m"', 'from = "hf:org/name"')
    one.folder.run_file.write_text(f'{text}objective = "{objective}"\n')
    if margin:
        paid = {"chosen": margin, "rejected": 0.0, "accuracy": 0.75}
        with Journal(one.folder.journal, 1) as journal:
            journal.span("evaluate", 1_790_000_100.0, 1_790_000_100.5, step=4, val_loss=3.0, **paid)
    return Variant(load(one.folder.run_file, [f"dir={root}"]), {"train.objective": objective})


def test_runs_of_different_objectives_have_no_best(tmp_path: Path) -> None:
    """Their losses are other numbers; what they have in common is shown."""
    runs = [
        of_pairs(tmp_path, "a", "dpo", 0.5),
        of_pairs(tmp_path, "b", "simpo", 1.5),
        of_pairs(tmp_path, "c", "orpo", 0.0),
    ]
    found = sweep_summary(runs, [])
    assert (found["best"], found["note"]) == (None, NOTE_KIND)
    assert [row["margin"] for row in found["runs"]] == [0.5, 1.5, None]
    assert [row["loss_kind"] for row in found["runs"]] == [
        "dpo, beta 0.1",
        "simpo, beta 2, gamma 1",
        "orpo, beta 0.1",
    ]
    columns = {str(one.header): list(one.cells) for one in table(found).columns}
    assert list(map(str, columns["margin"])) == ["0.500", "1.500", "–"]
    assert list(map(str, columns["accuracy"])) == ["75.0%", "75.0%", "–"]
    same = sweep_summary([runs[0], of_pairs(tmp_path, "d", "dpo", 1.0)], [])
    assert (same["best"], same["note"]) == ("a", None)  # equal losses: the first
    plain = sweep_summary([variant(tmp_path, "e", 3.5)], [])
    assert "margin" not in [str(one.header) for one in table(plain).columns]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"tokenizer": "x", "dataset": "a@1"}, {"tokenizer": "x", "dataset": "b@1"}, True),
        ({"tokenizer": "x", "dataset": "a@1"}, {"tokenizer": "y", "dataset": "a@1"}, False),
        ({"dataset": "a@1"}, {"tokenizer": "y", "dataset": "a@1"}, True),  # of an earlier version
        ({"dataset": "a@1"}, {"dataset": "b@1"}, False),
    ],
)
def test_the_same_tokenizer(one: dict[str, str], other: dict[str, str], same: bool) -> None:
    assert same_tokenizer([one, other]) is same
    assert same_tokenizer([one])
    assert same_tokenizer([])
