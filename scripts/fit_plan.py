"""Fits the planner's constants to measured runs, and once more without each source.

    python scripts/fit_plan.py     # about two minutes; writes src/penstock/plan/job/fitted.json

Memory has two constants, which a grid finds: of the allocator, fitted to runs that published what
it reserved or what the device showed.

Robust least squares on the logarithm of predicted over measured step time. Every source counts
about the same, however many rows it has, and every constant is held to its prior (the defaults of
`Constants`) by a pull worth a few rows: one that no row speaks of stays where it was.
"""

import json
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np

from penstock.plan.backtest import run_rows, runs
from penstock.plan.backtest.memory_rows import measured, predict_row
from penstock.plan.backtest.rows import MeasuredRow, RowSkipped, read
from penstock.plan.job.constants import CEILING, FLOOR, Constants, StrandedMemory, constant_names
from penstock.plan.job.job import RATE_OF
from penstock.plan.step import step

HERE = Path(__file__).resolve().parent.parent
FACTS = [HERE / f"benchmarks/facts/{name}.csv" for name in ("throughput", "throughput_more")]
MEMORY_FACTS = [
    HERE / f"benchmarks/facts/{name}.csv" for name in ("memory", "memory_more", "memory_own")
]
RUN_FACTS = HERE / "benchmarks/facts/runs.csv"
LARGE_GIB = 10.0
OUT = HERE / "src/penstock/plan/job/fitted.json"

PRIOR = np.array([asdict(Constants())[name] for name in constant_names()])
TOP = np.array(
    [np.log(CEILING.get(n, np.inf) / p) for n, p in zip(constant_names(), PRIOR, strict=True)]
)
LOW = np.array(
    [np.log(FLOOR.get(n, 1e-30) / p) for n, p in zip(constant_names(), PRIOR, strict=True)]
)
# The pull of a prior: a constant 35 % off weighs as much as a tenth of a row's usual error.
PULL = 0.1 / 0.35**2
ROUNDS = 8


def constants(x: np.ndarray) -> Constants:
    return Constants(**dict(zip(constant_names(), (PRIOR * np.exp(x)).tolist(), strict=True)))


def errors(rows: list[MeasuredRow], c: Constants) -> np.ndarray:
    """Logarithm of predicted over measured step time."""
    return np.array([np.log(step.predict(r.job, c).step_s / r.step_s) for r in rows])


def fit(rows: list[MeasuredRow]) -> Constants:
    count = Counter((r.source, r.job.shape.moe) for r in rows)
    weight = np.array([count[r.source, r.job.shape.moe] ** -0.8 for r in rows])
    weight *= np.where([r.job.shape.moe for r in rows], 0.5, 1.0)
    weight *= 12 * len(count) / weight.sum()
    x = np.zeros(len(PRIOR))
    for _ in range(ROUNDS):
        now = errors(rows, constants(x))
        slope = np.empty((len(rows), len(x)))
        for j in range(len(x)):
            moved = x.copy()
            moved[j] += 0.02
            slope[:, j] = (errors(rows, constants(moved)) - now) / 0.02
        # Rows count by 1 / error, so the sum that falls is that of absolute errors.
        w = weight * 0.1 / np.maximum(np.abs(now), 0.03)
        left = slope.T @ (w[:, None] * slope) + PULL * np.eye(len(x))
        right = -(slope.T @ (w * now) + PULL * x)
        x = np.clip(x + np.clip(np.linalg.solve(left, right), -0.4, 0.4), LOW, TOP)
    return constants(x)


def spread(found: list[float]) -> list[float]:
    """The 10th and 90th percentile of measured over predicted: the band of a prediction."""
    return [round(float(q), 4) for q in np.exp(np.quantile(-np.array(found), [0.1, 0.9]))]


def memory_rows() -> list[MeasuredRow]:
    """Rows whose memory was measured, large enough that the model and not the driver decides."""
    found = []
    for path in MEMORY_FACTS:
        for row in read(path)[1]:
            whole = row.cells.get("component") in ("", "total")
            if row.job and whole and row.cells["oom"] != "1" and (measured(row) or 0) >= LARGE_GIB:
                found.append(row)
    return found


def as_reserved(row: MeasuredRow) -> MeasuredRow | None:
    """The row as one of what was reserved or used; None: it published neither."""
    metric = row.cells["mem_metric"]
    if row.cells["reserved_gib"]:
        cells = {**row.cells, "peak_mem_gib": "", "mem_metric": "reserved GiB"}
        return MeasuredRow(row.number, cells, row.job, "", row.assumed)
    return row if "smi" in metric else None


def memory_errors(rows: list[MeasuredRow], holes: StrandedMemory) -> np.ndarray:
    """Logarithm of predicted over measured memory."""
    return np.array([np.log(predict_row(row, holes)[0] / measured(row)) for row in rows])


def fit_memory(rows: list[MeasuredRow]) -> dict[str, StrandedMemory]:
    """The allocator's constants by all sources, and without each."""
    prior = StrandedMemory()
    scale = np.exp(np.linspace(-1, 1, 21))
    sources = np.array([row.source for row in rows])
    grid = {}
    for a, b in product(scale, scale):
        holes = StrandedMemory(prior.share * a, prior.most_bytes * b)
        off = np.abs(memory_errors(rows, holes))
        grid[holes] = (
            {source: off[sources == source].mean() for source in set(sources)},
            0.01 * (np.log(a) ** 2 + np.log(b) ** 2),  # the pull of the prior: 1 % per e-fold
        )

    def best(without: str = "") -> StrandedMemory:
        def score(holes: StrandedMemory) -> float:
            by_source, pull = grid[holes]
            return pull + np.mean([v for name, v in by_source.items() if name != without])

        return min(grid, key=score)

    return {"all": best()} | {f"without {name}": best(name) for name in sorted(set(sources))}


def memory_table() -> tuple[dict[str, dict[str, float]], list[float]]:
    """The fits of the allocator's constants, and the band over left-out sources."""
    rows = memory_rows()
    fits = fit_memory([found for row in rows if (found := as_reserved(row))])
    apart = []
    for row in rows:
        holes = fits.get(f"without {row.source}", fits["all"])
        try:
            apart += memory_errors([row], holes).tolist()
        except RowSkipped:
            continue
    return {
        name: {"share": float(f"{h.share:.3g}"), "most_bytes": float(f"{h.most_bytes:.4g}")}
        for name, h in fits.items()
    }, spread(apart)


def runs_table() -> dict[str, dict[str, float]]:
    """The fits of what whole runs take beyond their plans."""
    fits = runs.fit(run_rows.read(RUN_FACTS))
    return {name: {"factor": float(f"{factor:.4g}")} for name, factor in fits.items()}


def only_runs() -> None:
    """Make the fits of whole runs anew and leave the others."""
    table = json.loads(OUT.read_text(encoding="utf-8")) | {"runs": runs_table()}
    OUT.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print("runs", table["runs"]["all"], f"wrote {OUT.relative_to(HERE)}")


def main() -> None:
    began = time.time()
    memory_fits, memory_band = memory_table()
    print("memory", memory_fits["all"], "band", memory_band)
    rows = [row for path in FACTS for row in read(path)[1] if row.job and row.step_s]
    fits = {"all": asdict(fit(rows))}
    apart: dict[str, list[float]] = defaultdict(list)
    scores: dict[str, dict[str, float]] = {}
    for source in sorted({row.source for row in rows}):
        found = fit([row for row in rows if row.source != source])
        fits[f"without {source}"] = asdict(found)
        own = [row for row in rows if row.source == source]
        for row, error in zip(own, errors(own, found), strict=True):
            apart["moe" if row.job.shape.moe else "dense"].append(float(error))
            off = abs(np.exp(error) - 1) * 100
            scores.setdefault(source, {}).setdefault(
                "moe" if row.job.shape.moe else "dense", []
            ).append(off)
        print(f"{time.time() - began:5.0f} s  without {source}", flush=True)
    means = {s: {k: round(float(np.mean(v)), 2) for k, v in d.items()} for s, d in scores.items()}
    for kind in ("dense", "moe"):
        print(kind, "left out, macro:", np.mean([d[kind] for d in means.values() if kind in d]))
    table = {
        "made": "python scripts/fit_plan.py",
        "rows": len(rows),
        "left_out_mape": means,
        "bands": {kind: spread(found) for kind, found in apart.items()} | {"memory": memory_band},
        "memory": memory_fits,
        "seen": seen(rows),
        "fits": {
            name: {k: float(f"{v:.5g}") for k, v in values.items()} for name, values in fits.items()
        },
    }
    OUT.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {OUT.relative_to(HERE)}")
    only_runs()  # by the constants above


def seen(rows: list[MeasuredRow]) -> dict[str, object]:
    """What the measured runs cover; a plan outside of it says so."""
    jobs = [row.job for row in rows]
    return {
        "accelerators": sorted(
            {f"{j.machine.accelerator} {RATE_OF.get(j.precision, j.precision)}" for j in jobs}
        ),
        "ranks": [min(j.layout.ranks for j in jobs), max(j.layout.ranks for j in jobs)],
        "hidden": [min(j.shape.hidden for j in jobs), max(j.shape.hidden for j in jobs)],
        "sequence": [min(j.sequence for j in jobs), max(j.sequence for j in jobs)],
        "tensor": max(j.layout.tensor for j in jobs),
        "pipeline": max(j.layout.pipeline for j in jobs),
        "context": max(j.layout.context for j in jobs),
        "expert": max(j.layout.expert for j in jobs),
    }


if __name__ == "__main__":
    only_runs() if sys.argv[1:] == ["--runs"] else main()
