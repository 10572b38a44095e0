"""The verdict of all limits on one plan: `Plan.limits`.

A limit of the site that is exceeded binds before everything: the run cannot stand there. Then comes
memory, then the budget. If nothing is exceeded, the limit is the largest loss of accelerator-time,
if a fifth of the time is lost; else the largest kind of work.
"""

from penstock.ledger.causes import Cause
from penstock.plan.advice import WORTH_NAMING
from penstock.plan.job.outcome import STEP_CAUSES, PeakMemory, StepTime
from penstock.plan.life.life import RunLife
from penstock.plan.power.limits import (
    BindingLimit,
    LimitVerdict,
    LimitWord,
    SiteLimit,
    exceeded,
)

# By part of the step. A bubble ends with more sequences a step, as ranks without any do.
OF_PART: dict[str, LimitWord] = {
    "matmul": "compute",
    "attention": "compute",
    "experts": "compute",
    "reference": "compute",
    "loss": "compute",
    "launch": "compute",
    "elementwise": "memory",
    "optimizer": "memory",
    "outer": "memory",
    "recompute": "memory",
    "tensor": "network",
    "context": "network",
    "gather": "network",
    "reduce": "network",
    "all-to-all": "network",
    "pipeline": "network",
    "exchange": "network",
    "bubble": "data",
    "jitter": "failures",
    "data": "data",
}
OF_LIFE = (Cause.DOWN, Cause.REDO, Cause.CHECKPOINT)  # what failures cost, saves among it
WORDS: dict[LimitWord, str] = {
    "compute": "computes",
    "memory": "moves or recomputes what memory holds",
    "network": "waits for the network",
    "data": "waits for sequences: bubbles, or data that is late",
    "failures": "goes into failures, saves and slow peers",
}


def verdict(
    step: StepTime,
    memory: PeakMemory,
    lived: RunLife,
    usd: float | None,
    budget_usd: float | None,
    site: tuple[SiteLimit, ...],
) -> LimitVerdict:
    """Judge one plan."""
    losses = shares_by_word(step, lived)
    return LimitVerdict(_binds(memory, usd, budget_usd, site, losses), site, losses)


def shares_by_word(step: StepTime, lived: RunLife) -> dict[str, float]:
    """Return shares of the accelerator-time of the whole run by the limit that they belong to.

    The rest, up to 1, is starting and evaluating.
    """
    stepping = sum(lived.ledger.share(Cause(name)) or 0.0 for name in STEP_CAUSES)
    found: dict[str, float] = {}
    for part, seconds in step.parts.items():
        word = OF_PART[part]
        found[word] = found.get(word, 0.0) + stepping * seconds / step.step_s
    found["failures"] = found.get("failures", 0.0) + (lived.ledger.share(*OF_LIFE) or 0.0)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _binds(
    memory: PeakMemory,
    usd: float | None,
    budget_usd: float | None,
    site: tuple[SiteLimit, ...],
    losses: dict[str, float],
) -> BindingLimit:
    over = [limit for limit in site if not limit.fits]
    if over:
        return exceeded(max(over, key=lambda limit: limit.use))
    if not memory.fits:
        use = memory.peak_bytes * memory.high / memory.capacity_bytes
        words = f"the fullest accelerator would need {use:.2f} × its memory"
        return BindingLimit("memory", use, "needed over available", words)
    if usd is not None and budget_usd is not None and usd > budget_usd:
        words = f"the run costs {usd:,.0f} USD, budget.usd is {budget_usd:,.0f}"
        return BindingLimit("money", usd / budget_usd, "needed over available", words)
    lost = {name: share for name, share in losses.items() if name not in ("compute", "memory")}
    worst = max(lost, key=lost.__getitem__, default="")
    if not worst or lost[worst] < WORTH_NAMING:
        worst = max(losses, key=losses.__getitem__)
    word: LimitWord = next(word for word in WORDS if word == worst)
    text = f"{100 * losses[worst]:.0f} % of the accelerators' time {WORDS[word]}"
    return BindingLimit(word, losses[worst], "share of the time", text)
