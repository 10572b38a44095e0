"""Replicas that take local steps, planned and measured: bytes, step and exchange.

    python benchmarks/sync_plan.py [--steps 60] [--no-probe]   two ranks of this machine
    python benchmarks/sync_plan.py --codecs                   passes of each codec over its values

Exit code 1 when the bytes of a run differ from the plan's by one, or a step by more than 15 %. The
probe runs first, so that the plan knows this machine; a machine that others use changes its speed
from minute to minute, and only a quiet one tells anything about seconds.

`--codecs` prints the figures of `WORK` in `plan/step/outer.py`: time of a codec with the copies
around it, over the time of adding two vectors of as many values, on one core.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from penstock.ledger.journal.read import read_events, read_steps
from penstock.ledger.journal.records import journal_files
from penstock.meter.probe import probe
from penstock.plan.hardware.cluster import here_file
from penstock.run.clusters.load import save_cluster
from penstock.train.codecs.codec import build_codec
from penstock.train.optim.nesterov import Nesterov
from penstock.train.replicas.outer import OuterStep

WITHIN = 0.15
SKIPPED = 10  # first steps of a run, which warm up
CASES = {
    "every step": ["train.sync.local_steps=1"],
    "every step, int8": ["train.sync.local_steps=1", "train.sync.compress=int8"],
    "10 steps, none": ["train.sync.local_steps=10"],
    "10 steps, int4": ["train.sync.local_steps=10", "train.sync.compress=int4"],
    "10 steps, int2 in 2": [
        *("train.sync.local_steps=10", "train.sync.compress=int2", "train.sync.stream=2")
    ],
    "10 steps, top-k": ["train.sync.local_steps=10", "train.sync.compress=topk:3%"],
}
RUN = """
[model]
preset = "llama-3m"
[data]
dataset = "stdlib"
[train]
batch_tokens = 4096
[layout]
replicate = 2
[cluster]
accelerators = 2
[evaluate]
every = "never"
[guard]
checkpoint = "10000 steps"
fast = "never"
"""
VALUES = 1 << 21
TRIES = 15


def penstock(*arguments: str) -> dict:
    command = [sys.executable, "-m", "penstock", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr}")
    return json.loads(done.stdout)


def compare(steps: int, with_probe: bool) -> int:
    if with_probe:
        save_cluster(probe(lambda what, done, of: None), here_file())
    worst, wrong = 0.0, False
    heads = ("planned ms", "measured", "×", "bytes planned", "sent", "exchange ms", "measured")
    print(f"{'':<22}" + "".join(f"{head:>14}" for head in heads), flush=True)
    with tempfile.TemporaryDirectory() as runs:
        file = Path(runs) / "run.toml"
        file.write_text(RUN)
        for name, fields in CASES.items():
            folder = name.replace(" ", "-").replace(",", "")
            asked = [str(file), *fields, f"train.steps={steps}", f"dir={runs}", f"name={folder}"]
            plan = penstock("plan", *asked)
            penstock("train", *asked)
            step_s, exchange_s, sent = measured(Path(runs) / folder)
            sync = plan["sync"]
            planned = sync["run_published_bytes"] if sync["exchange"] else sent
            ratio = plan["step_s"] / step_s
            waits = plan["step"].get("exchange", 0.0) + plan["step"].get("reduce", 0.0)
            cells = (
                f"{1e3 * plan['step_s']:.1f}",
                f"{1e3 * step_s:.1f}",
                f"{ratio:.2f}",
                f"{planned:,.0f}",
                f"{sent:,}",
                f"{1e3 * waits:.2f}",
                f"{1e3 * exchange_s:.2f}",
            )
            print(f"{name:<22}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
            worst, wrong = max(worst, abs(ratio - 1)), wrong or planned != sent
    print(f"worst step: {worst:.0%} off; bytes {'differ' if wrong else 'equal'}")
    return int(wrong or worst > WITHIN)


def measured(folder: Path) -> tuple[float, float, int]:
    """Return the mean step, the mean time in exchanges, and the bytes of one replica's rounds.

    The mean, not the median: a round ends in a few steps only.
    """
    files = journal_files(folder / "journal", "events")
    tables = [read_steps(file) for file in sorted((folder / "journal").glob("*.steps"))]
    total = statistics.fmean(float(t["total"][SKIPPED:].mean()) for t in tables)
    exchange = min(float(t["exchange"][SKIPPED:].mean()) for t in tables)
    sent: dict[str, int] = {}
    for file in files:
        for line in read_events(file.path):
            if line.kind == "round":
                sent[file.path.name] = sent.get(file.path.name, 0) + line.payload["sent_bytes"]
    return total, exchange, max(sent.values(), default=0)


class Echo:
    """A transport to replicas that send the same."""

    replica = 0

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    def begin(self, content: torch.Tensor) -> "Echo":
        self.content = content
        return self

    def wait(self) -> list[torch.Tensor]:
        return [self.content] * self.replicas


def print_codecs() -> None:
    torch.set_num_threads(1)
    first, second = torch.randn(VALUES), torch.randn(VALUES)
    unit = _least_s(lambda: first + second)
    print(f"adding: {unit / VALUES * 1e9:.3f} ns a value")
    for name in ("none", "bf16", "int8", "int4", "int2", "topk:3%"):
        begin = {}
        finish = {}
        for replicas in (1, 5):
            weights = {"w": torch.randn(VALUES)}
            outer = OuterStep(weights, build_codec(name), Nesterov(1.0, 0.3), Echo(replicas))
            weights["w"].add_(torch.randn(VALUES), alpha=0.01)
            begin[replicas] = _least_s(lambda step=outer: _begin(step)) / unit
            both = _least_s(lambda step=outer: (_begin(step), step.finish(0))) / unit
            finish[replicas] = both - begin[replicas]
        each = (finish[5] - finish[1]) / 4
        print(
            f"{name:<8} encode {begin[1]:6.1f}  decode a message {each:5.1f}  "
            f"apply {finish[1] - each:5.1f}"
        )


def _begin(outer: OuterStep) -> None:
    outer.flights = {}
    outer.begin(0, 1)


def _least_s(work: Callable[[], object]) -> float:
    """Return the least time of a core: what else runs on the machine only adds to it."""
    found = []
    for _ in range(TRIES):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--no-probe", action="store_true", help="plan with the last probe, if any")
    parser.add_argument("--codecs", action="store_true")
    options = parser.parse_args()
    if options.codecs:
        print_codecs()
    else:
        sys.exit(compare(options.steps, not options.no_probe))
