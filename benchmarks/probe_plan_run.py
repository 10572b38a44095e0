"""Probe, plan and run, one after the other, three times: is the planned step the measured one?

`python benchmarks/probe_plan_run.py [RUN.toml] [FIELD=VALUE ...]`. Exit code 1 when the medians are
more than 20 % apart. A machine that others use changes its speed from minute to minute; that is
why the three are interleaved, and why medians are compared.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.ledger.journal.read import read_steps
from penstock.meter.probe import probe
from penstock.plan.hardware.cluster import here_file
from penstock.run.clusters.load import save_cluster

ROUNDS = 3
WITHIN = 0.20
SKIPPED = 10  # first steps of a run, which warm up


def penstock(*arguments: str) -> dict:
    command = [sys.executable, "-m", "penstock", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr}")
    return json.loads(done.stdout)


def measured_s(folder: Path) -> float:
    """The median step of all ranks."""
    steps = [
        float(total)
        for file in sorted((folder / "journal").glob("*.steps"))
        for total in read_steps(file)["total"][SKIPPED:]
    ]
    return statistics.median(steps)


def main(run: str, overrides: list[str]) -> int:
    planned, found = [], []
    with tempfile.TemporaryDirectory() as runs:
        print("round   planned ms   measured ms   planned/measured", flush=True)
        for turn in range(1, ROUNDS + 1):
            save_cluster(probe(lambda what, done, of: None), here_file())
            asked = [run, *overrides, f"dir={runs}", f"name=round-{turn}"]
            planned.append(float(penstock("plan", *asked)["step_s"]))
            penstock("train", *asked)
            found.append(measured_s(Path(runs) / f"round-{turn}"))
            print(_row(str(turn), planned[-1], found[-1]), flush=True)
    ratio = statistics.median(planned) / statistics.median(found)
    print(_row("median", statistics.median(planned), statistics.median(found)))
    return int(abs(ratio - 1) > WITHIN)


def _row(name: str, planned_s: float, found_s: float) -> str:
    return f"{name:<7} {planned_s * 1e3:10.1f} {found_s * 1e3:13.1f} {planned_s / found_s:18.2f}"


if __name__ == "__main__":
    given = sys.argv[1:] or ["examples/stdlib.toml"]
    sys.exit(main(given[0], given[1:]))
