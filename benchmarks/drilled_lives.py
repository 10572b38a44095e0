"""Real faults against the simulator: half of them calibrate it, and it predicts the other half.

    python benchmarks/drilled_lives.py                     10 runs of two ranks with 5 faults each
    python benchmarks/drilled_lives.py --runs 4 --json     for programs; --faults N, overrides

Every run is a `penstock train` of its own. Ranks are killed (SIGKILL), one in `--stops` is stopped
instead (SIGSTOP), which only shows as a hang. Runs with even numbers calibrate
(`penstock simulate --calibrate`), those between them are predicted: `down`, `redo` and `checkpoint`
for as many faults and steps as they had. So both halves see the same machine, however busy it is.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from recovery import beats, committed, training, wait

import penstock
from penstock.guard.detect import pulse
from penstock.ledger.causes import Cause
from penstock.plan.life.rates import software_at
from penstock.run.folder import RunFolder
from penstock.run.save import save
from penstock.simulate.calibrate import MeasuredTimes, read_journals

RUN = {
    "name": "drilled",
    "model": {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256},
    "data": {"dataset": "stdlib", "sequence": 128},
    "train": {"steps": 100_000, "batch_tokens": 1024},
    "evaluate": {"every": "100 steps", "tokens": 2048},
    "cluster": {"accelerators": 2},
    "guard": {"fast": "8 steps", "checkpoint": "40 steps", "timeout": "120 s"},
}
FAST = 8  # steps between copies in memory
BETWEEN = 2 * FAST  # new steps between two faults, at least
GOLDEN = 0.6180339887498949  # its multiples fill an interval evenly: every place is hit
APART = 300  # steps between two failures of a life, on average
CAUSES = (Cause.DOWN, Cause.REDO, Cause.CHECKPOINT)
GOAL = 0.2
LIMIT_S = 300.0


def drill(where: Path, number: int, faults: int, stops: int, overrides: list[str]) -> RunFolder:
    """Train a run and disturb it `faults` times; return its folder."""
    run = penstock.load(RUN, {"name": f"drilled-{number}", "dir": str(where)}, *overrides)
    file = where / f"drilled-{number}.toml"
    save(run, file)
    folder, draw = RunFolder(run.folder), random.Random(number)
    with training(file, []) as process:
        deadline = time.monotonic() + LIMIT_S
        while not folder.plan_file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise SystemExit(f"run {number} did not start: {process.communicate()[1]}")
            time.sleep(0.05)
        ranks = int(folder.read_plan()["ranks"])
        for fault in range(faults):
            index = number * faults + fault
            place = int(FAST * (index * GOLDEN % 1))
            reached = committed(beats(folder, ranks))
            step = -(-(reached + BETWEEN) // FAST) * FAST + place
            wait(process, folder, ranks, step)
            time.sleep(draw.random() * 0.1)  # anywhere in a step
            beat = pulse.read_heartbeat(folder.scratch, index % ranks)
            assert beat is not None
            stopped = stops and index % stops == stops - 1
            reached = committed(beats(folder, ranks))
            began = time.monotonic()
            os.kill(beat.pid, signal.SIGSTOP if stopped else signal.SIGKILL)
            ended = wait(process, folder, ranks, reached + 1)
            word = "stop" if stopped else "kill"
            print(
                f"  run {number}, {word} at step {reached}: {ended - began:.2f} s", file=sys.stderr
            )
        wait(process, folder, ranks, committed(beats(folder, ranks)) + BETWEEN)
    return folder


def total(folders: list[RunFolder]) -> MeasuredTimes:
    """Return what the journals of runs say, as one."""
    found = read_journals([str(folder.path) for folder in folders]).measured
    whole = found[0]
    for one in found[1:]:
        whole += one
    return whole


def predict(
    folders: list[RunFolder], real: MeasuredTimes, overrides: list[str]
) -> dict[Cause, float]:
    """Return the seconds of the causes in `real`, by lives that `folders` calibrate."""
    run = penstock.load(RUN, {"train.steps": APART * 100}, *overrides)
    # Far apart, as the drill lets each fault heal: the count is known, its cost is predicted.
    apart_s = APART * real.step_s * software_at(1.0, 1)
    lived = penstock.simulate(
        run,
        calibrate=[str(folder.path) for folder in folders],
        lives=40,
        failures={"software_mtbf": f"{apart_s:.6f} s"},
    )
    seconds, faults = lived.seconds.sum(axis=0), lived.counts.sum()
    made = sum(life.steps for life in lived.lives)
    each = {cause: seconds[list(Cause).index(cause)] for cause in CAUSES}
    return {
        Cause.DOWN: each[Cause.DOWN] / faults * real.faults,
        Cause.REDO: each[Cause.REDO] / faults * real.faults,
        Cause.CHECKPOINT: each[Cause.CHECKPOINT] / made * real.steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--faults", type=int, default=5)
    parser.add_argument("--stops", type=int, default=12, help="one fault in so many is a SIGSTOP")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    parser.add_argument("overrides", nargs="*", help="fields of the run file, such as a.b=c")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        where = given.keep or Path(made)
        where.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        done = [
            drill(where, n, given.faults, given.stops, given.overrides) for n in range(given.runs)
        ]
        took_s = time.monotonic() - begun
        known, real = total(done[0::2]), total(done[1::2])
        found = predict(done[0::2], real, given.overrides)
    rows = {
        str(cause): {
            "calibrated_on_s": known.seconds[cause],
            "predicted_s": found[cause],
            "measured_s": real.seconds[cause],
            "off": found[cause] / real.seconds[cause] - 1,
        }
        for cause in CAUSES
    }
    if given.json:
        told = {"calibrated": known.to_json(), "measured": real.to_json(), "by_cause": rows}
        print(json.dumps(told | {"took_s": took_s}))
        return
    print(
        f"{known.faults} faults in {known.steps} steps calibrate, {real.faults} in {real.steps} ",
        end="",
    )
    print(f"steps are predicted; {took_s:.0f} s in all. Seconds of an average rank:")
    print("cause       calibrated on  predicted  measured      off")
    for name, row in rows.items():
        print(
            f"{name:<12}{row['calibrated_on_s']:13.2f}{row['predicted_s']:11.2f}"
            f"{row['measured_s']:10.2f}{100 * row['off']:8.1f} %"
            + ("" if abs(row["off"]) <= GOAL else "   over 20 %")
        )


if __name__ == "__main__":
    main()
