"""The losses against perfect scaling: why more accelerators do not give proportionally more.

Perfect scaling is one accelerator with room for everything, that does the whole batch at once and
never fails, times the number of accelerators. Each loss against that, over the whole life of a
run, has a name: the network, the bubble, failures, and so on. The largest is the limit, once it is
worth naming; until then the work itself is.
"""

from collections.abc import Mapping

from penstock.ledger.causes import Cause
from penstock.plan.advice import WORDS, WORK, network_of
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import COMMUNICATE_PARTS, StepTime
from penstock.plan.life.life import RunLife
from penstock.plan.power.limits import BindingLimit, LimitWord, Measure

# Share of the time in perfect scaling: a loss that alone makes the run a quarter longer.
WORTH_NAMING = 0.25
NOTHING_FITS = "memory: nothing fits"
TOO_FEW_SEQUENCES = "batch: fewer sequences than ranks can use"
FAILURES = "failures and restarts"
OVER_BUDGET = "money: over the budget"
UNKNOWN_LINK = "network between sites"
# Limits of a site, by the word that the site's check uses.
OF_SITE: dict[LimitWord, str] = {
    "power": "power of the site",
    "cooling": "cooling of the hall",
    "space": "space for racks",
}

# By part of the step, what is lost when it takes longer than in perfect scaling. Exchange between
# ranks is a loss of the network that it goes over.
LOSSES = {
    "matmul": "small matmuls",
    "attention": "small matmuls",
    "experts": "small matmuls",
    "elementwise": "memory bandwidth",
    "loss": "memory bandwidth",
    "optimizer": "memory bandwidth",
    "outer": "memory bandwidth",
    "recompute": "memory: work done twice to fit",
    "launch": "kernel launches",
    "bubble": "pipeline bubble",
    "jitter": "waiting for slower peers",
    "data": "waiting for data",
}
LIFE_LOSSES = {
    Cause.DOWN: FAILURES,
    Cause.REDO: FAILURES,
    Cause.CHECKPOINT: "saving",
    Cause.STARTUP: "starting up",
}
MORE_THAN_A_STEP = {Cause.PEER_WAIT: LOSSES["jitter"], Cause.DATA_WAIT: LOSSES["data"]}
# Parts of one microbatch; the rest of the step does not grow when ranks have nothing to compute.
PER_MICROBATCH = ("matmul", "attention", "experts", "elementwise", "loss", "recompute")

# One word for each limit, as everything that compares machines shows it.
WORD: dict[str, LimitWord] = {
    NOTHING_FITS: "memory",
    TOO_FEW_SEQUENCES: "data",
    FAILURES: "failures",
    OVER_BUDGET: "money",
    **{words: word for word, words in OF_SITE.items()},
    "network inside the node": "network",
    "network between nodes": "network",
    UNKNOWN_LINK: "network",
    "memory bandwidth": "memory",
    "memory: work done twice to fit": "memory",
    "pipeline bubble": "data",
    "waiting for data": "data",
    "waiting for slower peers": "failures",
    "saving": "failures",
    "starting up": "failures",
    "kernel launches": "compute",
    "small matmuls": "compute",
    **dict.fromkeys(("matmuls", "attention", "vocabulary"), "compute"),
}


def alone(job: Job) -> tuple[Job, Job]:
    """Return the job on one accelerator with room for all of it, twice: in one piece, which
    keeps matmuls busiest, and sequence by sequence, which keeps a CPU's caches warm.
    """
    return (
        job.with_layout(Layout(microbatch=job.batch)),
        job.with_layout(Layout(microbatch=1)),
    )


def losses(job: Job, step: StepTime, perfect: StepTime, life: RunLife) -> dict[str, float]:
    """Return the lost shares of the accelerator-time of the whole run, by name, largest first.

    With the share that perfect scaling would need and that of evaluation they add up to 1.
    """
    ranks, total = job.layout.ranks, life.ledger.total
    lost: dict[str, float] = {}

    def add(name: str, seconds: float) -> None:
        lost[name] = lost.get(name, 0.0) + seconds / total

    # Ranks without a sequence of their own compute on zeros.
    filled = job.batch / (job.data_ways * job.layout.microbatch * job.microbatches)
    for part, seconds in step.parts.items():
        spent = seconds * ranks * life.steps
        if part in PER_MICROBATCH:
            add(TOO_FEW_SEQUENCES, spent * (1 - filled))
            spent *= filled
        name = network_of(job, part) if part in COMMUNICATE_PARTS else LOSSES[part]
        add(name, spent - perfect.parts.get(part, 0.0) * life.steps)
    for cause, name in LIFE_LOSSES.items():
        add(name, life.ledger.seconds[cause])
    for word, seconds in step.causes.items():  # what failures and stragglers add to a step
        cause = Cause(word)
        name = MORE_THAN_A_STEP.get(cause, FAILURES)
        add(name, life.ledger.seconds[cause] - seconds * ranks * life.steps)
    return dict(sorted(lost.items(), key=lambda item: -item[1]))


def limit(step: StepTime, lost: Mapping[str, float]) -> tuple[str, float]:
    """Return the largest loss, or the largest kind of work when no loss is worth naming, with its
    share of the accelerator-time of the run.
    """
    worst = max(lost, key=lost.__getitem__)
    useful = 1 - sum(lost.values())
    if lost[worst] >= WORTH_NAMING * useful:
        return worst, lost[worst]
    work = dict.fromkeys(WORK, 0.0)
    for part, seconds in step.parts.items():
        if WORDS[part][0] in work:
            work[WORDS[part][0]] += seconds
    largest = max(work, key=work.__getitem__)
    return largest, work[largest] / step.step_s


def binding(name: str, number: float, measure: Measure, words: str) -> BindingLimit:
    """Return a limit by its name as the one word and number that all comparisons show."""
    return BindingLimit(WORD[name], number, measure, words or name)
