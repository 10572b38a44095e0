"""The message of a display about the checkpoint that a run resumes from."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from penstock.launch.prepare.resume import ResumeDecision
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.terminal.display import TerminalDisplay


@pytest.fixture
def folder(run_file: Callable[..., Path]) -> RunFolder:
    folder = RunFolder(load(run_file("known")).folder)
    folder.make()
    folder.run_file.write_text(run_file("known").read_text())
    folder.plan_file.write_text('{"layout": {"replicate": 1}, "steps": 100}')
    return folder


def shown(folder: RunFolder, step: int, tier: str, nodes: int = 1) -> tuple[TerminalDisplay, str]:
    run = load(folder.run_file)
    cluster = run.cluster.model_copy(update={"nodes": nodes})
    terminal = TerminalDisplay(Console(file=io.StringIO(), width=200))
    how = ResumeDecision(run.model_copy(update={"cluster": cluster}), step, tier, exists=True)
    terminal.resuming(how, folder)
    return terminal, said(terminal)


def said(terminal: TerminalDisplay) -> str:
    assert isinstance(terminal.console.file, io.StringIO)
    return terminal.console.file.getvalue()


@pytest.mark.parametrize(
    ("step", "tier", "nodes", "words"),
    [
        (110, "memory", 1, "goes on from step 110 (memory)\n"),
        (100, "disk", 1, "goes on from step 100 (disk)\n"),
        (0, "", 1, "goes on from the first step (nothing was saved yet)\n"),
        (90, "remote", 2, "goes on from step 90 (remote), or from newer copies in the memory"),
    ],
)
def test_the_tier_and_the_step_are_named(
    folder: RunFolder, step: int, tier: str, nodes: int, words: str
) -> None:
    assert words in shown(folder, step, tier, nodes)[1]


def test_a_checkpoint_that_turned_out_damaged_is_corrected_once(folder: RunFolder) -> None:
    terminal, _ = shown(folder, 110, "memory")
    supervisor = SupervisorJournal(folder.journal, clock=lambda: 1.0)
    supervisor.event("invocation", ranks=1)
    supervisor.event("launch", attempt=0, ranks=1)
    supervisor.close()
    with Journal(folder.journal, 0, clock=lambda: 2.0) as journal:
        journal.event("start", pid=1)
        journal.event("checkpoint_rejected", problem="step 110 in memory: a flipped bit")
        journal.event("resumed", step=100, tier="disk")
    terminal.folder = folder
    for _ in range(2):
        terminal.next_s = 0.0
        terminal.tick()
    text = said(terminal)
    assert text.count("went on from step 100 instead (step 110 in memory: a flipped bit)") == 1
