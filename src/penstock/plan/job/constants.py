"""The constants that were fitted to measurements: their meanings, and where their priors come from.

Nothing else in the planner is fitted. Peak and sustained rates, bandwidths, latencies
and powers are facts of the catalog or of a probe; the rest is counted from the model's shape.
`scripts/fit_plan.py` makes the fit and the leave-one-source-out fits, and writes them beside this
file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Constants:
    """The fitted constants. The defaults are the priors: estimates made before looking at any
    training run.
    """

    # Compute.
    matmul_fp8: float = 0.85  # of the best 8-bit matmul: catalogs measure only 16-bit ones
    watt_16: float = (
        0.90  # picojoule per 16-bit FLOP at 5 nm: power, not the clock, limits big chips
    )
    watt_8: float = 0.50  # per 8-bit FLOP
    watt_4: float = 0.30  # per 4-bit FLOP
    rowwise_scaling: float = 0.70  # of the rate, with one scale per row, cast apart from the matmul
    reuse: float = 1.05  # traffic of a matmul, over reading and writing each matrix once
    attention: float = 0.60  # fused attention made for the chip, forward and backward together
    attention_portable: float = 0.45  # fused attention of an older chip run on Hopper and later
    # Memory-bound work, in reads or writes of a layer's activations over forward and backward.
    passes_fused: float = 8.0  # compiled or hand-fused
    passes_eager: float = 20.0  # one kernel per operation
    score_passes: float = 9.0  # over the score matrix, where attention writes it to memory
    cast_passes: float = 2.5  # over a matmul's operands, to make them 8- or 4-bit
    # The host, which has to issue every kernel: seconds per layer and microbatch.
    host_layer_s: float = 1.0e-3
    host_expert_s: float = 4.0e-3  # a layer with routed experts
    host_dropless_s: float = 3.0e-3  # more, when it must wait to see how many tokens each got
    # Communication.
    tensor_exposed: float = 0.35  # of tensor-parallel collectives that run behind matmuls
    hidden_share: float = 0.80  # of compute behind which sharded weights and gradients can travel
    contention: float = 0.15  # compute slowed per second of collective behind it
    all_to_all: float = 0.55  # of a tier's bandwidth, when every rank talks to every other
    jitter: float = 0.004  # of the step, per doubling of the number of nodes


@dataclass(frozen=True)
class StrandedMemory:
    """Free blocks of torch's caching allocator that it cannot hand out again, because others are
    alive between them or their sizes do not match.

    They grow with what comes and goes in a step, and level off: a large job is many blocks of the
    same sizes. Both are fitted, to runs that published what was reserved or used; the defaults are
    the priors, from 27 runs that published what was allocated too (SimuMax v1.2, B200).
    """

    share: float = 0.5  # of what comes and goes, while that is little
    most_bytes: float = 8.0 * 2**30

    def of(self, fleeting: float) -> float:
        """Return the stranded bytes of a rank on which `fleeting` bytes come and go."""
        return self.share * fleeting / (1 + self.share * fleeting / self.most_bytes)


@dataclass(frozen=True)
class WholeRun:
    """The time that whole published runs took beyond the plan of their program and layout.

    Tries that were thrown away, restarts by hand, slow nodes, a batch that grows, evaluations:
    accelerator-hours that a model card counts and nobody itemises. Only the backtest of whole runs
    has it; the ledger of a plan lists its causes.
    """

    factor: float = (
        1.11  # Llama 3 states more than 90 % of effective time (arXiv 2407.21783, 3.3.4)
    )


# Two more are fitted to something else than step times, memory or whole runs; 25 in all.
# Power: shares of the TDP at work and while waiting, by `power_fit` from metered 8 × H100 nodes of
# MLPerf Training v4.0. The meter does not tell host from accelerator; `power_host` splits them.
BUSY_SHARE = 0.943
WAIT_SHARE = 0.312

# Largest values of shares.
CEILING: Mapping[str, float] = dict.fromkeys(
    ("matmul_fp8", "rowwise_scaling", "hidden_share", "all_to_all"), 1.0
)


# Least values of amounts.
FLOOR: Mapping[str, float] = {"reuse": 1.0}


@dataclass(frozen=True)
class MeasuredRange:
    """The range that the measured runs cover."""

    accelerators: frozenset[str]  # "NAME RATE", such as "H100 SXM5 fp8"
    ranks: tuple[int, int]
    hidden: tuple[int, int]
    sequence: tuple[int, int]
    tensor: int
    pipeline: int
    context: int
    expert: int


@cache
def _table() -> dict[str, Any]:
    """Read the file that the fit wrote."""
    text = resources.files("penstock.plan.job").joinpath("fitted.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def fitted() -> Constants:
    """Return the constants that plans use."""
    return Constants(**_table()["fits"]["all"])


@cache
def fitted_without(source: str) -> Constants:
    """Return the constants fitted without one source; those of all sources when it is not one of
    them.
    """
    fits = _table()["fits"]
    return Constants(**fits.get(f"without {source}", fits["all"]))


def has_fit(source: str) -> bool:
    """Tell whether there are constants fitted without this source."""
    return f"without {source}" in _table()["fits"]


def band(moe: bool) -> tuple[float, float]:
    """Return measured over predicted step time: the 10th and 90th percentile over left-out
    sources.
    """
    low, high = _table()["bands"]["moe" if moe else "dense"]
    return low, high


@cache
def stranded() -> StrandedMemory:
    """Return the constants of the allocator that plans use."""
    return StrandedMemory(**_table()["memory"]["all"])


@cache
def stranded_without(source: str) -> StrandedMemory:
    """Return the allocator's constants fitted without one source of measured memory."""
    fits = _table()["memory"]
    return StrandedMemory(**fits.get(f"without {source}", fits["all"]))


@cache
def whole_run_without(source: str) -> float:
    """Return the factor of whole runs fitted without one source of them; of all sources when it is
    not one of them.
    """
    fits = _table()["runs"]
    return WholeRun(**fits.get(f"without {source}", fits["all"])).factor


def memory_band() -> tuple[float, float]:
    """Return measured over predicted memory: the 10th and 90th percentile over left-out sources."""
    low, high = _table()["bands"]["memory"]
    return low, high


@cache
def measured_range() -> MeasuredRange:
    found = _table()["seen"]
    pairs = {name: (found[name][0], found[name][1]) for name in ("ranks", "hidden", "sequence")}
    return MeasuredRange(
        accelerators=frozenset(found["accelerators"]),
        ranks=pairs["ranks"],
        hidden=pairs["hidden"],
        sequence=pairs["sequence"],
        tensor=found["tensor"],
        pipeline=found["pipeline"],
        context=found["context"],
        expert=found["expert"],
    )


def constant_names() -> list[str]:
    return [field.name for field in fields(Constants)]
