"""The plan beside what one GPU shows: peak memory in eight settings, then the times around steps.

    PYTHONPATH=src:.carry python3 benchmarks/plan_memory.py [--only 8B] [--json FILE] [--no-run]

Each case is a process of its own that does a few steps of the product's engine (`train_speed.py`)
and reads three peaks: what torch allocated, what its allocator reserved, and what the device shows
as used. Beside them stands what the memory model says of the same run. Then `penstock train` runs
a model of 160M parameters with evaluations and checkpoints, and its report says what start-up,
evaluating and saving took and what was planned. About four minutes on an H200.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train_speed import WORKS, ours, run_of

GIB = 2**30
CASES = (
    "160M",
    "1.5B",
    "1.5B/selective",
    "1.5B/micro2",
    "1.5B/fp8",
    "8B-lora/micro4",
    "OLMoE/micro2",
    "1B-131k/selective",
)
STEPS = 4  # the allocator has seen every size after two
LIMIT_S = 150.0  # of one case
KINDS = ("allocated", "reserved", "used")
CAUSES = ("startup", "evaluate", "checkpoint")
RUN = """
name = "plan-times"
[model]
preset = "llama-160m"
[data]
dataset = "stdlib"
sequence = 1024
[train]
steps = 60
batch_tokens = 65536
precision = "bf16"
[layout]
microbatch = 64
[evaluate]
every = "20 steps"
[guard]
checkpoint = "20 steps"
"""


@dataclass(frozen=True)
class Case:
    """Peaks of a case, in GiB: planned and measured by kind."""

    name: str
    planned: dict[str, float]
    measured: dict[str, float]
    step_s: dict[str, float]  # "planned" and "measured"
    first_step_s: float = 0.0  # from the start of the process to the end of its first step
    error: str = ""


def measure(name: str) -> Case:
    """Do the steps of a case here, and read its peaks."""
    began = time.perf_counter()
    import torch

    work_name, *rest = name.split("/")
    work, options = WORKS[work_name], rest[0].split("+") if rest else []
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    planned, planned_s = plan(name)
    step = ours(work, options)
    shape = (work.batch, work.sequence + 1)
    times, first_s = [], 0.0
    for _ in range(STEPS):
        tokens = torch.randint(work.shape.vocab, shape, device="cuda")
        torch.cuda.synchronize()
        at = time.perf_counter()
        step(tokens)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - at)
        first_s = first_s or time.perf_counter() - began
    free, total = torch.cuda.mem_get_info()
    measured = {
        "allocated": torch.cuda.max_memory_allocated() / GIB,
        "reserved": torch.cuda.max_memory_reserved() / GIB,
        "used": (total - free) / GIB,
    }
    seconds = {"planned": planned_s, "measured": statistics.median(times[1:])}
    return Case(name, planned, measured, seconds, first_s)


def plan(name: str, gpu: str = "H200 SXM") -> tuple[dict[str, float], float]:
    """What the models say of a case: GiB by kind, and seconds of a step."""
    from penstock.plan.hardware.machine import of_catalog
    from penstock.plan.memory import memory
    from penstock.plan.search.choose import job_of
    from penstock.plan.step import step

    work_name, *rest = name.split("/")
    work = WORKS[work_name]
    run, layout = run_of(work, rest[0].split("+") if rest else [])
    job = job_of(run, of_catalog(gpu, 1), work.shape, layout)
    held = memory.predict(job)
    sizes = (held.allocated_bytes, held.reserved_bytes, held.peak_bytes)
    return {k: v / GIB for k, v in zip(KINDS, sizes, strict=True)}, step.predict(job).step_s


def apart(name: str) -> Case:
    """The case in a process of its own, on a device that nobody else has."""
    command = [sys.executable, __file__, "--case", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Case(name, {}, {}, {}, error=f"not done after {LIMIT_S:.0f} s")
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode or not last[0].startswith("{"):
        print(done.stderr[-3000:], file=sys.stderr)
        return Case(name, {}, {}, {}, error=(done.stderr.strip().splitlines() or ["?"])[-1][:100])
    return Case(**json.loads(last[0]))


def line(case: Case) -> str:
    if case.error:
        return f"{case.name:20}{case.error}"
    cells = [f"{case.name:20}"]
    for kind in KINDS:
        planned, measured = case.planned[kind], case.measured[kind]
        cells.append(f"{planned:8.2f}{measured:8.2f}{100 * (planned / measured - 1):+7.1f} %")
    took = case.step_s
    off = 100 * (took["planned"] / took["measured"] - 1)
    cells.append(f"{took['planned']:8.3f}{took['measured']:8.3f}{off:+7.1f} %")
    return "".join(cells)


def times() -> dict[str, dict[str, float]]:
    """Seconds by cause of a whole run, planned and measured, by its report."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.toml"
        file.write_text(RUN)
        penstock = [sys.executable, "-m", "penstock"]
        # The first run compiles and builds the data; a start is planned as one that finds both.
        for fresh in ("first", "second"):
            where = f"dir={folder}/{fresh}"
            subprocess.run(
                [*penstock, "train", str(file), where, "--json"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        told = subprocess.run(
            [*penstock, "report", f"{folder}/second/plan-times", "--json"],
            check=True,
            capture_output=True,
            text=True,
        )
    found: dict[str, Any] = json.loads(told.stdout)
    return {cause: found["plan"]["by_cause"][cause] for cause in CAUSES}


def show(cases: Sequence[Case]) -> None:
    good = [case for case in cases if not case.error]
    for kind in KINDS:
        off = [100 * abs(c.planned[kind] / c.measured[kind] - 1) for c in good]
        if off:
            print(f"{kind}: mean {statistics.fmean(off):.1f} %, worst {max(off):.1f} % off")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases that have this in their name")
    parser.add_argument("--no-run", action="store_true", help="without the times of a whole run")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(asdict(measure(given.case))), flush=True)
        os._exit(0)  # past the process group, which nobody waits for
    head = "".join(f"{kind + ' GiB':>25}" for kind in KINDS)
    print(f"{'planned, measured':20}{head}{'step s':>25}")
    cases = []
    for name in CASES:
        if given.only in name:
            cases.append(apart(name))
            print(line(cases[-1]), flush=True)
    show(cases)
    found = {} if given.no_run else times()
    for cause, seconds in found.items():
        off = 100 * (seconds["predicted"] / seconds["measured"] - 1) if seconds["measured"] else 0
        print(f"{cause:20}{seconds['predicted']:8.2f}{seconds['measured']:8.2f} s{off:+7.1f} %")
    if given.json:
        given.json.write_text(
            json.dumps({"cases": [asdict(case) for case in cases], "times": found}, indent=1)
        )


if __name__ == "__main__":
    main()
