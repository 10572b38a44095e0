"""A journal of 1,000 ranks × 100,000 steps (3.2 GB), and how long its report and page wait for it.

    .venv/bin/python benchmarks/big_journal.py [--ranks 1000] [--steps 100000] [--dir .bench-watch]

One rank is slow; every rank saves and validates 100 times. What is timed, each in a process of its
own with its imports: the whole report, the first answer for a page (`quick=True`), how many
seconds of looking until that answer is exact, and a look at what is known.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock.ledger.journal.records import (
    CURVE,
    PARTS,
    ROLLUP,
    ROLLUP_STEPS,
    STEP,
    file_name,
    header,
)
from penstock.ledger.journal.writer import SupervisorJournal

T = 1_700_000_000.0
STEP_S = 0.5
PLAN: dict[str, Any] = {"batch_tokens": 4_000_000, "machine": "many accelerators"}

CHILD = """
import json, sys, time
from pathlib import Path
from typing import Any
began = time.perf_counter()
from penstock.run.folder import RunFolder
from penstock.watch.report.screen import summary
from penstock.watch.facts.run_view import RunView
folder = RunFolder(Path(sys.argv[1]))
imported = time.perf_counter()

def looked(view):
    took = time.perf_counter()
    found = view.over_time(), view.step, view.tokens_per_s, view.validation
    return time.perf_counter() - took, {str(c): s for c, s in view.account.ledger.seconds.items()}

if sys.argv[2] == "report":
    found = summary(folder)
    out = {"report_s": time.perf_counter() - began, "ledger": found["ledger"]}
    out["report_cpu_s"] = time.process_time()
    out["again_s"], _ = looked(RunView(folder))
else:
    took, ledger = looked(view := RunView(folder, quick=True))
    out = {"first_s": time.perf_counter() - began, "exact": view.account.exact, "ledger": ledger}
    out["first_cpu_s"] = time.process_time()
    looks, slowest = 1, took
    while not view.account.exact:
        took, ledger = looked(view := RunView(folder, quick=True))
        looks, slowest = looks + 1, max(slowest, took)
    out |= {"exact_s": time.perf_counter() - began, "looks": looks, "slowest_s": slowest}
    out["again_s"], _ = looked(RunView(folder, quick=True))
import resource
out |= {"imports_s": imported - began}
out |= {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
print(json.dumps(out))
"""


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--ranks", type=int, default=1000)
    parse.add_argument("--steps", type=int, default=100_000)
    parse.add_argument("--dir", type=Path, default=Path(".bench-watch"))
    parse.add_argument("--keep", action="store_true", help="the journal, for another time")
    asked = parse.parse_args()
    run = asked.dir / f"big-{asked.ranks}x{asked.steps}"
    if not (run / "plan.json").exists():
        began = time.perf_counter()
        write(run, asked.ranks, asked.steps)
        print(f"written in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    size = sum(f.stat().st_size for f in (run / "journal").iterdir())
    found = {"ranks": asked.ranks, "steps": asked.steps, "journal_bytes": size}
    for what in ("report", "page"):
        child = [sys.executable, "-c", CHILD, str(run), what]
        found[what] = json.loads(subprocess.run(child, check=True, capture_output=True).stdout)
    exact, first = found["report"].pop("ledger"), found["page"].pop("ledger")
    total = sum(exact.values())
    found["shares"] = {cause: s / total for cause, s in exact.items()}
    found["apart"] = max(abs(first[c] - exact[c]) / total for c in exact)
    print(json.dumps(found, indent=1))
    if not asked.keep:
        shutil.rmtree(run)


def write(run: Path, ranks: int, steps: int) -> None:
    journal = run / "journal"
    journal.mkdir(parents=True)
    (run / "run.toml").write_text(f'name = "{run.name}"\n[model]\npreset = "llama-3m"\n')
    supervisor = SupervisorJournal(journal)
    supervisor.event("invocation", t=T, ranks=ranks)
    supervisor.event("launch", t=T + 1, attempt=0)
    supervisor.event("ended", t=T + 70 + (steps + 100) * STEP_S + 600, result="done")
    supervisor.close()
    rng = np.random.default_rng(0)
    number = np.arange(1, steps + 1)
    every = max(1, steps // 100)
    # All wait for the slowest of a step; validating and saving take 3 s together.
    start = T + 60 + STEP_S * (number - 1) + 3.0 * ((number - 1) // every)
    noise = rng.normal(0, 0.004, (64, steps)).astype(np.float32)
    for rank in range(ranks):
        records = np.zeros(steps, STEP)
        records["start"], records["step"], records["total"] = start, number, STEP_S
        slow = 0.02 if rank == ranks // 2 else 0.0
        compute = 0.42 + slow + np.abs(noise[rank % 64])
        records["fetch"] = 0.002
        records["compute"] = np.minimum(compute, 0.48)
        records["exchange"] = STEP_S - 0.004 - records["compute"]
        put(journal, rank, "steps", records)
        put(journal, rank, "rollups", rolled(records))
        (journal / file_name(0, range(rank, rank + 1), "events")).write_text(
            events(start[every - 1 :: every] + STEP_S, every)
        )
    curve = np.zeros(steps, CURVE)
    curve["t"], curve["step"] = start + STEP_S, number
    curve["loss"], curve["tokens"] = 11 - np.log(number), number * PLAN["batch_tokens"]
    put(journal, 0, "curve", curve)
    (run / "plan.json").write_text(json.dumps(PLAN | {"steps": steps, "ranks": ranks}))


def put(journal: Path, rank: int, kind: str, records: np.ndarray) -> None:
    own = range(rank, rank + 1)
    (journal / file_name(0, own, kind)).write_bytes(header(kind, 0, own) + records.tobytes())


def rolled(records: np.ndarray) -> np.ndarray:
    whole = records[: len(records) // ROLLUP_STEPS * ROLLUP_STEPS].reshape(-1, ROLLUP_STEPS)
    made = np.zeros(len(whole), ROLLUP)
    made["first_step"], made["last_step"] = whole["step"][:, 0], whole["step"][:, -1]
    made["start"] = whole["start"][:, 0]
    made["end"] = whole["start"][:, -1] + whole["total"][:, -1]
    for part in PARTS:
        made[part] = whole[part].sum(axis=1, dtype=np.float64)
    return made


def events(ends: np.ndarray, every: int) -> str:
    said: list[dict[str, object]] = [{"t": T + 2, "kind": "start"}, {"t": T + 59, "kind": "ready"}]
    for count, t in enumerate(ends.tolist(), 1):
        step = count * every
        said.append({"t": t, "end": t + 2, "kind": "evaluate", "step": step, "val_loss": 5.0})
        said.append({"t": t + 2, "end": t + 3, "kind": "checkpoint", "step": step})
    said.append({"t": ends[-1] + 4, "kind": "end", "result": "done"})
    return "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in said)


if __name__ == "__main__":
    main()
