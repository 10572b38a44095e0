"""Run folders of any content: the page and the verbs that show a run give readable errors."""

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_run import made_run
from penstock.cli import main
from penstock.errors import PenstockError
from penstock.guard.detect import failpoints
from penstock.ledger.journal.events import NEEDED
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.run.folder import RunFolder
from penstock.watch.facts.run_view import RunView
from penstock.watch.web import metrics
from penstock.watch.web.run_cache import RunCache
from penstock.watch.web.sections import page_sections

DEEP = b'{"a":' * 20_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([10**400, 2**64, -1, "", "step-00000001"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Make a run that was killed once, with an event of every kind that it tells."""
    folder = made_run(tmp_path_factory.mktemp("good"), killed_at=20)
    supervisor = SupervisorJournal(folder.journal)
    t = 1_790_000_100.0
    supervisor.event("straggler", t=t, attempt=1, rank=1, factor=2.0, slow=True)
    supervisor.event("warned", t=t, text="a warning")
    supervisor.close()
    step = folder.checkpoints / "step-00000020"
    (step / "state").mkdir(parents=True)
    (step / "manifest.json").write_text('{"format": 3, "step": 20, "files": {}, "blake3": ""}')
    (step / "scalars.json").write_text("{}")
    return folder


def files_of(folder: RunFolder) -> list[str]:
    return sorted(str(p.relative_to(folder.path)) for p in folder.path.rglob("*") if p.is_file())


def damage(folder: RunFolder, data: st.DataObject) -> str:
    """Something that a crash, a disk or a stranger leaves in one of the files; its name."""
    name = data.draw(st.sampled_from(files_of(folder)))
    path = folder.path / name
    content = bytearray(path.read_bytes())
    kind = data.draw(
        st.sampled_from(["flip", "flip", "cut", "bytes", "gone", "folder", "pipe", "link", "line"])
    )
    if kind == "flip":
        for at in data.draw(st.lists(st.integers(0, 8 * max(1, len(content)) - 1), max_size=5)):
            if content:
                content[at // 8] ^= 1 << at % 8
    elif kind == "cut":
        del content[data.draw(st.integers(0, len(content))) :]
    elif kind == "bytes":
        content = bytearray(data.draw(st.binary(max_size=200) | st.just(DEEP)))
    elif kind == "line":
        told = {"t": 1_790_000_050.0, "kind": data.draw(st.sampled_from(KINDS))}
        told |= data.draw(st.dictionaries(EVENT_KEYS, JSON, max_size=5))
        content += json.dumps(told).encode() + b"\n"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind != "gone":
        path.write_bytes(content)
    return name


EVENT_KEYS = st.sampled_from(
    ["t", "end", "kind", "attempt", "ranks", "rank", "step", "reason", "result", "error", "machine",
     "since", "val_loss", "factor", "slow", "text", "tier", "where", "bytes", "x"]
)  # fmt: skip
KINDS = (
    "invocation", "launch", "fault", "ended", "straggler", "resumed", "ready", "start", "end",
    "evaluate", "saved", "checkpoint", "warned", "rewind", "skipped", "host_came", "energy",
)  # fmt: skip


def said(*words: str) -> str:
    """Return what a verb prints; every error is one that it expects."""
    out = io.StringIO()
    argv, sys.argv = sys.argv, ["penstock", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            main._run()
    except SystemExit:
        pass
    finally:
        sys.argv = argv
    return out.getvalue()


def look(folder: RunFolder, name: str) -> None:
    """Call everything that shows a run."""
    root = str(folder.path.parent)
    cache = RunCache(root)
    cache.run_list()
    with contextlib.suppress(PenstockError):
        cache.sections("made")
    if name.startswith("checkpoints") and not (folder.path / name).is_file():
        return  # other readers of checkpoints have tests of their own
    json.dumps(page_sections(RunView(folder)), default=str)
    metrics.exposition([RunView(folder)])
    for words in (["ls"], ["status", "made"], ["report", "made"], ["report", "made", "--json"]):
        assert "Traceback" not in said(*words, "--dir", root)


@given(data=st.data())
def test_a_damaged_run_folder_gives_a_readable_error(
    good: RunFolder, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "made")
    shutil.copytree(good.path, folder.path)
    look(folder, damage(folder, data))


def test_an_event_without_its_fields_is_left_out(good: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "made")
    shutil.copytree(good.path, folder.path)
    with (folder.journal / "a0001-r00000.events").open("a") as file:
        for kind, fields in NEEDED.items():
            file.write(json.dumps({"t": 1_790_000_050.0, "kind": kind}) + "\n")
            wrong = {name: {"x": []} for name in fields}
            file.write(json.dumps({"t": 1_790_000_050.0, "kind": kind, **wrong}) + "\n")
    assert said("status", "made", "--dir", str(tmp_path)) == said(
        "status", "made", "--dir", str(good.path.parent)
    )
    assert "made" in said("report", "made", "--dir", str(tmp_path))


@pytest.mark.parametrize("plan", [b"[]", b"7", DEEP, b'{"steps": [], "ranks": {}}', b"\xff"])
def test_an_invalid_plan_file_is_reported(good: RunFolder, tmp_path: Path, plan: bytes) -> None:
    folder = RunFolder(tmp_path / "made")
    shutil.copytree(good.path, folder.path)
    folder.plan_file.write_bytes(plan)
    look(folder, "plan.json")
    assert said("status", "made", "--dir", str(tmp_path)).strip()


TRAPS = st.dictionaries(
    st.sampled_from(["at", "action", "rank", "step", "phase", "ms", "attempt", "name", "x"]), JSON
)


@given(
    content=st.binary(max_size=100) | TRAPS.map(lambda t: json.dumps(t).encode()) | st.just(DEEP)
)
def test_control_files_of_any_content_are_read(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.traps.mkdir(parents=True)
    (folder.traps / "one.json").write_bytes(content)
    for name in ("save", "stop", "regroup"):
        (folder.control / name).write_bytes(content)
    assert folder.control_requests() == {"save": True, "stop": True}
    for name in ("save", "stop", "regroup"):
        folder.acknowledge(name)
    assert folder.control_requests() == {"save": False, "stop": False}
    assert len(failpoints.read(folder.traps)) <= 1
