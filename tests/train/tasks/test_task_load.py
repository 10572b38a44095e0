"""Tasks that cannot be run are one message each."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lora_peer
import penstock
from made_run import made_run
from penstock.cli.main import app
from penstock.errors import PenstockError
from penstock.train.tasks import several
from penstock.train.tasks.load import load_tasks
from penstock.train.tasks.open import open_run
from penstock.train.tasks.text import TaskTokenizer
from task_peer import SMALL


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SMALL, tmp_path / "tasks"))


def refused(folder: Path | None, *names: str) -> str:
    with pytest.raises(PenstockError) as told:
        load_tasks(names or ("sums_choice",), None if folder is None else str(folder))
    assert told.value.exit_code == 2
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_file_that_does_not_parse_is_named_with_its_line(folder: Path) -> None:
    (folder / "bad.yaml").write_text("task: bad\nmetric_list:\n  - metric: acc\n   oops: [1\n")
    assert refused(folder).startswith(f"{folder}/bad.yaml:4: not a task in YAML")
    (folder / "bad.yaml").write_text("- just\n- a list\n")
    assert f"{folder}/bad.yaml: not a task in YAML: Expected YAML dict" in refused(folder)


@pytest.mark.slow  # reads the list of all tasks of the harness
def test_an_unknown_task_gets_suggestions(folder: Path) -> None:
    told = refused(folder, "sums_choise")
    assert "there is no task 'sums_choise'. Did you mean 'sums_choice'" in told
    assert f"{folder} has sums_choice, sums_text, sums_write." in told


def test_a_folder_without_tasks_is_told(tmp_path: Path) -> None:
    assert "no such folder" in refused(tmp_path / "none")
    (tmp_path / "file").write_text("")
    assert "is a file, not a folder" in refused(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert "there is no .yaml file in it" in refused(tmp_path / "empty")


def test_missing_data_is_told(folder: Path) -> None:
    (folder / "choice.jsonl").unlink()
    assert "a data file is missing" in refused(folder)


def test_data_on_the_hub_that_cannot_be_reached_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (folder / "sums_text.yaml").read_text().replace("path: json", "path: nobody/nothing")
    text = text.replace("dataset_kwargs:\n  data_files: {test: text.jsonl}\n", "")
    (folder / "sums_text.yaml").write_text(text)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    assert "is on the Hugging Face hub, which cannot be reached" in refused(folder, "sums_text")


def test_data_is_found_beside_its_task_from_any_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = load_tasks(("sums",), str(folder))["tasks"]  # a tag
    assert {name: len(task.test_docs()) for name, task in found.items()} == {
        "sums_choice": 24,
        "sums_write": 6,
    }


def test_the_example_loads() -> None:
    folder = Path(__file__).parents[3] / "examples" / "tasks"
    (task,) = load_tasks(("stdlib_choice",), str(folder))["tasks"].values()
    docs = list(task.test_docs())
    assert all(0 <= doc["answer"] < len(doc["choices"]) for doc in docs)
    assert len({doc["answer"] for doc in docs}) == 4


def test_a_missing_harness_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.evaluator", None)
    assert "pip install 'penstock[evaluate]'" in refused(SMALL)


BAD: list[tuple[str, str]] = [
    ("base --tasks sums_choice --limit 0", "--limit 0: nothing would be evaluated"),
    ("base --tasks sums_choice --batch -1", "--batch -1: nothing would be evaluated"),
    ("base --tasks sums_choice --dtype int3", "--dtype int3: not a format of weights"),
    ("base", "--tasks: no task is named"),
    ("nowhere --tasks sums_choice", "no run 'nowhere'"),
    ("tasks --tasks sums_choice", "neither a run (no run.toml) nor a model (no config.json)"),
    ("bare --tasks sums_choice", "bare has no tokenizer.json, and tasks are text"),
    ("base --tasks sums_beams", "generation_kwargs has num_beams, which is not built"),
    ("base --tasks sums_long", "max_gen_toks = 4096 leaves no room for a question"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bad")
    lora_peer.make_model(place / "base")
    shutil.copytree(place / "base", place / "bare")
    (place / "bare" / "tokenizer.json").unlink()
    shutil.copytree(SMALL, place / "tasks")
    text = (SMALL / "sums_write.yaml").read_text()
    for name, old, new in (
        ("sums_beams", "do_sample: false", "num_beams: 4"),
        ("sums_long", "max_gen_toks: 12", "max_gen_toks: 4096"),
    ):
        changed = text.replace("task: sums_write", f"task: {name}").replace(old, new)
        (place / "tasks" / f"{name}.yaml").write_text(changed)
    return place


@pytest.mark.parametrize(("words", "told"), BAD, ids=[words for words, _ in BAD])
def test_bad_input_is_one_message(
    words: str, told: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(PenstockError) as error:
        CliRunner().invoke(
            app,
            ["evaluate", *words.split(), "--tasks-dir", "tasks"],
            catch_exceptions=False,
        )
    assert told in str(error.value)
    assert error.value.exit_code == 2


def test_a_run_without_a_checkpoint_is_told(run_file: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "new"
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(run_file("new").read_text())
    with pytest.raises(PenstockError, match="no checkpoint yet"):
        penstock.evaluate(folder, ["sums_choice"], tasks_dir=SMALL)
    with pytest.raises(PenstockError, match='checkpoint="last": not a checkpoint; write a step'):
        penstock.evaluate(folder, ["sums_choice"], tasks_dir=SMALL, checkpoint="last")


def test_a_tokenizer_without_an_end_is_told(tmp_path: Path) -> None:
    content = b'{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}'
    with pytest.raises(PenstockError, match="names no token that ends a text"):
        TaskTokenizer({"tokenizer.json": content}, str(tmp_path))


FIELDS: dict[str, Any] = {"evaluate.tasks": ["sums_choice"], "evaluate.tasks_dir": str(SMALL)}


def test_check_and_train_refuse_tasks_with_the_same_words(
    run_file: Callable[..., Path],
) -> None:
    for changes, told in (
        ({"evaluate.tasks_dir": "/nowhere"}, "evaluate.tasks_dir /nowhere: no such folder"),
        ({"guard.mode": "live"}, 'evaluate.tasks: with guard.mode = "live" replicas come and go'),
    ):
        path = run_file("refused", **FIELDS | changes)
        for verb in (penstock.check, penstock.train):
            with pytest.raises(PenstockError) as error:
                verb(path)
            assert told in str(error.value)
    with pytest.raises(PenstockError, match="tasks_limit = 4: needs tasks"):
        penstock.load(run_file("refused", **{"evaluate.tasks_limit": 4}))


def test_a_missing_checkpoint_is_told_by_the_option_that_named_it(tmp_path: Path) -> None:
    folder = made_run(tmp_path, steps=2)
    with pytest.raises(PenstockError, match=r"^--checkpoint 77: there is no such checkpoint"):
        open_run(folder, "77")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"checkpoint": "77"}, "checkpoint=77: there is no such checkpoint"),
        ({"checkpoint": "newst"}, 'checkpoint="newst": not a checkpoint'),
        ({"dtype": "int3"}, 'dtype="int3": not a format of weights'),
    ],
)
def test_what_is_absent_is_told_before_the_harness_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], told: str
) -> None:
    monkeypatch.setattr(several, "load_tasks", lambda *args: pytest.fail("it takes seconds"))
    with pytest.raises(PenstockError, match=told):
        penstock.evaluate(made_run(tmp_path, steps=2).path, ["a"], **options)


def test_scores_of_the_first_documents_say_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    words = "evaluate base --tasks sums_choice --tasks-dir tasks --limit 2"
    done = CliRunner().invoke(app, words.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "base, first 2" in done.output
