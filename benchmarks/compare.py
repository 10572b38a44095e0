"""How long `penstock compare` takes: the five clusters of examples/compare, as a user starts it.

    python benchmarks/compare.py [--times 5] [--lives 50]

Prints seconds of wall clock and of CPU, and whether torch was loaded. The goal is 5 s for five.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "examples" / "compare"
CLUSTERS = ("h100-owned", "h100-reserved", "a100-spot", "gb200-colo", "rtx5090-own")
CODE = """
import sys
from penstock.cli.main import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def once(lives: int) -> tuple[float, float, str]:
    """Compare once; return wall seconds, CPU seconds, and whether torch was loaded."""
    files = ",".join(str(FOLDER / f"{name}.toml") for name in CLUSTERS)
    words = ["compare", str(FOLDER / "run.toml"), "--clusters", files, "--lives", str(lives)]
    words += ["--start", "2026-12-01", "--deadline", "200 days", "--svg", os.devnull]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words], capture_output=True, text=True, check=True
    )
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s, done.stderr.split()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--lives", type=int, default=50)
    asked = parser.parse_args()
    found = [once(asked.lives) for _ in range(asked.times)]
    walls, cpus = [one[0] for one in found], [one[1] for one in found]
    print(f"five clusters, {asked.lives} lives on each, {asked.times} times")
    print(f"wall   median {statistics.median(walls):.2f} s, worst {max(walls):.2f} s (goal 5 s)")
    print(f"CPU    median {statistics.median(cpus):.2f} s, worst {max(cpus):.2f} s")
    print(f"torch  loaded: {found[-1][2]}")


if __name__ == "__main__":
    main()
