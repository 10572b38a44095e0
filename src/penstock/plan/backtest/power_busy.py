"""The busy share of a benchmark's accelerators, from its configuration: nodes, batch, run length.

One node of a tuned benchmark is always busy. A batch of the same size on more nodes leaves each
less to do, so more of its time goes to collectives; a short run is long on what is not a step. Runs
of the catalog, and of the same table, tell how long a benchmark takes on one node. Only their times
are used here, never what their meters said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from penstock.catalog import accelerators
from penstock.catalog.accelerators import Accelerator
from penstock.catalog.power import MeteredRun
from penstock.catalog.table import fold
from penstock.plan.backtest.power_rows import NodeConfig

# Several nodes and nothing to compare with: between runs of one batch on 8 nodes (0.66 to 0.78, by
# their times) and pretraining, whose batch grows with the nodes (0.9 and more).
USUAL = 0.85
USUAL_OFF = 0.12
# Seconds of any run in which accelerators stand by: between start and first step, and before the
# first evaluation. Logs of MLPerf v4.0 show 4 s (images) to 30 s (a language model of 70B).
STANDBY_S = 15.0
# Share of a step on one node that does not shrink with the batch: 0.035 to 0.075, by the times of
# four benchmarks on one node and on eight or nine (MLPerf v4.0).
UNSHRINKING = 0.06
LEAST = 0.2
# Other names of the same benchmark, folded.
SAME = {
    "retinanet": "ssd",
    "bertlarge": "bert",
    "resnet50": "resnet",
    "3dunet": "unet3d",
    "lora": "llama270blora",
    "llama2lora": "llama270blora",
    "dlrm": "dlrmdcnv2",
    "dlrmv2": "dlrmdcnv2",
}


@dataclass(frozen=True)
class BusyShare:
    """A share of the time, how far it may be off, and why, in words."""

    share: float
    off: float
    words: str


def benchmark_of(name: str) -> str:
    folded = fold(name)
    return SAME.get(folded, folded)


@dataclass(frozen=True)
class TimedBenchmark:
    """The time that a benchmark took on one node."""

    benchmark: str
    accelerator: Accelerator
    accelerators: int
    batch: float | None
    run_s: float

    @classmethod
    def of_catalog(cls, run: MeteredRun) -> "TimedBenchmark":
        chip = accelerators.find(run.accelerator)
        name = benchmark_of(run.benchmark)
        return cls(name, chip, run.accelerators, run.global_batch, run.run_s)

    @classmethod
    def of_config(cls, config: NodeConfig) -> "TimedBenchmark":
        assert config.run_s
        name = benchmark_of(config.benchmark)
        return cls(name, config.accelerator, config.accelerators, config.batch, config.run_s)


def busy(
    config: NodeConfig, known: Sequence[MeteredRun], table: Sequence[NodeConfig] = ()
) -> BusyShare:
    """Estimate the busy share. `known` are other metered runs than this one; `table` all rows
    beside it.
    """
    if config.busy is not None:
        return BusyShare(config.busy, 0.03, "as the row says")
    if config.nodes == 1:
        return BusyShare(1.0, 0.03, "one node is kept busy")
    name = benchmark_of(config.benchmark)
    same = [run for run in known if benchmark_of(run.benchmark) == name]
    timed = [TimedBenchmark.of_catalog(run) for run in same if run.nodes == 1]
    timed += [TimedBenchmark.of_config(c) for c in table if c.nodes == 1 and c.run_s]
    return _by_time(config, timed) or _by_batch(config, same) or _usual(config)


def _by_time(config: NodeConfig, timed: Sequence[TimedBenchmark]) -> BusyShare | None:
    """Return the accelerator-seconds of the same work on one node over those here."""
    name = benchmark_of(config.benchmark)
    like = [run for run in timed if run.benchmark == name and run.batch == config.batch]
    if not like or not config.run_s or not config.batch:
        return None
    run = min(like, key=lambda run: run.accelerator.name != config.accelerator.name)
    faster = _faster(config.accelerator, run.accelerator)
    share = run.accelerators * run.run_s / faster / (config.accelerators * config.run_s)
    words = f"{share:.2f} by its length: {run.run_s:.0f} s on one node of {run.accelerator.name}"
    return BusyShare(_clipped(share), 0.03 if faster == 1 else 0.1, words)


def _by_batch(config: NodeConfig, same: Sequence[MeteredRun]) -> BusyShare | None:
    """Estimate from the run with the nearest batch per accelerator; a short run also stands by
    longer.

    A step has a part that does not shrink with the batch, so 1 / busy = 1 + part / batch.
    """
    known = [run for run in same if run.whole]
    if not config.batch or not known:
        return None
    own = config.batch / config.accelerators
    near = min(known, key=lambda run: abs(log(run.global_batch / run.accelerators / own)))
    theirs = near.global_batch / near.accelerators
    part = theirs * (1 / near.busy - 1 if near.busy < 1 else UNSHRINKING)
    share = 1 / (1 + part / own) * _stepping(config.run_s) / _stepping(near.run_s)
    words = f"{share:.2f}: {near.name} had {theirs:g} samples an accelerator, this has {own:g}"
    return BusyShare(_clipped(share), 0.1, words)


def _usual(config: NodeConfig) -> BusyShare:
    share = USUAL * _stepping(config.run_s)
    return BusyShare(_clipped(share), USUAL_OFF, f"{share:.2f} assumed for {config.nodes} nodes")


def _stepping(run_s: float | None) -> float:
    return 1.0 if not run_s else max(0.5, 1 - STANDBY_S / run_s)


def _faster(own: Accelerator, other: Accelerator) -> float:
    """Return how much faster one accelerator is than another, by their peaks."""
    if own.name == other.name or not own.bf16_tflops or not other.bf16_tflops:
        return 1.0
    return own.bf16_tflops / other.bf16_tflops


def _clipped(share: float) -> float:
    return min(1.0, max(LEAST, share))
