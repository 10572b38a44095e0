"""Steps of the user's own in a recipe: what they may say, what goes wrong, what is hashed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.data.build import build as build_module
from penstock.data.build.build import build
from penstock.data.build.record import BuildRecord, read_build_record
from penstock.data.read.dataset import Dataset
from penstock.data.recipe.load import load_recipe
from penstock.errors import PenstockError
from penstock.plan.dataset import look
from penstock.run.load import load

PAGES = [f"The mill at the river number {n} grinds corn all day long." for n in range(12)]
KEEP = """
def keep(text, row):
    if row["n"] % 3 == 0:
        return False
    if row["n"] == 4:
        return text.replace("mill", "MILL")
    return True if row["n"] % 2 else None
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build_module, "default_workers", lambda sources: 1)
    monkeypatch.chdir(tmp_path)
    rows = [{"text": text, "n": n} for n, text in enumerate(PAGES)]
    Path("pages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _recipe(code: str, *modules: str, more: str = "", name: str = "p.toml") -> Path:
    Path("my.py").write_text(code)
    steps = "".join(f'[[clean.step]]\nmodule = "{one}"\n{more}\n' for one in modules)
    Path(name).write_text(
        f'[[source]]\npath = "pages.jsonl"\n[clean]\npreset = "none"\n{steps}'
        "[dedup]\nnear = false\n[tokens]\nvocab = 300\n"
    )
    return Path(name)


def _built(
    code: str, *modules: str, more: str = "", workers: int = 1
) -> tuple[Dataset, BuildRecord]:
    dataset = build(load_recipe(_recipe(code, *modules, more=more)), workers=workers)
    record = read_build_record(dataset.folder)
    assert record
    return dataset, record


def test_a_step_keeps_drops_and_replaces() -> None:
    dataset, record = _built(KEEP, "my.py:keep")
    assert dataset.manifest.counts["clean"] == {"kept": 8, "step.keep": 4}
    assert record.changes["step.keep"] == 1
    assert any("MILL" in sample.text for sample in record.kept)
    dropped = record.dropped["clean: step.keep"]
    assert {sample.text for sample in dropped} == set(PAGES[0::3])
    done = CliRunner().invoke(app, ["data", "sample", dataset.id, "--dropped", "keep", "-n", "9"])
    assert done.exit_code == 0
    assert PAGES[3] in done.stdout


def test_steps_are_asked_in_order_after_the_others() -> None:
    code = (
        "def first(text, row):\n    return text + ' seen'\n"
        "def second(text, row):\n    return text.endswith('seen') and '<EMAIL>' in text\n"
    )
    Path("pages.jsonl").write_text('{"text": "Mail jane@example.com now"}\n{"text": "No mail"}\n')
    path = _recipe(code, "my.py:first", "my.py:second")
    path.write_text(path.read_text().replace('"none"', '"code"'))
    dataset = build(load_recipe(path))
    assert dataset.manifest.counts["clean"] == {"kept": 1, "step.second": 1}


def test_the_version_depends_on_the_file_and_not_on_its_path(tmp_path: Path) -> None:
    first, _ = _built(KEEP, "my.py:keep")
    assert _built(KEEP, "my.py:keep")[0].id == first.id
    assert _built(KEEP + "# other", "my.py:keep")[0].id != first.id
    Path("deep").mkdir()
    (tmp_path / "deep" / "your.py").write_text(KEEP)
    assert _built("", "deep/your.py:keep")[0].id == first.id
    assert _built(KEEP, "my.py:keep", more='on_error = "drop"')[0].id != first.id


def test_a_recipe_without_steps_keeps_its_old_identity() -> None:
    path = Path("plain.toml")
    path.write_text('[[source]]\npath = "pages.jsonl"\n')
    assert "steps" not in load_recipe(path).identity()["clean"]  # type: ignore[operator]


def test_workers_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "PART_BYTES", 800)
    one, _ = _built(KEEP, "my.py:keep")
    monkeypatch.setenv("PENSTOCK_HOME", "other")
    two, _ = _built(KEEP, "my.py:keep", workers=2)
    assert one.id == two.id


def test_the_bytes_of_the_file_that_are_hashed_are_run() -> None:
    recipe = load_recipe(_recipe(KEEP, "my.py:keep"))
    before = recipe.identity()
    Path("my.py").write_text("def keep(text, row):\n    return False\n")
    assert recipe.identity() == before
    assert build(recipe).manifest.counts["clean"]["kept"] == 8


def test_an_error_drops_the_document_when_asked_to() -> None:
    code = "def keep(text, row):\n    return [True][row['n'] // 6]\n"
    dataset, record = _built(code, "my.py:keep", more='on_error = "drop"')
    assert dataset.manifest.counts["clean"] == {"kept": 6, "step.keep.error": 6}
    (sample, *_) = record.dropped["clean: step.keep.error"]
    assert sample.detail == "IndexError: list index out of range at line 2"


def test_columns_and_messages_are_in_the_row_and_stay_as_they_are() -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    rows = [{"messages": talk, "stars": n} for n in range(4)]
    Path("chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("my.py").write_text(
        "def keep(text, row):\n"
        "    row['messages'][1]['content'] = 'changed'\n"
        "    return row.pop('stars') > 1 and 'Ho' in text\n"
    )
    Path("c.toml").write_text(
        '[[source]]\npath = "chats.jsonl"\nmessages = "messages"\n[[clean.step]]\n'
        'module = "my.py:keep"\n[dedup]\ndocuments = false\nnear = false\n[tokens]\nvocab = 300\n'
    )
    dataset = build(load_recipe("c.toml"))
    assert dataset.manifest.counts["clean"] == {"kept": 2, "step.keep": 2}
    record = read_build_record(dataset.folder)
    assert record
    assert all("Ho" in one.text for one in record.kept)
    assert all("stars" in one.columns for one in record.kept)


@pytest.mark.parametrize(
    ("code", "module", "told"),
    [
        ("", "gone.py:keep", "the file cannot be read: No such file"),
        ("x = 1", "my.py:keep", "the file has no function 'keep'; it has: none"),
        ("def kept(a, b): pass", "my.py:keep", "it has: kept"),
        ("keep = 3", "my.py:keep", "keep is int, not a function"),
        ("def keep(text): return True", "my.py:keep", "called as keep(text, row)"),
        ("def keep(a, b, c): return True", "my.py:keep", "missing a required argument: 'c'"),
        ("def keep(text, row): return 3", "my.py:keep", "gave int for a text to try it with"),
        ("async def keep(text, row): return True", "my.py:keep", "gave coroutine"),
        ("def keep(text, row) return", "my.py:keep", "is not Python: expected ':' at line 1"),
        ("a = 1\nimport beside", "my.py:keep", "No module named 'beside' at line 2"),
        ("1 / 0", "my.py:keep", "cannot be loaded: ZeroDivisionError: division by zero at line 1"),
        ("raise SystemExit(3)", "my.py:keep", "cannot be loaded: SystemExit: 3"),
        ("x = 1\0", "my.py:keep", "is not Python: "),
        ("", ".:keep", "not a file and a function"),
        ("", "my.py", 'not a file and a function; write "my_filter.py:keep"'),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_bad_step_is_reported_before_anything_is_built(code: str, module: str, told: str) -> None:
    Path("beside.py").write_text("")
    path = _recipe(code, module)
    with pytest.raises(PenstockError) as caught:
        build(load_recipe(path))
    assert told in str(caught.value)
    assert str(caught.value).count("clean.step: module") <= 1  # told once
    assert not list(Path("home/datasets").glob(".building*"))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return {'a': 1}[row['n'] and 'b' or 'a'] == 1", "raised KeyError: 'b' at line 2 of"),
        ("return row['n'] if row else None", "gave int for the document pages.jsonl:1"),
        ("return '\\ud800' if row else None", "not valid Unicode"),
    ],
)
def test_an_error_in_a_step_names_the_document(body: str, told: str) -> None:
    path = _recipe(f"def keep(text, row):\n    {body}\n", "my.py:keep")
    with pytest.raises(PenstockError) as caught:
        build(load_recipe(path))
    assert told in str(caught.value)
    assert "pages.jsonl:" in str(caught.value)
    assert caught.value.exit_code == 2


def test_two_steps_of_one_name_are_refused() -> None:
    path = _recipe(KEEP, "my.py:keep", "other.py:keep")
    with pytest.raises(PenstockError, match="two steps are called 'keep'"):
        load_recipe(path)


def test_a_plan_reports_a_step_whose_file_is_missing() -> None:
    _recipe(KEEP, "gone.py:keep")
    Path("run.toml").write_text('[model]\npreset = "llama-3m"\n[data]\ndataset = "p.toml"\n')
    (missing,) = look(load("run.toml")).missing
    assert "the file cannot be read" in missing


def test_output_of_a_step_does_not_mix_with_output_of_the_build(
    capfd: pytest.CaptureFixture[str],
) -> None:
    _built("def keep(text, row):\n    print('hello')\n    return True\n", "my.py:keep")
    said = capfd.readouterr()
    assert "hello" not in said.out
    assert "hello" in said.err
