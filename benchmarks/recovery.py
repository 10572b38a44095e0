"""How long a lost rank holds a run up: from SIGKILL to the next step that nobody had done before.

    python benchmarks/recovery.py                  10 kills, restart mode, examples/stdlib.toml
    python benchmarks/recovery.py --mode live      two replicas; the survivor's next step
    python benchmarks/recovery.py --json           for programs; --times N, --run FILE, overrides

Real processes and the run file's own defaults. The time is taken from the ranks' pulses, and so is
where it went.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.guard.detect import pulse
from penstock.guard.detect.pulse import PHASES, TRACE, Heartbeat
from penstock.ledger.journal.read import read_events
from penstock.run.folder import RunFolder
from penstock.run.load import load

EXAMPLE = Path(__file__).parent.parent / "examples/stdlib.toml"
# The step of such a beat is committed.
DONE = frozenset({"updated", "evaluate", "keep", "stage", "save", "saved"})
LOOK_S = 0.001
LIMIT_S = 300.0
BETWEEN = 8  # steps between two faults


@dataclass
class Result:
    mode: str
    seconds: list[float] = field(default_factory=list)
    redone: list[int] = field(default_factory=list)  # steps that were done again
    phases: list[dict[str, float]] = field(default_factory=list)  # of rank 0, or a survivor

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    def where(self) -> dict[str, float]:
        names = sorted({name for one in self.phases for name in one}, key=_order)
        return {n: statistics.median(p.get(n, 0.0) for p in self.phases) for n in names}


def _order(name: str) -> int:
    return PHASES.index(name) if name in PHASES else -1


def beats(folder: RunFolder, ranks: int) -> list[Heartbeat]:
    return [b for r in range(ranks) if (b := pulse.read_heartbeat(folder.scratch, r)) is not None]


def committed(found: list[Heartbeat]) -> int:
    """The furthest step that any rank has made its update for."""
    return max((b.step if b.phase in DONE else b.step - 1 for b in found), default=0)


def wait(process: subprocess.Popen[str], folder: RunFolder, ranks: int, step: int) -> float:
    """When `step` was committed, on the monotonic clock."""
    deadline = time.monotonic() + LIMIT_S
    while committed(beats(folder, ranks)) < step:
        if process.poll() is not None:
            raise SystemExit(f"the run ended: {process.communicate()[1]}")
        if time.monotonic() > deadline:
            raise SystemExit(f"step {step} never came")
        time.sleep(LOOK_S)
    return time.monotonic()


@contextmanager
def training(path: Path, overrides: list[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "penstock", "train", str(path), "--json", *overrides]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def measure(path: Path, mode: str, times: int, overrides: list[str], where: Path) -> Result:
    result, draw = Result(mode), random.Random(0)
    overrides = [f"dir={where}", f"guard.mode={mode}", *overrides]
    folder = RunFolder(load(path, overrides).folder)
    folder.audit.mkdir(parents=True)  # has every beat on record
    with training(path, overrides) as process:
        deadline = time.monotonic() + LIMIT_S
        while not folder.plan_file.exists():
            assert time.monotonic() < deadline, process.poll()
            time.sleep(0.1)
        ranks = folder.read_plan()["ranks"]
        for _ in range(times):
            step = committed(beats(folder, ranks)) + BETWEEN
            wait(process, folder, ranks, step)
            wait_all_up(folder, ranks)
            time.sleep(draw.random() * 0.5)  # anywhere in a step
            victim = draw.randrange(ranks)
            beat = pulse.read_heartbeat(folder.scratch, victim)
            assert beat is not None
            began, reached = time.monotonic(), committed(beats(folder, ranks))
            os.kill(beat.pid, signal.SIGKILL)
            ended = wait(process, folder, ranks, reached + 1)
            result.seconds.append(ended - began)
            other = (victim + 1) % ranks if mode == "live" else 0
            result.phases.append(spent(folder, other, began, ended))
            if mode == "restart":
                result.redone.append(redone(folder, reached))
            print(f"  rank {victim} at step {reached}: {ended - began:.2f} s", file=sys.stderr)
    return result


def wait_all_up(folder: RunFolder, ranks: int) -> None:
    """In live mode, until the lost replica is back."""
    deadline = time.monotonic() + LIMIT_S
    while max(steps := [b.step for b in beats(folder, ranks)]) - min(steps) > 1:
        assert time.monotonic() < deadline, "the lost replica did not come back"
        time.sleep(LOOK_S)


def spent(folder: RunFolder, rank: int, began: float, ended: float) -> dict[str, float]:
    """Seconds by phase of one rank between two moments; `noticed`: before its first sign."""
    found: list[tuple[float, str]] = []
    for path in sorted(folder.audit.glob(f"pulse-*-r{rank:05d}*")):
        raw = path.read_bytes()
        raw = raw[: len(raw) // TRACE.size * TRACE.size]
        found += [(t, PHASES[number]) for _, number, t in TRACE.iter_unpack(raw) if t >= began]
    seconds: dict[str, float] = defaultdict(float)
    last_t, last = began, "noticed"
    for t, phase in [*sorted(found), (ended, "")]:
        if t > ended:
            break
        seconds[last] += t - last_t
        last_t, last = t, phase
    return dict(seconds)


def redone(folder: RunFolder, reached: int) -> int:
    newest = max(folder.journal.glob("a*-r00000.events"))
    resumed = [int(str(e.payload["step"])) for e in read_events(newest) if e.kind == "resumed"]
    return reached - (resumed[-1] if resumed else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--run", type=Path, default=EXAMPLE)
    parser.add_argument("--mode", choices=["restart", "live"], default="restart")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("overrides", nargs="*", help="fields of the run file, such as a.b=c")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        result = measure(given.run, given.mode, given.times, given.overrides, Path(where))
    if given.json:
        print(json.dumps({**vars(result), "median_s": result.median_s, "where": result.where()}))
        return
    print(f"{result.mode}: median {result.median_s:.2f} s of {len(result.seconds)}, ", end="")
    print(f"{min(result.seconds):.2f} to {max(result.seconds):.2f} s")
    if result.redone:
        print(f"  steps done again: median {statistics.median(result.redone):g}, ", end="")
        print(f"at most {max(result.redone)}")
    for phase, seconds in result.where().items():
        print(f"  {phase:<8} {seconds:7.3f} s")


if __name__ == "__main__":
    main()
