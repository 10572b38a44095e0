"""Advice: the limit of a run in words, and the one thing to change next.

A step always spends most of its time on something. The work of the model is what one pays for, so
waiting or repeating that takes a fifth of the step is the bottleneck; otherwise the largest kind of
work is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from penstock.ledger.causes import Cause
from penstock.plan.hardware.machine import INSIDE, WAN
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import PeakMemory, StepTime
from penstock.plan.life.life import RunLife
from penstock.plan.search.sensitivity import RESOURCES, LayoutOption
from penstock.run.schema.quantity import show_count
from penstock.style import format_count

WORTH_NAMING = 0.20  # of the step: below this, a loss is no bottleneck
WORTH_CHANGING = 0.03  # more throughput: below this, a change is not worth the trouble
WORTH_A_BATCH = 0.05  # more for a larger batch: it changes what is learnt
LOST = 0.10  # of the run to starts, saves and failures, before these are the advice

WORK = (
    "matmuls",
    "attention",
    "memory bandwidth",
    "vocabulary",
)  # the rest is waiting or repeating
# By part of the step: the resource it waits for ("" is a network) and what it is.
WORDS = {
    "matmul": ("matmuls", "matrix work"),
    "attention": ("attention", "attention"),
    "experts": ("matmuls", "matrix work of the experts"),
    "elementwise": ("memory bandwidth", "element-wise work (norms, activations)"),
    "loss": ("vocabulary", "the output layer and the loss over all words"),
    "optimizer": ("memory bandwidth", "the optimizer"),
    "recompute": ("memory", "forward work done twice to save memory"),
    "reference": ("matmuls", "the reference's forward pass, with the adapter off"),
    "launch": ("host", "kernel launches that the accelerator waits for"),
    "tensor": ("", "tensor-parallel exchange"),
    "context": ("", "context-parallel exchange of keys and values"),
    "gather": ("", "exposed all-gather of sharded weights"),
    "reduce": ("", "exposed all-reduce of gradients"),
    "exchange": ("", "exposed exchange of weight differences"),
    "outer": ("memory bandwidth", "encoding differences, and the outer optimizer"),
    "all-to-all": ("", "tokens on their way to experts and back"),
    "pipeline": ("", "hand-over between pipeline stages"),
    "bubble": ("pipeline", "stages with nothing to do"),
    "jitter": ("stragglers", "waiting for the slowest rank"),
    "data": ("data", "waiting for data"),
}


@dataclass(frozen=True)
class StepModels:
    """The two models on which a change is tried."""

    step_of: Callable[[Job], StepTime]
    memory_of: Callable[[Job], PeakMemory]


@dataclass(frozen=True)
class RunFileChange:
    """A change of the run file, and what it would give."""

    words: str
    gain: float  # share more throughput
    note: str = ""


def bottleneck(job: Job, step: StepTime) -> str:
    """Name the bottleneck: `network between nodes: 31 % of the step is exposed all-gather of
    sharded weights`.
    """
    shares: dict[str, dict[str, float]] = {}
    for part, seconds in step.parts.items():
        resource = WORDS[part][0] or network_of(job, part)
        shares.setdefault(resource, {})[part] = seconds / step.step_s
    totals = {resource: sum(parts.values()) for resource, parts in shares.items()}
    lost = max((r for r in totals if r not in WORK), key=totals.__getitem__, default="")
    name = lost if totals.get(lost, 0.0) >= WORTH_NAMING else max(totals, key=totals.__getitem__)
    part = max(shares[name], key=shares[name].__getitem__)
    mostly = " is" if shares[name][part] > 0.9 * totals[name] else ", mostly"
    return f"{name}: {_percent(totals[name])} of the step{mostly} {WORDS[part][1]}"


def next_change(
    job: Job,
    step: StepTime,
    memory: PeakMemory,
    life: RunLife,
    sensitivity: dict[str, float],
    models: StepModels,
    options: tuple[LayoutOption, ...] = (),
) -> str:
    """Return the one thing to change, in a sentence."""
    changes = [*_layouts(step, options), *_neighbours(job, step, models)]
    best = max(changes, key=lambda change: change.gain, default=None)
    if not memory.fits:
        return _make_it_fit(memory, best)
    if best and best.gain >= WORTH_CHANGING:
        return f"{best.words}: {_percent(best.gain)} more tokens/s, and it fits"
    if 1 - life.effective >= LOST:
        return _save_time(life)
    batch = _larger_batch(job, step, models)
    if batch and batch.gain >= WORTH_A_BATCH:
        return f"{batch.words}: {_percent(batch.gain)} more tokens/s{batch.note}"
    name = max(sensitivity, key=sensitivity.__getitem__)
    if sensitivity[name] < 100 * WORTH_CHANGING:
        return "nothing: no single change gives as much as 3 %"
    return (
        f"nothing in the run file; of the machine, 10 % more {RESOURCES[name]} would give "
        f"{sensitivity[name]:.0f} % more tokens/s"
    )


def _layouts(step: StepTime, options: tuple[LayoutOption, ...]) -> Iterator[RunFileChange]:
    now = step.tokens / step.step_s
    for option in options:
        if option.memory.fits:
            yield RunFileChange(f"use the layout {option.layout}", option.tokens_per_s / now - 1)


def _neighbours(job: Job, step: StepTime, models: StepModels) -> Iterator[RunFileChange]:
    """Return the layouts one field away that fit."""
    for words, layout in _moves(job):
        other = job.with_layout(layout)
        if models.memory_of(other).fits:
            yield RunFileChange(words, step.step_s / models.step_of(other).step_s - 1)


def _moves(job: Job) -> Iterator[tuple[str, Layout]]:
    now = job.layout
    for microbatch in (now.microbatch * 2, now.microbatch // 2):
        if microbatch and job.batch % (job.data_ways * microbatch) == 0:
            yield f"layout.microbatch = {microbatch}", replace(now, microbatch=microbatch)
    for recompute in ("none", "selective", "full"):
        if recompute != now.recompute:
            yield f'layout.recompute = "{recompute}"', replace(now, recompute=recompute)


def _larger_batch(job: Job, step: StepTime, models: StepModels) -> RunFileChange | None:
    other = replace(job, batch=2 * job.batch)
    if not models.memory_of(other).fits:
        return None
    new = models.step_of(other)
    gain = (new.tokens / new.step_s) / (step.tokens / step.step_s) - 1
    words = f'train.batch_tokens = "{show_count(other.tokens)}"'
    return RunFileChange(words, gain, "; a larger batch learns less from each token")


def _make_it_fit(memory: PeakMemory, best: RunFileChange | None) -> str:
    if best:
        return f"it does not fit; {best.words} does"
    short = memory.short_bytes / 2**30
    largest = max(memory.parts, key=memory.parts.__getitem__)
    return (
        f"it does not fit by {short:.1f} GiB, and most of it is {largest}: use more accelerators, "
        "or a smaller model"
    )


def _save_time(life: RunLife) -> str:
    """Advise about time that is not spent on steps."""
    causes = (Cause.STARTUP, Cause.CHECKPOINT, Cause.DOWN, Cause.REDO)
    worst = max(causes, key=life.ledger.seconds.__getitem__)
    share = _percent(life.ledger.share(worst) or 0.0)
    if worst is Cause.CHECKPOINT and life.saves == 1:
        return f"a longer run, or faster storage: {share} of this one is its only save"
    return {
        Cause.STARTUP: f"a longer run: {share} of this one is starting up",
        Cause.CHECKPOINT: f"faster storage or rarer saves: {share} of the run is saving",
        Cause.DOWN: f"fewer nodes, or a lower guard.timeout: {share} of the run is restarting "
        f"after {format_count(life.interruptions)} failures",
        Cause.REDO: f"more frequent saves (guard.checkpoint): {share} of the run is steps done "
        "again after failures",
    }[worst]


def network_of(job: Job, part: str) -> str:
    """Name the network that a part of the step uses: ranks count tensor, context, shard,
    replicate, pipeline from the inside out.
    """
    lay = job.layout
    inner = lay.tensor * lay.context
    ways, stride = {
        "tensor": (lay.tensor, 1),
        "context": (lay.context, lay.tensor),
        "all-to-all": (lay.expert, lay.expert_tensor),
        "gather": (lay.shard * lay.context, lay.tensor),
        "reduce": (lay.replicate, inner * lay.shard),
        "exchange": (lay.replicate, inner * lay.shard),
        "pipeline": (2, inner * lay.shard * lay.replicate),
    }[part]
    tier = job.machine.tier(ways, stride).name
    if tier == WAN:
        return "network between sites"
    return "network inside the node" if tier in INSIDE else "network between nodes"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
