"""Secrets are planted everywhere they can be, and searched in everything that is shown or kept."""

import json
import re
import stat
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partialmethod
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hook_server import Hook, hook
from made_run import made_run
from penstock.cli.main import app
from penstock.errors import PenstockError
from penstock.launch.prepare.resume import decide_resume
from penstock.launch.start import start
from penstock.launch.vary import variants
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.process import OutletProcess
from penstock.watch.outlets.tracker import TrackerOutlet
from penstock.watch.outlets.wandb_log import WandbLog
from penstock.watch.terminal.display import TerminalDisplay
from penstock.watch.terminal.screen import Footer, RunScreen
from penstock.watch.web.run_cache import RunCache
from penstock.watch.web.server import open_server
from range_server import serve

S = "s3cr3tValue99"  # part of every secret that is planted
VARIABLES = {
    "AWS_SECRET_ACCESS_KEY": f"{S}/aws",
    "HF_TOKEN": f"hf-{S}",
    "WANDB_API_KEY": f"{S}-wandb",
    "AZURE_STORAGE_SAS_KEY": f"{S}-sas",
    "MY_HOOK": f"https://example.org/{S}",
}
SIGNED = f"https://user:{S}@host.invalid/x?X-Amz-Signature={S}&sas={S}"
# A module whose code prints what it should not, as libraries do when something fails.
OWN = f"""
import os, sys, torch
class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(300, 8), torch.nn.Linear(8, 300)
    def forward(self, tokens):
        return self.head(self.embed(tokens))
def build():
    print("reading {SIGNED}", os.environ["HF_TOKEN"], flush=True)
    print("401:", os.environ["AWS_SECRET_ACCESS_KEY"], file=sys.stderr)
    return Own()
"""
# The files of a run that may hold a secret, with the reason.
MAY_HOLD = {"run.toml": "a resume compares it, and the ranks read it"}


@dataclass
class Face:
    """Where a secret could be seen."""

    name: str
    shown: str | bytes

    def check(self) -> None:
        text = self.shown if isinstance(self.shown, str) else self.shown.decode("utf-8", "replace")
        # A narrow table folds a long value.
        found = re.search("\\s*".join(map(re.escape, S)), text)
        assert not found, f"{self.name} shows {text[max(0, found.start() - 80) : found.end()]!r}"


@dataclass
class Planted:
    """A finished run with secrets in its file and in its environment."""

    file: Path
    folder: RunFolder
    hook: Hook
    printed: str  # by `penstock train` as plain lines


@pytest.fixture(scope="module")
def planted(home: Path, tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    """Train once, for four steps; a URL with a password leads to the dataset."""
    root = tmp_path_factory.mktemp("planted")
    (root / "own.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        patch.setenv("TRACKIO_DIR", str(root / "trackio"))
        # The command waits for ten seconds; on a busy machine trackers are still at work then.
        patch.setattr(OutletProcess, "ended", partialmethod(OutletProcess.ended, 200.0))
        url, _ = stack.enter_context(serve(home / "datasets"))
        hooked = stack.enter_context(hook())
        file = root / "run.toml"
        file.write_text(
            f'name = "planted"\ndir = "{root}/runs"\n[model]\nmodule = "{root}/own.py:build"\n'
            f'[data]\ndataset = "{url.replace("://", f"://user:{S}@")}/{tiny}"\nsequence = 16\n'
            "[train]\nsteps = 4\nbatch_tokens = 64\nlearning_rate = 1e-3\n"
            '[evaluate]\nevery = "2 steps"\n[cluster]\naccelerators = 1\n'
            f'[guard]\ndurable = "file://user:{S}@localhost{root}/durable"\n'
            f'[log]\nwebhook = "{hooked.url}/{S}"\ntensorboard = true\ntrackio = "planted"\n'
        )
        said = StringIO()
        display = TerminalDisplay(Console(file=said, width=200))
        folder = start(load(file), listener=display)
        display.close()
        yield Planted(file, folder, hooked, said.getvalue())


def say(*words: str) -> str:
    """Return everything that a verb prints, its error included."""
    done = CliRunner().invoke(app, words)
    error = f"error: {done.exception}" if isinstance(done.exception, PenstockError) else ""
    assert error or done.exit_code == 0, done.output
    return done.stdout + done.stderr + error


def test_no_file_of_the_run_holds_a_secret_but_those_that_must(planted: Planted) -> None:
    assert RunView(planted.folder).status == "done"
    files = [path for path in planted.folder.path.rglob("*") if path.is_file()]
    names = {str(path.relative_to(planted.folder.path)) for path in files}
    assert {"run.toml", "plan.json", "logs/outlets.log"} <= names
    assert any(name.startswith("checkpoints/") for name in names)
    for path in files:
        name = str(path.relative_to(planted.folder.path))
        assert S not in name
        if name in MAY_HOLD:
            assert S in path.read_text(), f"{name} is allowed to hold the secret and does not"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        else:
            Face(name, path.read_bytes()).check()
    log = next(path for path in files if path.name == "rank-0.out").read_text()
    assert "reading https://…@host.invalid/x?X-Amz-Signature=…&sas=… …" in log
    assert any(name.startswith("tensorboard/events.out") for name in names)
    root = planted.folder.path.parent.parent
    assert (root / "trackio" / "planted.db").exists()
    for path in [*root.joinpath("durable").rglob("*"), *root.joinpath("trackio").rglob("*")]:
        if path.is_file():
            Face(str(path), path.read_bytes()).check()


def test_no_face_of_the_run_shows_a_secret(planted: Planted, tmp_path: Path) -> None:
    folder, root = planted.folder, str(planted.folder.path.parent)
    Face("train", planted.printed).check()
    Face("webhook", json.dumps(planted.hook.got)).check()
    assert planted.hook.got, "the webhook was not called"
    for words in (
        ("ls",), ("ls", "--json"), ("status", "planted"), ("status", "planted", "--json"),
        ("report", "planted"), ("report", "planted", "--json"), ("logs", "planted"),
        ("report", "planted", "--html", str(tmp_path / "report.html")),
        ("watch", "planted", "--json"), ("stop", "planted"), ("export", "planted"),
        ("checkpoint", "list", "planted"), ("checkpoint", "list", "planted", "--json"),
        ("checkpoint", "show", "planted"), ("checkpoint", "show", "planted", "--json"),
        ("checkpoint", "verify", "planted", "--json"),
    ):  # fmt: skip
        Face(" ".join(words), say(*words, "--dir", root)).check()
    page = (tmp_path / "report.html").read_text()
    Face("report.html", page).check()
    assert "webhook = " in page  # the run file is there, without its secret
    file = str(planted.file)
    for words in (
        ("check", file),
        ("check", file, "--json"),
        ("plan", file),
        ("plan", file, "--json"),
    ):
        Face(" ".join(words), say(*words)).check()
    told = say("check", file, f"log.webhook={planted.hook.url}/{S}/other")
    assert "penstock train" in told
    Face("the next command", told).check()
    shown = Console(file=StringIO(), width=160, height=50, force_terminal=True)
    shown.print(RunScreen(RunFacts(RunView(folder)), Footer()))
    Face("screen", shown.file.getvalue()).check()  # type: ignore[attr-defined]


def test_no_answer_of_the_page_shows_a_secret(planted: Planted) -> None:
    server = open_server(RunCache(str(planted.folder.path.parent)), port=0)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        for path in ("", "api/runs", "api/runs?run=planted", "metrics"):
            with urllib.request.urlopen(f"{server.address()}{path}", timeout=30) as answer:
                Face(path, answer.read()).check()
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()


def test_wandb_is_sent_no_secret(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is a stand-in: what it is given is what it would send."""
    given: dict[str, object] = {}

    def init(**words: object) -> SimpleNamespace:
        given.update(words)
        return SimpleNamespace(define_metric=lambda *names, **how: None, url="an address")

    client = SimpleNamespace(init=init, Settings=lambda **words: words)
    monkeypatch.setitem(sys.modules, "wandb", client)
    TrackerOutlet(WandbLog("project", print)).begin(RunView(planted.folder))
    assert given["config"]["data"]["sequence"] == 16  # type: ignore[index]
    Face("wandb", json.dumps(given, default=str)).check()


def test_a_changed_file_a_fork_and_a_sweep_show_no_secret(planted: Planted) -> None:
    dataset = f"data.dataset=https://user:{S}@other.invalid/set"
    with pytest.raises(PenstockError, match="exists with another run file") as refused:
        decide_resume(planted.folder, load(planted.file, [dataset]))
    Face("the file changed", str(refused.value)).check()
    assert "https://…@other.invalid/set" in str(refused.value)
    changed = f"log.webhook={planted.hook.url}/{S}/new"
    Face("a safe change", str(say("train", str(planted.file), changed))).check()
    Face("fork", say("train", str(planted.file), "--fork", "other", dataset)).check()
    for field in (
        "log.webhook=http://a.invalid/{0},http://b.invalid/{0}",
        "data.dataset=s3://u:{0}@a/b,s3://u:{0}@b/c",
    ):
        for one in variants(str(planted.file), [], [field.format(S)]):
            Face("a variant", f"{one.run.name} {one.values}").check()
    with pytest.raises(PenstockError, match="vary no secret"):
        variants(
            str(planted.file), [], [f"log.webhook=http://a.invalid/{S}1,http://a.invalid/{S}2"]
        )


def test_a_run_goes_on_with_the_dataset_that_needs_a_password(planted: Planted) -> None:
    """The plan does not keep the password: it comes from the run file."""
    from penstock.data.read.open import open_planned

    plan = planted.folder.read_plan()
    assert "://…@" in plan["dataset"]["at"]
    (found,) = open_planned(load(planted.folder.run_file), plan["dataset"])
    assert S in found.where


@pytest.mark.parametrize(
    "field",
    ["dir", "model.from", "data.dataset", "data.cache", "cluster.use", "guard.durable",
     "log.mlflow", "log.tensorboard", "log.wandb", "log.webhook", "train.precision", "no.such"],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["check", "plan"])
def test_no_refusal_shows_a_secret(
    verb: str, field: str, run_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", VARIABLES["WANDB_API_KEY"])
    words = (str(run_file()), f"{field}={SIGNED.replace('https', 'httpx')}")
    Face(f"{verb} {field}", say(verb, *words)).check()
    Face(f"{verb} {field} --json", say(verb, *words, "--json")).check()
    Face(f"{verb} {field} without =", say(verb, words[0], f"{field} {SIGNED}")).check()


def test_a_file_that_is_no_toml_shows_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    for line in (
        f"webhook = https://a.invalid/{S}",
        f'log.webhook = "https://a.invalid/{S}',
        f"x = {SIGNED}",
    ):
        file.write_text(f"[log]\n{line}\n")
        told = say("check", str(file))
        assert "not TOML" in told
        Face(line, told).check()


def test_a_run_of_an_earlier_version_shows_no_secret(tmp_path: Path) -> None:
    """Its journal and its plan may hold what is redacted today."""
    folder = made_run(tmp_path, "old", killed_at=20)
    text = folder.run_file.read_text()
    folder.run_file.write_text(f'{text}[log]\nwebhook = "https://a.invalid/{S}"\n')
    folder.plan_file.write_text(
        json.dumps(folder.read_plan() | {"dataset": {"id": "a@1", "at": SIGNED}})
    )
    journal = folder.journal / "supervisor.events"
    old = journal.read_text().replace("killed by SIGKILL", f"refused by {SIGNED}")
    assert S in old
    journal.write_text(old)
    html = tmp_path / "old.html"
    for words in (
        ("report", "old"), ("report", "old", "--json"), ("report", "old", "--html", str(html)),
        ("watch", "old", "--json"), ("status", "old", "--json"),
    ):  # fmt: skip
        Face(" ".join(words), say(*words, "--dir", str(tmp_path))).check()
    Face("html", html.read_text()).check()
    folder.run_file.write_text(f'no_such_field = 1\n[log]\nwebhook = "https://a.invalid/{S}"\n')
    say("report", "old", "--html", str(html), "--dir", str(tmp_path))
    Face("html of a file that cannot be read", html.read_text()).check()


def test_only_a_file_with_a_secret_is_for_its_owner_alone(
    run_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Colleagues look at each other's runs in a shared folder."""
    for overrides, private in (([], False), ([f"log.webhook=https://a.invalid/{S}"], True)):
        save(load(run_file(), overrides), tmp_path / "saved.toml")
        assert ((tmp_path / "saved.toml").stat().st_mode & 0o077 == 0) is private


def test_the_journal_is_redacted_when_it_is_written(tmp_path: Path) -> None:
    journal = SupervisorJournal(tmp_path)
    journal.event("fault", reason=f"GET {SIGNED} failed", deep=[{"at": SIGNED}])
    journal.close()
    text = (tmp_path / "supervisor.events").read_text()
    assert "failed" in text
    Face("journal", text).check()


def test_a_dataset_and_its_record_hold_no_password(tmp_path: Path) -> None:
    """A manifest and a record travel with the dataset."""
    from penstock.data.build.open import datasets_home

    pages = tmp_path / "pages"
    pages.mkdir()
    rows = [
        {"text": f"The river rises in the mountains, and it is number {n}. " * 8} for n in range(40)
    ]
    (pages / "docs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with serve(pages) as (url, _):
        address = url.replace("://", f"://user:{S}@")
        recipe = tmp_path / "rivers.toml"
        recipe.write_text(
            f'[[source]]\npath = "{address}/docs.jsonl"\n[clean]\npreset = "none"\n'
            "[dedup]\nnear = false\n[tokens]\nvocab = 300\n"
        )
        Face("build", say("data", "build", str(recipe), "--workers", "1")).check()
        Face("build --json", say("data", "build", str(recipe), "--workers", "1", "--json")).check()
        refused = say(
            "data", "build", str(recipe), f'source=[{{path="{address}/none.jsonl?sig={S}"}}]'
        )
        assert "error" in refused
        Face("a refused source", refused).check()
    (folder,) = datasets_home().glob("rivers@*")
    assert (folder / "build.json").is_file()
    for path in datasets_home().rglob("*"):
        if path.is_file():
            Face(path.name, path.read_bytes()).check()
    html = tmp_path / "rivers.html"
    for words in (
        ("show", "rivers"), ("show", "rivers", "--json"), ("show", "rivers", "--html", str(html)),
        ("ls",), ("ls", "--json"), ("verify", "rivers", "--json"), ("diff", "rivers", "rivers"),
        ("diff", "rivers", "rivers", "--json"), ("sample", "rivers"),
    ):  # fmt: skip
        Face(" ".join(words), say("data", *words)).check()
    Face("html", html.read_text()).check()
    assert "://…@127.0.0.1" in html.read_text()
