"""A relative path of a run file is found from any folder, and the run stays the same run."""

import copy
import json
import pickle
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.found import FoundPath, located
from penstock.run.diff import diff
from penstock.run.fingerprint import fingerprint
from penstock.run.folder import RunFolder, find_run
from penstock.run.load import load
from penstock.run.paths import KEY, located_paths
from penstock.run.save import save, to_table
from penstock.run.schema.run import Run

RUN = """
name = "r"
[model]
module = "own.py:build"
[data]
dataset = "corpus"
chat_template = "chat.jinja"
sequence = 64
[train]
tokens = "1M"
learning_rate = 1e-3
[cluster]
use = "lab.toml"
"""


@pytest.fixture
def ft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run file and what it names."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    folder = tmp_path / "ft"
    (folder / "corpus").mkdir(parents=True)
    for name in ("own.py", "chat.jinja", "lab.toml", "corpus/a.txt"):
        (folder / name).write_text("")
    (folder / "run.toml").write_text(RUN)
    return folder


def _started(run: Run) -> RunFolder:
    """What a launch leaves in the folder of a run."""
    folder = RunFolder(run.folder)
    folder.path.mkdir(parents=True)
    save(run, folder.run_file)
    folder.plan_file.write_text(json.dumps({KEY: located_paths(run)}))
    return folder


def _places(run: Run) -> list[str]:
    given = (run.model.module, run.data.dataset, run.data.chat_template, run.cluster.use)
    return [located(one or "") for one in given]


def _wanted(folder: Path) -> list[str]:
    return [str(folder / name) for name in ("own.py:build", "corpus", "chat.jinja", "lab.toml")]


def test_beside_the_run_file_when_not_in_the_current_folder(ft: Path, monkeypatch) -> None:
    monkeypatch.chdir(ft)
    here = load("run.toml")
    assert not any(isinstance(one, FoundPath) for one in (here.model.module, here.data.dataset))
    monkeypatch.chdir(ft.parent)
    assert _places(load("ft/run.toml")) == _wanted(ft)
    (ft.parent / "corpus").mkdir()  # the current folder goes first, as it always did
    assert located(load("ft/run.toml").data.dataset) == "corpus"


def test_a_run_that_started_finds_its_paths_from_anywhere(ft: Path, monkeypatch) -> None:
    monkeypatch.chdir(ft)
    run = load("run.toml")
    folder, before = _started(run), fingerprint(run)  # the source of own.py is part of it
    (ft.parent / "corpus").mkdir()  # not the one that the run was started with
    monkeypatch.chdir(ft.parent)
    again = load(ft / folder.run_file)
    assert _places(again) == _wanted(ft)
    assert fingerprint(again) == before
    assert diff(again, run) == []


def test_where_it_was_found_outlives_the_life_of_a_run_in_memory(ft: Path, monkeypatch) -> None:
    monkeypatch.chdir(ft.parent)
    run = load("ft/run.toml")
    for one in (
        Run.model_validate(to_table(run)),
        run.model_copy(update={"name": "x"}),
        copy.deepcopy(run),
        pickle.loads(pickle.dumps(run)),
    ):
        assert _places(one) == _wanted(ft)


def test_a_folder_that_was_moved_with_its_runs_is_found(ft: Path, monkeypatch) -> None:
    monkeypatch.chdir(ft)
    folder = _started(load("run.toml"))
    moved = ft.rename(ft.parent / "moved")
    monkeypatch.chdir(ft.parent)
    assert _places(load(moved / folder.run_file)) == _wanted(moved)


def test_a_built_dataset_goes_before_a_folder_beside_the_file(ft: Path, monkeypatch) -> None:
    (ft.parent / "home/datasets/corpus@1f").mkdir(parents=True)
    monkeypatch.chdir(ft.parent)
    assert located(load("ft/run.toml").data.dataset) == "corpus"


def test_the_parts_of_a_mixture_and_globs(ft: Path, monkeypatch) -> None:
    (ft / "mix.toml").write_text(
        '[model]\npreset = "llama-3m"\n[[data.mix]]\ndataset = "corpus/*.txt"\nweight = 1\n'
        '[[data.mix]]\ndataset = "stdlib"\nweight = 1\n'
    )
    monkeypatch.chdir(ft.parent)
    given = [located(spec) for spec, _ in load("ft/mix.toml").data.parts]
    assert given == [str(ft / "corpus/*.txt"), "stdlib"]


def test_the_folder_of_runs_is_found_beside_the_run_file(ft: Path, monkeypatch) -> None:
    monkeypatch.chdir(ft)
    _started(load("run.toml"))
    monkeypatch.chdir(ft.parent)
    assert find_run("ft/run.toml").path.resolve() == ft / "runs/r"


@pytest.mark.parametrize("given", ["\0", "x" * 5000, "a:b:c", "[", "*" * 50])
def test_what_is_no_path_is_left_alone(ft: Path, monkeypatch, given: str) -> None:
    monkeypatch.chdir(ft.parent)
    try:
        run = load("ft/run.toml", [f"data.dataset={json.dumps(given)}"])
    except PenstockError:
        return
    assert located(run.data.dataset) == given


@pytest.mark.parametrize("plan", ["", "{", "[]", '{"paths": 3}', '{"paths": {"corpus": 4}}'])
def test_a_plan_that_cannot_be_read_is_passed_over(ft: Path, monkeypatch, plan: str) -> None:
    (ft / "plan.json").write_text(plan)
    monkeypatch.chdir(ft.parent)
    assert _places(load("ft/run.toml")) == _wanted(ft)
