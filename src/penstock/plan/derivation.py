"""Derivations of every number of a plan, by its name in the JSON: the text of `--explain`."""

from penstock.plan.cost import cost
from penstock.plan.job.job import Job
from penstock.plan.job.outcome import PeakMemory, StepTime
from penstock.plan.life import life
from penstock.plan.life.life import RunLife
from penstock.plan.power import power
from penstock.plan.step import notes as step_notes
from penstock.run.schema.run import Run

# Texts that are the same in every plan.
SAME_IN_ALL: dict[str, tuple[str, ...]] = {
    "run": ("the name in the run file",),
    "layout": ("the run file's, or the search's choice where it says none",),
    "mfu_of": ("the bf16 peak, or the fp8 peak of a run in fp8; recomputation not counted",),
    "ledger": ("steps × the parts of a step by cause, and the life of the run, × accelerators",),
    "bottleneck": ("the largest wait in the step from a fifth of it on, else its largest work",),
    "sensitivity": ("per cent more throughput from 10 % more: the models run again",),
    "next": ("every change one field away and every layout of the search, tried",),
    "bands": (
        "80 % of residuals fell between; energy also has the power model's 12 %; days and "
        "effective also have the failure rates of published fleets, where none is stated",
    ),
    "agreement": (
        "every measured way to agree, predicted on this machine; taken is the one that costs "
        "the least loss of those that leave enough of the time for computing",
    ),
    "limits": (
        "limits of the site that are exceeded bind first, then memory, then the budget; else "
        "where a fifth of the accelerators' time or more is lost, else the largest work",
    ),
    "options": ("the fastest layouts that fit",),
    "rejected": ("layouts that do not fit or are not legal, with the reason",),
    "warnings": ("what the plan could not know or had to assume",),
}


def notes(
    run: Run,
    job: Job,
    step: StepTime,
    memory: PeakMemory,
    lived: RunLife,
    bill: cost.Bill,
    draw: power.PowerDraw | None,
    mfu: tuple[float | None, str],
) -> dict[str, tuple[str, ...]]:
    """Return a derivation for every name of the JSON; a name without one uses its parent's."""
    ranks, machine = lived.accelerators, job.machine
    speed = step.tokens / step.step_s
    seconds = " + ".join(f"{name} {s:.4g} s" for name, s in step.parts.items() if s > 0)
    made = (f"{step.step_s:.5g} s = {seconds}", *step.notes)
    watts = draw.notes if draw else ("no TDP is known, so there is no energy",)
    fallen = f"{step.model_flops:.4g} FLOP a step / {step.step_s:.4g} s / {ranks} accelerators"
    where = tuple(f"{field or 'all else'}: {text}" for field, text in machine.sources.items())
    found = SAME_IN_ALL | {
        "machine": (f"cluster.use = {run.cluster.use!r}", *where),
        "accelerators": (f"replicate × shard × tensor × pipeline × context: {job.layout}",),
        "nodes": (f"{ranks} accelerators / {machine.per_node} in a node",),
        "fits": (
            f"memory.peak_bytes × {memory.high:.2f}, the upper end of its band, against "
            f"memory.capacity_bytes; margin without the band {memory.margin:.1%}",
        ),
        "memory": (
            f"the fullest rank, on pipeline stage {memory.stage}",
            f"peak = {' + '.join(f'{n} {b / 2**30:.3g} GiB' for n, b in memory.parts.items())}",
            "allocated_bytes and reserved_bytes are as torch counts them, peak_bytes as the device "
            "shows it: cached blocks are reserved and not allocated, the context is neither",
        ),
        "step_s": made,
        "step": made,
        "steps": (f"train.tokens, steps or epochs over {step.tokens} tokens a step",),
        "tokens": (f"{lived.steps} steps × {step.tokens} tokens",),
        "tokens_per_s": (f"{speed:.5g} = {step.tokens} tokens a step / {step.step_s:.5g} s",),
        "mfu": (f"{fallen} / {mfu[1]}" if mfu[0] is not None else f"left out: {mfu[1]}",),
        "price": bill.notes["usd"],
        "energy_it_kwh": watts,
        "energy_kwh": watts,
        "over_budget": (f"[budget] usd = {run.budget.usd}, hours = {run.budget.hours}",),
        "hours": (
            f"budget.hours_csv = {run.budget.hours_csv}: `policy/hours` chose them; amounts are "
            "those of the site, what it makes itself without a price and without carbon",
        ),
        "site": (
            "busy: all accelerators at work at once, as synchronised ranks are; rated: the "
            "nameplates; a rack holds what its feed and the hall's cooling allow",
            "swing_w: the step of the load when all wait together, once a training step; drop_w: "
            "when the run stops",
            *watts,
        ),
    }
    both_ways = {k: (*found.get(k, ()), *v) for k, v in bill.notes.items()}
    return (
        found
        | life.derivation(run, lived, step)
        | both_ways
        | step_notes.parts(job)
        | {
            "ledger.joules": watts,
            "ledger.usd": bill.notes["usd"],
            "ledger.gco2e": bill.notes["co2e_kg"],
        }
    )
