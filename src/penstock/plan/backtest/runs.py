"""The backtest of whole published runs: accelerator-hours and energy.

The hours of a row are those of the program that trained it, in its published layout; where none was
published, in the fastest layout of that program. They are the steps with what failures, saves and
starts add, times what published runs took beyond that (`WholeRun`, fitted without the row's
source). A plan of our own trainer does without that factor.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from penstock.catalog import accelerators, nodes
from penstock.errors import PenstockError
from penstock.plan.backtest import run_rows
from penstock.plan.backtest.rows import RowSkipped, number
from penstock.plan.backtest.run_report import BEST, RunsReport, ScoredEnergy, ScoredHours
from penstock.plan.backtest.run_rows import WholeRunRow
from penstock.plan.hardware.machine import Machine
from penstock.plan.job import constants
from penstock.plan.job.job import Job
from penstock.plan.life import life
from penstock.plan.life.life import RunLife
from penstock.plan.power import power
from penstock.plan.search.search import SearchSpace, search
from penstock.plan.step import step
from penstock.run.schema.run import Run

# Programs that shard weights and do not split the model, by `Software.name`.
SHARDING = frozenset({"fsdp", "torchtitan", "composer", "litgpt", "xla", "torchtune", "deepspeed"})

# Rows that the prior of the factor counts for: model cards differ by much more than it moves.
PRIOR_ROWS = 20
ANY_MODEL = "llama-8b"


def run(path: Path) -> RunsReport:
    """Predict every row that says enough; the others are listed with their reason."""
    found = run_rows.read(path)
    hours: list[ScoredHours] = []
    energies: list[ScoredEnergy] = []
    skipped: list[tuple[int, str, str]] = []
    for row in found:
        try:
            one, energy, left = predict_row(row)
        except (RowSkipped, PenstockError) as why:
            skipped.append((row.number, row.model, str(why)))
            continue
        hours += [one] if one else []
        energies += [energy] if energy else []
        if left:
            skipped.append((row.number, row.model, left))
    if not hours and not energies:
        first, model, reason = skipped[0]
        raise PenstockError(
            f"none of the {len(found)} rows of {path} can be predicted; row {first} ({model}): "
            f"{reason}. `penstock backtest --help` lists the columns"
        )
    return RunsReport(len(found), tuple(skipped), tuple(hours), tuple(energies))


def predict_row(row: WholeRunRow) -> tuple[ScoredHours | None, ScoredEnergy | None, str]:
    """Return the row's hours and energy beside the published ones, and why one of them is not
    there.
    """
    if row.job is None:
        raise RowSkipped(row.skipped)
    if not row.hours and not number(row.cells, "energy_mwh"):
        raise RowSkipped("gpu_hours, wallclock_days and energy_mwh are blank")
    job = settled(row, row.job)
    lived = lived_of(job, row.tokens) if row.tokens else None
    factor = constants.whole_run_without(row.source)
    hours = None
    if lived and row.hours:
        planned = lived.ledger.total / 3600
        hours = ScoredHours(
            planned * factor,
            row.hours,
            row.source,
            job.machine.accelerator,
            row,
            job,
            planned,
        )
    energy = _energy(row, job, lived, factor)
    if row.tokens is None:
        also = ", its power is" if energy else ""
        return hours, energy, f"tokens_b is blank: its hours cannot be planned{also}"
    return hours, energy, ""


def settled(row: WholeRunRow, job: Job) -> Job:
    """Return the job in the layout that was published, or in the program's fastest that fits."""
    if row.stated & set(run_rows.LAYOUT):
        return job
    fixed: dict[str, Any] = {}
    if "recompute" in row.stated:
        fixed["recompute"] = (job.layout.recompute,)
    if job.software.name in SHARDING:
        space = SearchSpace(tensor=(1,), pipeline=(1,), context=(1,), zero=(3, 2), **fixed)
    else:  # the optimizer is sharded over all replicas
        space = SearchSpace(replicate=(1,), context=(1,), zero=(1,), **fixed)
    ranks = job.layout.ranks
    found = search(job, ranks, space, keep=1)
    if not found.best:
        raise RowSkipped(
            f"{job.shape.params() / 1e9:,.1f}B parameters fit on {ranks} × "
            f"{job.machine.accelerator} in no layout of {job.software.name}; write "
            "num_gpus, tp, pp and sharding as they were"
        )
    return job.with_layout(found.best[0].layout)


def lived_of(job: Job, tokens: float) -> RunLife:
    """Return the life of a run of the job by the guard's own rules."""
    took = step.predict(job)
    return life.predict(_run_of(job, tokens), job, took, max(1, round(tokens / job.tokens)))


def _run_of(job: Job, tokens: float) -> Run:
    """Return a run file for what a life depends on: the guard's defaults and no evaluations. The
    model's shape is the job's.
    """
    fields = {
        "name": "published",
        "model": {"preset": ANY_MODEL},
        "data": {"dataset": "published", "sequence": job.sequence},
        "train": {"tokens": int(tokens), "batch_tokens": job.tokens},
        "evaluate": {"every": "never"},
    }
    return Run.model_validate(fields)


def _energy(
    row: WholeRunRow, job: Job, lived: RunLife | None, factor: float
) -> ScoredEnergy | None:
    """Return the energy of the published hours, or of the planned ones where none were.

    It is the plan's own: seconds × watts of each cause. What published hours have beyond the plan
    nobody itemised; they draw like the rest. A row without tokens is a run as long as its hours.
    """
    measured = number(row.cells, "energy_mwh")
    if lived is None and row.hours:
        lived = lived_of(job, tokens_in(job, row.hours))
    if not measured or lived is None:
        return None
    hours = row.hours or lived.ledger.total / 3600 * factor
    basis = row.cells.get("energy_basis", "").casefold()
    took = step.predict(job)
    alone = re.search(r"gpu[- ]only|\bgpu power", basis)
    if not alone and not known_host(job.machine):
        return None
    draw = (
        power.accelerator_draw(job.machine, took)
        if alone
        else power.power_draw(job.machine, took, job.machine.cooling)
    )
    if draw is None:
        return None
    watts = power.mean_w(lived.ledger, draw)
    of_site = bool(re.search(r"(?:x|×|with|incl\w*) pue", basis)) or not (alone or "pue" in basis)
    pue = _pue(row) if of_site else 1.0
    return ScoredEnergy(
        hours * watts * pue / 1e6,
        measured,
        row.source,
        job.machine.accelerator,
        row,
        watts,
        bool(row.hours),
        bool(re.search(r"circular|hours x|h x \d", basis)),
    )


def tokens_in(job: Job, hours: float) -> float:
    """Return the tokens of as many accelerator-hours of steps."""
    steps = hours * 3600 / job.layout.ranks / step.predict(job).step_s
    return max(1.0, steps) * job.tokens


def known_host(machine: Machine) -> bool:
    """Tell whether the catalog has a node with this accelerator: without one nobody has said what
    its host draws.
    """
    return any(accelerators.find(n.accelerator).name == machine.accelerator for n in nodes.TABLE)


def _pue(row: WholeRunRow) -> float:
    """Return the site's, from its column or from what the basis of the energy says."""
    stated = number(row.cells, "pue")
    inside = re.findall(r"\b1\.\d+", row.cells.get("energy_basis", ""))
    values = [stated] if stated else [float(text) for text in inside]
    return sum(values) / len(values) if values else 1.0


def fit(rows: Sequence[WholeRunRow]) -> dict[str, float]:
    """Return the factor that the median row of grade A took beyond its plan: of all, and without
    each source.
    """
    ratios: list[tuple[str, float]] = []
    for row in rows:
        if row.job and row.tokens and row.hours and row.grade("time") == BEST:
            planned = lived_of(settled(row, row.job), row.tokens).ledger.total / 3600
            ratios.append((row.source, row.hours / planned))
    fits = {"all": _held([ratio for _, ratio in ratios])}
    for source in sorted({source for source, _ in ratios}):
        fits[f"without {source}"] = _held([ratio for one, ratio in ratios if one != source])
    return fits


def _held(ratios: Sequence[float]) -> float:
    """Return the median, held to the prior as by `PRIOR_ROWS` more rows."""
    share = len(ratios) / (len(ratios) + PRIOR_ROWS)
    return median(ratios) ** share * constants.WholeRun().factor ** (1 - share)
