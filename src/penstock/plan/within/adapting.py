"""Adapting an open model instead of training one: which, what it costs, and when it is better.

The same scaling law that says what loss the budget buys says what loss the open model's own size
and tokens bought. It is a comparison of training runs, not of data or licences.
"""

from dataclasses import dataclass
from typing import Any

from penstock.catalog import open_weights
from penstock.catalog.open_weights import PublishedWeights
from penstock.errors import PenstockError
from penstock.plan.job.layout import NothingFits
from penstock.plan.life.life import DAY_S
from penstock.plan.search.choose import choose_layout
from penstock.plan.step import step
from penstock.plan.within.best import BudgetPlanner, deciding_law, wall_s
from penstock.run.schema.adapter import AdapterSection
from penstock.run.schema.model import ModelSection

# The data of a planned adaptation: about 100,000 answers of 1,000 tokens (the largest public sets
# of instructions), in batches of 64Ki tokens.
ADAPT_TOKENS, ADAPT_BATCH = 100_000_000, 2**16


@dataclass(frozen=True)
class Adaptation:
    """One open model adapted within the limits."""

    weights: PublishedWeights
    kind: str  # "lora" or "qlora"
    wall_s: float
    usd: float | None
    accelerators: int

    @property
    def loss(self) -> float:
        """Return the loss that the law gives the open model, before it is adapted."""
        return law_loss(self.weights)

    def to_json(self) -> dict[str, Any]:
        shape = self.weights.shape
        return {
            "model": self.weights.name,
            "from": self.weights.hub,
            "licence": self.weights.licence,
            "params": shape.params(),
            "trained_on_tokens": self.weights.tokens,
            "loss_by_the_same_law": self.loss,
            "adapter": self.kind,
            "tokens": ADAPT_TOKENS,
            "accelerators": self.accelerators,
            "days": self.wall_s / DAY_S,
            "usd": self.usd,
        }


def adaptation(planner: BudgetPlanner, loss: float) -> Adaptation | None:
    """Return the smallest open model that is better than `loss` and can be adapted within the
    limits; the best one where none is better; None where none can be adapted.
    """
    known = sorted(open_weights.all(), key=lambda weights: weights.shape.params())
    better = [one for one in known if law_loss(one) < loss]
    rest = sorted((one for one in known if one not in better), key=law_loss)
    for weights in (*better, *rest):
        for kind in ("lora", "qlora"):
            if found := _adapted(planner, weights, kind):
                return found
    return None


def law_loss(weights: PublishedWeights) -> float:
    """Return the loss that the deciding law gives an open model."""
    return deciding_law().loss(weights.shape.params(), weights.tokens)


def _adapted(planner: BudgetPlanner, weights: PublishedWeights, kind: str) -> Adaptation | None:
    run = planner.run
    length = {"tokens": ADAPT_TOKENS, "steps": None, "epochs": None}
    batch = max(ADAPT_BATCH, planner.machine.accelerators * run.sample_tokens)
    # As `plan/not_here.py` does: the shape is the catalog's, and no weights are looked at.
    model = ModelSection(preset=weights.preset).model_copy(
        update={"adapter": AdapterSection(kind=kind)}
    )
    run = run.model_copy(
        update={
            "model": model,
            "train": run.train.model_copy(update=length | {"batch_tokens": batch}),
            "layout": None,
        }
    )
    try:
        job = choose_layout(run, planner.machine).job
    except (NothingFits, PenstockError):
        return None
    took = step.predict(job)
    seconds = wall_s(run, job, took, -(-ADAPT_TOKENS // job.tokens))
    if seconds > planner.limits.seconds_on(job.layout.ranks, planner.price):
        return None
    hours = seconds / 3600 * job.layout.ranks
    usd = planner.price.usd * hours if planner.price else None
    return Adaptation(weights, kind, seconds, usd, job.layout.ranks)
