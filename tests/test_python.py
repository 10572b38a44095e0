"""The Python functions: docs/python.md runs as one script, and a run can be named in every way."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import penstock
from made_run import made_run
from penstock.errors import PenstockError
from penstock.launch.prepare import own_code
from penstock.run.fingerprint import fingerprint
from penstock.run.folder import RunFolder
from penstock.run.launch_record import LaunchRecord
from penstock.run.schema.run import Run
from penstock.train.rank import refuse_other_code
from penstock.watch.outlets.callbacks import Callbacks

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "python.md"


def script(dataset: str = "stdlib") -> str:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return "\n".join(blocks).replace('"stdlib"', f'"{dataset}"')


def test_the_page_runs_as_a_script_without_a_guard(tmp_path: Path, tiny: str) -> None:
    (tmp_path / "page.py").write_text(
        script(tiny) + "\nprint('report', report.to_json()['status'])\n"
    )
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "report done" in done.stdout
    assert "no such file" in done.stdout  # the mistake that the page shows
    runs = {folder.name: penstock.report(folder) for folder in (tmp_path / "runs").iterdir()}
    assert {name: report.status for name, report in runs.items()} == {
        "small": "done",
        "smooth": "done",
    }
    assert runs["smooth"].weights_hash != runs["small"].weights_hash
    assert (tmp_path / "small-hf" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_page_is_typed(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(script())
    words = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "page.py"]
    path = {"MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    wrong = script() + "\npenstock.train(run, on_event=3)\nreport.nothing\npenstock.nothing\n"
    (tmp_path / "page.py").write_text(wrong)
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True, check=False
    )
    assert "Found 3 errors" in done.stdout, done.stdout


TABLE: dict[str, Any] = {"name": "x", "model": {"preset": "llama-3m"}, "train": {"tokens": "1M"}}


@pytest.mark.parametrize(
    ("overrides", "fields"),
    [
        (("train.tokens=2M", "data.sequence=64"), {}),
        (({"train.tokens": "2M", "data.sequence": 64},), {}),
        (({"train": {"tokens": "2M"}, "data": {"sequence": 64}},), {}),
        (("train.tokens=2M",), {"data": {"sequence": 64}}),
        (
            ({"train.tokens": None, "train.steps": 9}, {"train.steps": None}, "train.tokens=2M"),
            {"data.sequence": 64},
        ),
    ],
)
def test_overrides_are_strings_tables_or_keywords(
    overrides: tuple[Any, ...], fields: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[model]\npreset = "llama-3m"\n[train]\ntokens = "1M"\n')
    for source in (file, str(file), TABLE, penstock.load(TABLE)):
        run = penstock.load(source, *overrides, **fields)
        assert (run.name, run.train.tokens, run.sequence) == ("x", 2_000_000, 64)
    assert TABLE["train"] == {"tokens": "1M"}  # not changed


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([{"train": {"tokns": 1}}], "override: train.tokns: no such field. Did you mean 'tokens'?"),
        ([{"train.tokens": "2X"}], 'override: train.tokens = "2X": not a quantity'),
        ([["train.tokens=1"]], "override: ['train.tokens=1']: not an override"),
        (["train.tokens"], "command line: 'train.tokens': not an override"),
    ],
)
def test_a_wrong_override_is_one_error_that_names_it(overrides: list[Any], said: str) -> None:
    with pytest.raises(PenstockError) as raised:
        penstock.load(TABLE, *overrides)
    assert said in str(raised.value)


def test_a_table_without_a_model_says_what_is_missing() -> None:
    with pytest.raises(PenstockError, match="run: name: missing"):
        penstock.load({"train": {"tokens": "1M"}})


def test_plan_and_train_are_functions_and_the_packages_of_the_same_name_import() -> None:
    from penstock.plan.make import make
    from penstock.train.loop import build

    assert callable(build)
    assert callable(make)
    assert isfunction(penstock.plan)
    assert isfunction(penstock.train)
    assert penstock.plan(penstock.load(TABLE)).to_json()["run"] == "x"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = penstock.nothing
    assert penstock.Run is Run


def test_a_report_has_the_numbers_of_the_json(tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    report = penstock.report(folder.path)
    told = report.to_json()
    assert (report.status, report.step, report.folder) == ("done", 40, folder.path)
    assert report.validation == ((20, 3.0), (40, 3.0))
    assert told["val_loss"] == report.validation_loss == 3.0
    assert told["rank_s"] == report.ledger.total


class Seen:
    """A callback that keeps what it was told."""

    def __init__(self, raises: dict[str, Exception]) -> None:
        self.events: list[penstock.Event] = []
        self.raises = raises

    def __call__(self, event: penstock.Event) -> None:
        self.events.append(event)
        if event.kind in self.raises:
            raise self.raises[event.kind]


def told(tmp_path: Path, seen: Seen, **made: Any) -> RunFolder:
    """Follow a run that is written while somebody listens."""
    folder = RunFolder(tmp_path / "made")
    folder.make()
    folder.run_file.write_text('name = "made"\n[model]\npreset = "llama-3m"\n')
    callbacks = Callbacks(seen)
    callbacks.launching(folder, {"steps": 40})
    made_run(tmp_path, **made)
    callbacks.close()
    return folder


def test_a_callback_gets_all_events_in_order(tmp_path: Path) -> None:
    seen = Seen({})
    told(tmp_path, seen, killed_at=20, ended="done")
    kinds = [event.kind for event in seen.events]
    assert kinds[0] == "launching"
    assert kinds[-1] == "finished"
    assert {"step", "evaluation", "fault", "restart"} < set(kinds)
    evaluated = [e for e in seen.events if isinstance(e, penstock.Evaluation)]
    assert [(e.step, e.loss) for e in evaluated] == [(20, 3.0), (20, 3.0), (40, 3.0)]
    (fault,) = [e for e in seen.events if isinstance(e, penstock.Fault)]
    assert (fault.rank, fault.action) == (1, "restart")
    steps = [e for e in seen.events if isinstance(e, penstock.Step)]
    assert (steps[-1].step, steps[-1].tokens) == (40, 2048 * 40)
    last = seen.events[-1]
    assert isinstance(last, penstock.Finished)
    assert (last.status, last.step) == ("done", 40)


def test_an_exception_is_reported_once_and_stop_asks_the_run_to_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Seen({"evaluation": ValueError("oops"), "fault": penstock.Stop()})
    folder = told(tmp_path, seen, killed_at=20)
    assert capsys.readouterr().err.count("ValueError: oops") == 1
    assert seen.events[-1].kind == "finished"  # it is still called
    assert folder.control_requests()["stop"]


def test_no_stop_is_requested_without_a_keypress(tmp_path: Path) -> None:
    assert not told(tmp_path, Seen({})).control_requests()["stop"]


SMOOTH = 0.1
HELD = object()


def file_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits, targets, reduction="none", label_smoothing=SMOOTH)


def held_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits, targets, reduction="none") if HELD else logits[:, 0]


def test_a_function_of_a_file_is_named_by_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert own_code.spec_of(file_loss) == "tests/test_python.py:file_loss"


def test_a_function_of_the_script_that_runs_is_written_to_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_loss, "__module__", "__main__")
    spec = own_code.spec_of(file_loss)
    assert spec == own_code.spec_of(file_loss)
    path, _, name = spec.rpartition(":")
    names: dict[str, Any] = {}
    exec(Path(path).read_text(), names)  # it stands alone
    logits, targets = torch.randn(5, 7), torch.randint(7, (5,))
    assert torch.equal(names[name](logits, targets), file_loss(logits, targets))


def test_a_function_that_ranks_cannot_import_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def inner(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return logits[:, 0]

    monkeypatch.setattr(held_loss, "__module__", "__main__")
    wrong: list[tuple[Callable[..., Any], str]] = [
        (lambda logits, targets: logits, "a lambda"),
        (inner, "defined inside of something"),
        (torch.nn.CrossEntropyLoss(), "not a function"),
        (held_loss, "it uses `HELD`, which only this process has"),
    ]
    for loss, said in wrong:
        with pytest.raises(PenstockError, match=re.escape(said)):
            own_code.spec_of(loss)


OWN = [
    {"train.loss": "mine.py:mine"},
    {"model": {"module": "mine.py:mine", "preset": None}, "train.learning_rate": 0.1},
]


@pytest.mark.parametrize("fields", OWN)
def test_a_run_whose_own_code_has_changed_is_refused(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text("def mine(logits, targets): return logits[:, 0]\n")
    run = penstock.load(TABLE, fields)
    # Of a new run, or one that began before this was kept.
    hashes, numbers = own_code.check_code_unchanged(run, LaunchRecord()), fingerprint(run)
    before = LaunchRecord.from_json(hashes)
    assert own_code.check_code_unchanged(run, before) == hashes == before.sources
    refuse_other_code(run, hashes)
    file.write_text("def mine(logits, targets): return logits[:, 1]\n")
    with pytest.raises(PenstockError, match=r"mine\.py has changed since run 'x' began"):
        own_code.check_code_unchanged(run, before)
    with pytest.raises(PenstockError, match=r"mine\.py has changed since the run was launched"):
        refuse_other_code(run, hashes)
    assert fingerprint(run) != numbers


@pytest.mark.parametrize("source", [None, 5, ["run.toml"]])
def test_an_argument_that_is_no_run_gets_a_readable_error(source: Any) -> None:
    with pytest.raises(PenstockError, match="pass the path of a run file, a dict or a Run"):
        penstock.load(source)
