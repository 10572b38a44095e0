"""What the loop around a step costs: `penstock train` beside its own engine alone, on one device.

`python benchmarks/overhead.py [--json FILE]`. The engine alone does the same steps on random tokens
and records nothing (`train_speed.py`, case penstock/160M). The run reads data, keeps a journal and
clocks, watches `control/` and the guard's interval. Steps of about a tenth of a second: larger
models hide more. Medians of as many steps; the first are left out, and the end's checkpoint is not
a step. The engine is measured before and after the run: how far the two are apart is the noise.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.ledger.journal.read import read_steps

SKIPPED, STEPS = 10, 70
FIELDS = [
    "data.sequence=1024",
    "train.batch_tokens=65536",
    "layout.microbatch=64",
    "evaluate.every=never",
    "guard.checkpoint=1000 steps",
    f"train.steps={SKIPPED + STEPS}",
]


def alone(folder: Path) -> float:
    """Seconds of a step."""
    where = folder / "alone.json"
    script = Path(__file__).with_name("train_speed.py")
    command = [sys.executable, str(script), "--cases", "penstock/160M", "--json", str(where)]
    command += ["--steps", str(STEPS)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (result,) = json.loads(where.read_text())
    return result["step_ms"] / 1e3


def whole(folder: Path) -> tuple[float, float]:
    """Seconds of a step, and of it what stands outside fetching, computing and exchanging."""
    file = folder / "run.toml"
    file.write_text('name = "overhead"\n[model]\npreset = "llama-160m"\n')
    command = [sys.executable, "-m", "penstock", "train", str(file), f"dir={folder}", *FIELDS]
    subprocess.run([*command, "--json"], check=True, stdout=subprocess.DEVNULL)
    (journal,) = (folder / "overhead" / "journal").glob("*.steps")
    steps = read_steps(journal)[SKIPPED:]
    rest = steps["total"] - steps["fetch"] - steps["compute"] - steps["exchange"]
    return statistics.median(steps["total"].tolist()), statistics.median(rest.tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        before_s = alone(Path(name))
        step_s, rest_s = whole(Path(name))
        after_s = alone(Path(name))
    engine_s = (before_s + after_s) / 2
    found = {"train_ms": step_s * 1e3, "engine_ms": engine_s * 1e3, "rest_ms": rest_s * 1e3}
    found["overhead"] = step_s / engine_s - 1
    print(f"penstock train  {found['train_ms']:8.2f} ms a step")
    print(f"its engine      {before_s * 1e3:8.2f} and {after_s * 1e3:.2f} ms")
    print(f"overhead        {found['overhead']:8.2%}; unaccounted in a step {rest_s * 1e3:.2f} ms")
    if given.json:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
