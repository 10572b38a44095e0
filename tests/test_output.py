"""Standard streams that break end no work: closed pipes, full devices, poor encodings."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock import output
from penstock.cli.show import print_json
from penstock.launch.prepare.listener import Listener, SafeListener
from penstock.ledger.journal.events import DisplayFailed
from penstock.output import BROKEN_PIPE, Output, OutputFailed
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.screen import summary
from penstock.watch.terminal.display import TerminalDisplay

MODULE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.inner = nn.Embedding(vocab, 16)
        self.outer = nn.Linear(16, vocab)

    def forward(self, tokens):
        print("words of a rank " * 1000, flush=True)
        return self.outer(self.inner(tokens))

def build():
    return Model(512)
"""


@pytest.fixture
def closed() -> Iterator[io.TextIOWrapper]:
    """The writing end of a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w", buffering=1)
    yield stream
    stream.close()


def test_the_first_failure_is_raised_and_the_rest_goes_nowhere(closed: io.TextIOWrapper) -> None:
    guarded = Output(closed, "standard output")
    with pytest.raises(OutputFailed, match="Broken pipe") as caught:
        guarded.write("one\n")
    assert (caught.value.exit_code, caught.value.silent) == (BROKEN_PIPE, True)
    guarded.write("two\n")
    guarded.flush()
    assert guarded.problem == "standard output: Broken pipe"


def test_work_that_outlives_its_display_only_keeps_the_reason(closed: io.TextIOWrapper) -> None:
    guarded = Output(closed, "standard output")
    guarded.outlived = True
    console = Console(file=guarded)  # type: ignore[arg-type]
    for _ in range(3):
        console.print("rich would end the process here")
    assert guarded.problem == "standard output: Broken pipe"


def test_a_full_device_is_noticed_at_the_latest_when_it_is_flushed() -> None:
    with open("/dev/full", "w") as full:
        guarded = Output(full, "standard output")
        guarded.write("kept in a buffer")
        with pytest.raises(OutputFailed, match="No space left on device") as caught:
            guarded.flush()
        assert (caught.value.exit_code, caught.value.silent) == (1, False)
        guarded.flush()


def test_letters_that_an_encoding_lacks_are_replaced() -> None:
    raw = io.BytesIO()
    guarded = Output(io.TextIOWrapper(raw, encoding="ascii", errors="strict"), "standard output")
    guarded.write("4 ranks → runs/x … 2 % of “this”\n")
    guarded.flush()
    assert raw.getvalue() == b"4 ranks ? runs/x ? 2 % of ?this?\n"
    assert guarded.problem == ""


def test_json_loses_no_letter_to_an_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    ascii_only = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", Output(ascii_only, "standard output"))
    print_json({"said": "→ “this”"})
    sys.stdout.flush()
    assert json.loads(raw.getvalue()) == {"said": "→ “this”"}


def test_a_display_that_raises_is_called_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Listener):
        calls = 0

        def tick(self) -> None:
            self.calls += 1
            raise RuntimeError("no screen today")

    broken = Broken()
    shielded = SafeListener(broken)
    for _ in range(3):
        shielded.tick()
        shielded.host_message("more")
    assert broken.calls == 1
    assert shielded.problem() == "RuntimeError: no screen today"
    assert capsys.readouterr().err.count("no screen today") == 1


def test_every_call_of_a_display_is_shielded() -> None:
    calls = [name for name in vars(Listener) if not name.startswith("_")]
    assert set(calls) <= set(vars(SafeListener))


def test_a_display_says_which_stream_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", buffering=1) as full:
        guarded = Output(full, "standard output")
        guarded.outlived = True
        monkeypatch.setattr(output, "_guarded", [guarded])
        terminal = TerminalDisplay(Console(file=guarded))  # type: ignore[arg-type]
        assert terminal.problem() == ""
        terminal.machine_found("2 CPU cores")
        assert terminal.problem() == "standard output: No space left on device"


@pytest.mark.parametrize(
    ("device", "code", "said"),
    [("pipe", BROKEN_PIPE, ""), ("/dev/full", 1, "error: standard output: No space left")],
)
def test_a_verb_that_cannot_print_ends_without_a_traceback(
    closed: io.TextIOWrapper, device: str, code: int, said: str
) -> None:
    with open(device, "w") if device != "pipe" else closed as stream:
        command = [sys.executable, "-m", "penstock", "catalog", "models"]
        ended = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == code
    assert ended.stderr.startswith(said)
    assert len(ended.stderr.splitlines()) == bool(said)


def test_a_run_outlives_its_display_and_its_ranks_their_logs(
    run_file: Callable[..., Path], tmp_path: Path, closed: io.TextIOWrapper
) -> None:
    (tmp_path / "own.py").write_text(MODULE)
    sizes = ("layers", "hidden", "heads", "kv_heads", "ffn", "tied")
    fields: dict[str, Any] = {f"model.{name}": None for name in sizes}
    own = {"model.module": f"{tmp_path / 'own.py'}:build", "train.learning_rate": 1e-3}
    file = run_file("deaf", **fields | own | {"train.steps": 4, "cluster.accelerators": 1})
    folder = RunFolder(load(file).folder)
    logs = folder.logs / "attempt-0"
    logs.mkdir(parents=True)
    (logs / "rank-0.out").symlink_to("/dev/full")  # as on a disk without room
    command = [sys.executable, "-m", "penstock", "train", str(file)]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, env=env)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("standard output: Broken pipe") == 1
    assert summary(folder)["status"] == "done"
    (event,) = RunView(folder).supervisor_events_of(DisplayFailed)
    assert event.payload["error"] == "standard output: Broken pipe"
