"""The plan of a run on a machine: the job that the run means, and both models on it."""

from collections.abc import Sequence
from dataclasses import replace

from penstock.plan import agreement, calibration
from penstock.plan.advice import StepModels
from penstock.plan.assemble import Bands, assemble
from penstock.plan.dataset import DatasetSizes, needed
from penstock.plan.hardware import precision
from penstock.plan.hardware.machine import INSIDE, Machine
from penstock.plan.job import legal
from penstock.plan.job.constants import band, measured_range
from penstock.plan.job.job import RATE_OF, Job
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import Band, StepTime
from penstock.plan.memory import memory
from penstock.plan.plan import Plan
from penstock.plan.search.choose import choose_layout, lighter_ways
from penstock.plan.search.search import search, trainable_space
from penstock.plan.step import notes as step_notes
from penstock.plan.step import step
from penstock.plan.sync import NO_SITES
from penstock.run.schema.run import Run
from penstock.run.unsupported import unsupported_lines

# Bands of jobs outside of the measured runs: half as wide again.
UNSEEN_POWER = 1.5


def make(
    run: Run,
    machine: Machine,
    warnings: Sequence[str] = (),
    layout: Layout | None = None,
    data: DatasetSizes | None = None,
    begins_s: float | None = None,
) -> Plan:
    """Plan `run` on `machine`. `warnings` list what finding the machine had to assume; a launch
    gives its `layout` and the sizes of its dataset. `begins_s` is its start, now by default.
    """
    if data is None:
        known = needed(run)
        run, data, warnings = known.run, known.sizes, (*warnings, *known.notes)
    run, notes = precision.settled(run, machine)
    run, agreed = agreement.settled(run, machine, data.vocab if data else None)
    warnings = (*warnings, *notes, *([agreed.words()] if agreed else []))
    picked = choose_layout(run, machine, data.vocab if data else None, layout)
    job, folded = picked.job, calibration.load()
    starts, evaluations = calibration.life_factors(job, folded)
    here = replace(job.machine, start_factor=starts, evaluate_factor=evaluations)
    job = replace(job, machine=here)
    records = calibration.matching(job, folded)
    by = calibration.factor(job, records)
    outside = outside_measured_runs(job)
    usual = _wider(Band(*band(job.shape.moe)), job, outside)

    def step_of(job: Job) -> StepTime:
        return calibration.applied(step.predict(job), by)

    models = StepModels(step_of, memory.predict)
    return assemble(
        run,
        job,
        replace(step_of(job), notes=step_notes.lines(job, by, len(records))),
        memory.predict(job),
        models,
        Bands(calibration.band(job, records, usual), memory.band(job)),
        run.steps(data.samples if data else None),
        (
            *warnings,
            *outside,
            *_calibrated(by, len(records)),
            *not_counted(run, job),
            *not_trained_yet(run, job),
            *legal.layout_warnings(run, job.layout),
            *_of_one_site(run, job),
            *_cut_replicas(job),
            *_better(run, job),
        ),
        picked.options,
        picked.rejected,
        data.held_out_tokens if data else None,
        agreed,
        begins_s,
    )


def _calibrated(by: float, runs: int) -> list[str]:
    """Note a calibration that changes a plan by more than its usual noise."""
    if abs(by - 1) < calibration.FLOOR:
        return []
    return [f"step times are × {by:.2f} by {runs} measured run{'s' if runs > 1 else ''} here"]


def _wider(usual: Band, job: Job, outside: Sequence[str]) -> Band:
    """Widen the band of what was not measured: a guessed machine may be off by its own factor."""
    if job.machine.sources.get("", "").startswith("estimated"):
        return Band(0.5, 2.0)
    power = UNSEEN_POWER if outside and not job.machine.curves else 1.0
    return Band(usual.low**power, usual.high**power)


def not_counted(run: Run, job: Job) -> list[str]:
    """Return notes on fields of the file that the plan does not count."""
    found = []
    if run.train.optimizer != "adamw":
        found.append(f'train.optimizer = "{run.train.optimizer}" (its time, as adamw\'s)')
    notes = [f"not counted yet: {', '.join(found)}"] if found else []
    rate = RATE_OF.get(job.precision, job.precision)
    if rate not in job.machine.matmul_flops and not job.machine.curves:
        notes.append(
            f"{job.machine.accelerator} has no {rate} rate; its 16-bit rate was used, or 32-bit"
        )
    return notes


def not_trained_yet(run: Run, job: Job) -> list[str]:
    """Return a note on what this version plans and does not train yet."""
    lay, open_ = job.layout, trainable_space(run)
    ways = []
    for name in (*legal.MODEL_WAYS, "recompute"):
        allowed, found = getattr(open_, name), getattr(lay, name)
        if allowed is not None and found not in allowed:
            ways.append(f"{found} {name}" if name == "recompute" else f"{name} {found}")
    asked = [
        line.partition(":")[0] for line in unsupported_lines(run) if not line.startswith("layout.")
    ]
    found = ", ".join(asked + ways)
    return [f"planned, not trained by this version yet: {found}"] if found else []


def _better(run: Run, job: Job) -> list[str]:
    """Return a hint about what fits where the file's layout does not."""
    if run.layout is None or memory.predict(job).fits:
        return []
    found = search(job, job.layout.ranks, trainable_space(run))
    if found.best:
        return [f"without [layout], {found.best[0].layout} fits"]
    return [told] if (told := lighter_ways(run, job)) else []


def _cut_replicas(job: Job) -> list[str]:
    """Return a note on replicas that take local steps and are larger than what fast links join."""
    tiers = job.machine.tiers
    if not job.apart or job.sync.sites or len(tiers) < 2 or tiers[-1].name in INSIDE:
        return []
    near, far = tiers[-2], tiers[-1]
    if job.agreeing_ranks <= near.size and near.size % job.agreeing_ranks == 0:
        return []
    return [
        f"layout.replicate = {job.layout.replicate}: a replica of {job.agreeing_ranks} ranks uses "
        f"{far.name} in every step, and {near.name} joins {near.size}; write "
        f"{job.layout.ranks // near.size}, or a multiple of it"
    ]


def _of_one_site(run: Run, job: Job) -> list[str]:
    """Return notes on a run of several sites, of which one is planned."""
    if not run.sites:
        return []
    notes = [
        f"sites: planned is one of {run.sites.count}, with its own machines and "
        f"1/{run.sites.count} of each batch; tokens, price and energy are its own"
    ]
    return notes if job.machine.site_links else [*notes, f"sites: the link is {NO_SITES}"]


def outside_measured_runs(job: Job) -> list[str]:
    """Return a note on what lies outside of the runs that the planner was checked on."""
    known, lay = measured_range(), job.layout
    chip = f"{job.machine.accelerator} {RATE_OF.get(job.precision, job.precision)}"
    spans = {
        "accelerators": (lay.ranks, *known.ranks),
        "model.hidden": (job.shape.hidden, *known.hidden),
        "data.sequence": (job.sequence, *known.sequence),
        "layout.tensor": (lay.tensor, 1, known.tensor),
        "layout.pipeline": (lay.pipeline, 1, known.pipeline),
        "layout.context": (lay.context, 1, known.context),
        "layout.expert": (lay.expert, 1, known.expert),
    }
    outside = [
        f"{name} {value} (seen {low} to {high})"
        for name, (value, low, high) in spans.items()
        if not low <= value <= high
    ]
    if chip not in known.accelerators and not job.machine.curves:
        outside.insert(0, chip)
    return [f"outside of the measured runs: {', '.join(outside)}"] if outside else []
