"""Run folders written by hand, line by line, for tests of everything that shows a run."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from penstock.ledger.causes import Cause
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.ledger.ledger import Ledger
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.screen import screen, summary
from penstock.watch.terminal import display as terminal
from penstock.watch.terminal import screen as terminal_screen

T = 1_700_000_000.0
Line = tuple[float, str, dict[str, object]]
PLAN = {
    "device": "cpu",
    "device_name": "",
    "machine": "2 CPU cores",
    "layout": {"replicate": 2, "shard": 1, "microbatch": 4},
    "ranks": 2,
    "dataset": "tiny@1",
    "params": 3_000_000,
    "flops_per_token": 2e7,
    "steps": 20,
    "batch_tokens": 1000,
}


class Written:
    """A run folder as a supervisor and two ranks would write it. Times are seconds from T."""

    def __init__(self, home: Path, plan: dict[str, Any] | None = PLAN) -> None:
        file = home / "run.toml"
        file.write_text('name = "hand"\n[model]\npreset = "llama-3m"\n')
        self.folder = RunFolder(home / "runs" / "hand")
        self.folder.make()
        save(load(file, ["train.precision=bf16"]), self.folder.run_file)
        if plan is not None:
            self.folder.plan_file.write_text(json.dumps(plan))

    def supervisor(self, *lines: Line) -> None:
        journal = SupervisorJournal(self.folder.journal)
        for t, kind, payload in lines:
            journal.event(kind, t=T + t, **payload)
        journal.close()

    def ranks(
        self,
        attempt: int,
        start: float,
        steps: range,
        losses: dict[int, float] | None = None,
        count: int = 2,
    ) -> None:
        """Both ranks from `start`: 5 s to be ready, then 2 s a step, the last of them closed."""
        for rank in range(count):
            with Journal(self.folder.journal, attempt, range(rank, rank + 1)) as journal:
                journal.event("start", t=T + start)
                if steps.start > 1:
                    journal.event("resumed", t=T + start + 4, step=steps.start - 1)
                journal.event("ready", t=T + start + 5)
                for i, step in enumerate(steps):
                    began = T + start + 5 + 2 * i
                    journal.step(step, began, 2, fetch=0.25, compute=1.5, exchange=0.25)
                    if rank == 0:
                        loss = (losses or {}).get(step, 10.0 - step / 10)
                        journal.curve(step, loss, 1.0, 1e-3, 1000 * step, t=began + 2)

    def end(self, attempt: int, t: float, **payload: object) -> None:
        for rank in range(2):
            path = self.folder.journal / f"a{attempt:04d}-r{rank:05d}.events"
            line = {"t": T + t, "kind": "end", **payload}
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")


BEGIN: list[Line] = [(0.0, "invocation", {"ranks": 2}), (1.0, "launch", {"attempt": 0})]


def shown(what: RenderableType) -> str:
    console = Console(record=True, width=100, file=StringIO())
    console.print(what)
    return console.export_text()


def facts(folder: RunFolder) -> dict[str, Any]:
    """Return the summary, after checks for every run: plain JSON, and all screens render."""
    found = summary(folder)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found["ledger"]) == {str(cause) for cause in Cause}
    assert sum(found["ledger"].values()) == pytest.approx(found["wall_s"] * found["ranks"])
    text = shown(screen(folder))
    assert "hand" in text
    assert found["status"] in text
    assert "wall-clock" in text
    view = RunView(folder)
    assert shown(terminal_screen.RunScreen(RunFacts(view)))
    if len(view.curve):
        assert f"step {found['steps']}/" in terminal.progress_line(RunFacts(view))
    return found


STEPS = 20  # planned; each takes the hand-written ranks 2 s


def planned(step_s: float, **causes: float) -> dict[str, Any]:
    ledger = Ledger.of(**causes)
    return {
        "steps": STEPS,
        "step_s": step_s,
        "ledger": ledger.to_json(),
        "bands": {"step_s": {"low": 0.9 * step_s, "high": 1.1 * step_s}},
        "uncalibrated": {"accelerator": "a CPU", "basis": "catalog", "step_s": step_s},
    }
