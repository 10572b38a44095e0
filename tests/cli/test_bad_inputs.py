"""Bad inputs of every verb: one clear answer, no traceback, nothing lost."""

import hashlib
import json
from pathlib import Path

import pytest

import bad_inputs
from bad_inputs import CASES, Case
from penstock.cli.main import VERBS, load_verb


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> Path:
    """Make a folder of runs with one that has finished."""
    import penstock

    folder = tmp_path_factory.mktemp("bad")
    file = folder / "done.toml"
    file.write_text(bad_inputs.RUN_FILE.replace('"mine"', '"done"'))
    penstock.train(penstock.load(str(file), f"dir={folder}/runs"))
    return folder / "runs"


def contents(folder: Path) -> dict[str, str]:
    """Read what a run must not lose: its file, its journal and its checkpoints."""
    kept = [folder / "run.toml", *folder.glob("journal/*"), *folder.glob("checkpoints/*/*")]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in kept
        if path.is_file()
    }


def test_there_are_many_and_of_every_verb():
    assert len(CASES) >= 150
    asked = {case.verb for case in CASES}
    groups = {name: load_verb(name) for name in ("data", "checkpoint")}
    named = set(VERBS) - set(groups)
    named |= {f"{name} {verb}" for name, group in groups.items() for verb in group.commands}
    assert named - asked <= {"data ls"}, "verbs without a bad input"


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{c.command[:60]}" for n, c in enumerate(CASES)])
def test_it_is_answered_in_words(case: Case, runs: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # typer's boxes break no word that is looked for
    folder = tmp_path / "here"
    bad_inputs.make_folder(folder, runs)
    if case.change:
        case.change(folder)
    before = contents(folder / "runs" / "done")
    known = sorted(path.name for path in (folder / "runs").iterdir())
    answer = bad_inputs.ask(Case(case.command, case.says, case.code), folder)
    assert not answer.crash, answer.crash
    assert "Traceback" not in answer.message
    assert answer.code == case.code, answer.message
    assert case.says.lower() in answer.message.lower()
    assert contents(folder / "runs" / "done") == before
    if (folder / "runs").is_dir():  # a failed input leaves no run behind
        assert sorted(path.name for path in (folder / "runs").iterdir()) == known
    if "--json" in case.command and answer.out:
        json.loads(answer.out)
