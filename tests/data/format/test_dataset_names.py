"""A built dataset is named by its name, its version or the first digits of it, everywhere alike."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.data.build import build as build_module
from penstock.data.build.open import open_dataset
from penstock.data.format.locate import built_folder, datasets_home, matching_versions
from penstock.data.read.dataset import Dataset
from penstock.data.recipe.load import load_recipe
from penstock.errors import PenstockError
from penstock.plan.dataset import look
from penstock.run.load import load

RUN = """
name = "r"
[model]
preset = "llama-3m"
vocab = 300
[data]
sequence = 64
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build_module, "default_workers", lambda sources: 1)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mine() -> Dataset:
    Path("mine.txt").write_text("A river runs past the mill. " * 400)
    return open_dataset("mine.txt", vocab=300)


def _folders(*names: str) -> Path:
    for name in names:
        (datasets_home() / name).mkdir(parents=True)
    return datasets_home()


def test_the_first_digits_of_a_version_are_enough() -> None:
    home = _folders("mine@08d1", "mine@08e2", "mine@1", "mine@12", "mi@7")
    assert matching_versions(home, "mine@08d") == ["08d1"]
    assert matching_versions(home, "mine@1") == [
        "1"
    ]  # a whole version beats the beginning of another
    assert matching_versions(home, "mine@08") == ["08d1", "08e2"]
    assert matching_versions(home, "mi") == ["7"]
    assert matching_versions(home, "mine@") == []
    assert matching_versions(home, "m*") == []


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("mine@08", ["has several versions", "mine@08d1 ", "mine@08e2 "]),
        ("mine@5", ["'mine@5' is not in", "There: mine@08d1, mine@08e2."]),
        ("mine@", ["'mine@' is not in", "There: mine@08d1, mine@08e2."]),
        ("mime", ["'mime' is not in", "Did you mean 'mine'?"]),
    ],
)
def test_an_ambiguous_name_lists_the_existing_versions(spec: str, told: list[str]) -> None:
    home = _folders("mine@08d1", "mine@08e2")
    with pytest.raises(PenstockError) as caught:
        built_folder(home, spec)
    for part in told:
        assert part in str(caught.value)
    if "several" in told[0]:
        assert "mine@1" not in str(caught.value)


def test_every_reader_of_names_takes_a_short_version(mine: Dataset, tmp_path: Path) -> None:
    short = mine.id[:8]  # mine@ and three digits
    assert open_dataset(short).id == mine.id
    Path("run.toml").write_text(f'{RUN}dataset = "{short}"\n')
    assert look(load("run.toml")).sizes is not None
    Path("mixed.toml").write_text(
        RUN + "".join(f'[[data.mix]]\ndataset = "{short}"\nweight = 1\n' for _ in range(2))
    )
    assert look(load("mixed.toml")).sizes is not None
    Path("other.txt").write_text("The mill stands still. " * 200)
    Path("other.toml").write_text(
        f'[[source]]\npath = "other.txt"\n[clean]\npreset = "none"\n[tokens]\ntokenizer = "{short}"'
    )
    other = build_module.build(load_recipe("other.toml"))
    assert other.manifest.tokenizer == mine.manifest.tokenizer
    for verb in (["show"], ["verify"], ["sample"], ["diff", short], ["copy"]):
        where = [(tmp_path / "bucket").as_uri()] if verb == ["copy"] else []
        done = CliRunner().invoke(app, ["data", *verb, short, *where, "--json"])
        assert done.exit_code == 0, (verb, done.output, done.exception)
    for verb in ("check", "plan"):
        done = CliRunner().invoke(app, [verb, "run.toml"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert "not built here" not in done.output


def test_raw_files_are_built_as_a_run_builds_them(mine: Dataset) -> None:
    def build(*words: str) -> str:
        done = CliRunner().invoke(app, ["data", "build", *words, "--json", "-q"])
        assert done.exit_code == 0, (done.output, done.exception)
        return str(json.loads(done.stdout)["dataset"])

    assert build("mine.txt", "tokens.vocab=300") == mine.id
    Path("folder").mkdir()
    Path("mine.txt").rename("folder/a.txt")
    of_run = open_dataset("folder", vocab=300).id
    assert build("folder", "tokens.vocab=300") == of_run
    assert build("folder/*.txt", "tokens.vocab=300", "name=folder") == of_run


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gone"], "gone: no such file; name raw files, or write a TOML file that has [[source]]"),
        (["gone.toml"], "gone.toml: no such file"),
        (["empty"], "names no file"),
        (["*.tsv"], "names no file"),
        (["a.csv", "tokens.vocabulary=3"], "command line: tokens.vocabulary: no such field"),
        (["a.csv", "tokens.vocab=3"], "command line: tokens.vocab = 3: too few tokens"),
        (["built"], "built is a built dataset already"),
        (["header.csv"], "no document is left. The files of its sources hold no row."),
        (["none.json"], "no document is left. The files of its sources hold no row."),
        (["a.csv"], "no single column 'text' in the first row; found id, body"),
    ],
)
def test_a_dataset_that_cannot_be_built_is_reported(words: list[str], told: str) -> None:
    Path("empty").mkdir()
    Path("built").mkdir()
    Path("built/manifest.json").write_text("{}")
    Path("header.csv").write_text("text\n")
    Path("none.json").write_text("[]")
    Path("a.csv").write_text("id,body\n1,a\n")
    done = CliRunner().invoke(app, ["data", "build", *words])
    assert isinstance(done.exception, PenstockError), done.output
    assert told in str(done.exception)
