"""Run folders made by hand: a run file, a plan and a journal, without training anything."""

import json
import math
from pathlib import Path
from typing import Any

from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.run.folder import RunFolder

T0 = 1_790_000_000.0
STEP_S = 0.5
FILE = """
name = {name}
[model]
preset = "llama-3m"
[data]
dataset = "stdlib"
[train]
steps = 100
precision = "bf16"
"""


def planned(ranks: int, steps: int) -> dict[str, Any]:
    """A plan of steps of half a second, a little faster than they turn out."""
    seconds = {"compute": 0.4 * steps * ranks, "communicate": 0.05 * steps * ranks, "startup": 2.0}
    causes = (
        "compute", "communicate", "bubble", "peer_wait", "data_wait", "checkpoint", "evaluate",
        "startup", "down", "redo", "unexplained",
    )  # fmt: skip
    ledger = {
        "seconds": {cause: seconds.get(cause, 0.0) for cause in causes},
        "joules": None,
        "usd": None,
        "gco2e": None,
        "provenance": {"seconds": {"source": "estimated", "note": ""}},
    }
    return {
        "device": "cpu",
        "device_name": "",
        "machine": "a made machine",
        "layout": {"replicate": ranks, "shard": 1, "microbatch": 4},
        "ranks": ranks,
        "dataset": "stdlib@1",
        "samples": 1000,
        "params": 3_000_000,
        "steps": steps,
        "batch_tokens": 2048,
        "predicted": {
            "steps": steps,
            "step_s": 0.45,
            "ledger": ledger,
            "bands": {"step_s": {"low": 0.4, "high": 0.55}},
        },
    }


def made_run(
    root: Path,
    name: str = "made",
    ranks: int = 2,
    steps: int = 40,
    *,
    killed_at: int | None = None,
    ended: str | None = "done",
) -> RunFolder:
    """A run of `steps`; rank 1 may be killed at a step and start again four steps before.

    Many ranks write one file together. One that has not `ended` is in the middle of a step.
    """
    folder = RunFolder(root / name)
    folder.make()
    folder.run_file.write_text(FILE.format(name=json.dumps(name)))
    folder.plan_file.write_text(json.dumps(planned(ranks, steps)))
    supervisor = SupervisorJournal(folder.journal)
    ends = bool(ended)
    supervisor.event("invocation", t=T0, ranks=ranks, machine="a made machine")
    t = _attempt(folder, supervisor, 0, T0 + 1, ranks, range(1, (killed_at or steps) + 1), ends)
    if killed_at:
        fault = {"rank": 1, "reason": "the process was killed by SIGKILL", "action": "restart"}
        supervisor.event("fault", t=t, since=t, attempt=0, **fault)
        t = _attempt(folder, supervisor, 1, t + 1, ranks, range(killed_at - 3, steps + 1), ends)
    if ended:
        supervisor.event("ended", t=t + 1, result=ended, error="")
    supervisor.close()
    return folder


def _attempt(
    folder: RunFolder,
    supervisor: SupervisorJournal,
    number: int,
    t: float,
    ranks: int,
    steps: range,
    ends: bool,
) -> float:
    supervisor.event("launch", t=t, attempt=number, ranks=ranks)
    each = 1 if ranks <= 16 else ranks
    for rank in range(0, ranks, each):
        at = t + 2.0
        with Journal(folder.journal, number, range(rank, rank + each)) as journal:
            journal.event("start", t=t + 0.1)
            if number:
                journal.event("resumed", t=at - 0.1, step=steps[0] - 1, tier="memory")
            journal.event("ready", t=at)
            for step in steps:
                journal.step(step, at, STEP_S, 0.01, 0.4, 0.08)
                at += STEP_S
                if rank == 0:
                    loss = 2 + 6 * math.exp(-step / 20)
                    journal.curve(step, loss, 1.0, 1e-3, 2048.0 * step, t=at)
                if step % 20 == 0:
                    journal.span("evaluate", at, at + 0.2, step=step, val_loss=3.0)
                    at += 0.2
            if ends:
                journal.event("end", t=at, result="done")
    return at
