"""Launches of a run that is logged to trackers, and the process that logs them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save


def logged_folder(run_file: Callable[..., Path], **fields: Any) -> RunFolder:
    """Return the folder of a run that was planned and not launched."""
    run = load(run_file("logged", **fields))
    made = RunFolder(run.folder)
    made.make()
    save(run, made.run_file)
    made.plan_file.write_text('{"ranks": 1, "steps": 10, "batch_tokens": 128}')
    return made


def launched(
    folder: RunFolder,
    attempt: int,
    losses: dict[int, float],
    result: str,
    t: float = 1000.0,
    validation: dict[int, float] | None = None,
    rewards: dict[int, tuple[float, float, float]] | None = None,
) -> None:
    """Write the journal of a launch that made these steps and ended. `rewards` of pairs, chosen,
    rejected and accuracy, are by step; evaluations get those of their step.
    """
    supervisor = SupervisorJournal(folder.journal)
    supervisor.event("invocation", t=t, ranks=1)
    supervisor.event("launch", t=t, attempt=attempt)
    with Journal(folder.journal, attempt, clock=lambda: t + 1) as rank:
        rank.event("ready")
        for number, (step, loss) in enumerate(losses.items()):
            rank.step(step, t + 1 + number, 0.5, 0.0, 0.5, 0.0)
            rank.curve(step, loss, 1.0, 1e-3, 128.0 * step, t=t + 2 + number)
            names = ("chosen", "rejected", "accuracy")
            paid = dict(zip(names, rewards[step], strict=True)) if rewards else {}
            if paid:
                rank.event("rewards", step=step, **paid)
            if validation and step in validation:
                rank.event("evaluate", step=step, val_loss=validation[step], **paid)
    if result == "failed":
        supervisor.event("fault", attempt=attempt, rank=0, reason="killed", action="give_up")
    supervisor.event("ended", t=t + 60, result=result, error="")
    supervisor.close()


def follow(
    folder: RunFolder,
    heard: int,
    attempt: int,
    env: dict[str, str],
    python: str = sys.executable,
    what: str = "",
) -> str:
    """Run the real process beside the run, on a launch that is over: it sends all and ends."""
    arguments = map(str, (folder.path, os.getpid(), heard, attempt, what))
    done = subprocess.run(
        [python, "-m", "penstock.watch.outlets.process", *arguments],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    return done.stdout
