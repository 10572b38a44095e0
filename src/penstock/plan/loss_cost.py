"""The loss that a way to agree costs, from what was measured; a band where nobody measured it.

Rows of the catalog (`catalog/rounds.py`) are of small models. For a setting without a row, the
rows around it bound the cost; without such rows the cost is unknown.
"""

from dataclasses import dataclass
from typing import Any

from penstock.catalog import rounds
from penstock.catalog.rounds import OTHER_MODEL, RoundLoss
from penstock.plan.job.job import Job, ReplicaSync

ALIKE = 1.5  # times more or fewer parameters or tokens are taken for the same model


@dataclass(frozen=True)
class LossCost:
    """More validation loss than data parallel with the same optimizer at equal tokens, as shares.

    None: nobody has measured anything near.
    """

    low: float | None
    high: float | None
    basis: str  # "exact", "measured", "estimated" or "unknown"
    why: str

    def words(self) -> str:
        if self.low is None or self.high is None:
            return "not known"
        if self.basis == "exact":
            return "as without"
        return f"{100 * self.low:+.1f} to {100 * self.high:+.1f} % ({self.basis})"

    def to_json(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "basis": self.basis, "why": self.why}


def loss_cost(optimizer: str, replicas: int, sync: ReplicaSync, job: Job) -> LossCost:
    """Return what a way to agree costs in loss."""
    if sync.local_steps == 1 and sync.codec == "none":
        return LossCost(0.0, 0.0, "exact", "the sum of the gradients is exact")
    rows = [r for r in rounds.all() if _same_kind(r, optimizer, sync)]
    same = [r for r in rows if _same(r, replicas, sync)]
    near = same or _nearest_above(rows, replicas, sync)
    if not near:
        return LossCost(None, None, "unknown", "nobody has measured anything near")
    # A setting that lets replicas drift further costs no less than others.
    easier = [r for r in rows if _covers(_place(replicas, sync), _place_of(r))]
    low = min(r.low for r in near) if same else max([r.low for r in easier], default=0.0)
    high = max(r.high for r in (*near, *easier))
    low = min(low, high)
    names = ", ".join(f"{r.name} ({r.source_of('loss_percent')})" for r in near)
    if same and all(_alike(r, replicas, job) for r in same):
        return LossCost(low, high, "measured", names)
    # Gains may be those of a baseline with a bad rate: they do not grow.
    less, more = OTHER_MODEL
    low, high = (low * less if low > 0 else low), (high * more if high > 0 else 0.0)
    return LossCost(low, high, "estimated", f"half to twice of what was measured on: {names}")


def _same_kind(row: RoundLoss, optimizer: str, sync: ReplicaSync) -> bool:
    """Tell whether a row is of the same optimizer, and of gradients or of local steps like it."""
    if sync.local_steps == 1:
        return row.local_steps == 1
    return row.optimizer == optimizer and row.local_steps > 1


def _same(row: RoundLoss, replicas: int, sync: ReplicaSync) -> bool:
    if sync.local_steps == 1:
        return row.codec == sync.codec
    mine = (replicas, sync.local_steps, sync.codec, _late(sync))
    return (row.replicas, row.local_steps, row.codec, row.late) == mine


def _late(sync: ReplicaSync) -> float:
    """Return the share of a round by which a part of the model is late."""
    return round(1 / sync.parts, 4) if sync.parts > 1 else 0.0


Place = tuple[float, ...]  # local steps, codec, lateness, replicas: more of each is harder
FROM_FINE = ("none", "bf16", "int8", "int4", "int2")


def _place(replicas: int, sync: ReplicaSync) -> Place:
    return (sync.local_steps, _coarseness(sync.codec), _late(sync), replicas)


def _place_of(row: RoundLoss) -> Place:
    return (row.local_steps, _coarseness(row.codec), row.late, row.replicas)


def _coarseness(codec: str) -> int:
    return FROM_FINE.index(codec) if codec in FROM_FINE else len(FROM_FINE)


def _covers(one: Place, other: Place) -> bool:
    """Tell whether `one` is at least as hard in every way."""
    return all(a >= b for a, b in zip(one, other, strict=True))


def _nearest_above(rows: list[RoundLoss], replicas: int, sync: ReplicaSync) -> list[RoundLoss]:
    """Return the rows of the one harder setting that promises the least; [] if there is none.

    Only settings with no other harder one in between count.
    """
    own = _place(replicas, sync)
    if sync.local_steps == 1:  # only the codec makes a difference
        return [r for r in rows if _coarseness(r.codec) >= _coarseness(sync.codec)]
    above = {_place_of(r) for r in rows if _covers(_place_of(r), own)}
    next_ = [p for p in above if not any(_covers(p, q) for q in above if q != p)]
    groups = [[r for r in rows if _place_of(r) == place] for place in next_]
    return min(groups, key=lambda group: max(r.high for r in group), default=[])


def _alike(row: RoundLoss, replicas: int, job: Job) -> bool:
    """Tell whether the row's model and batch are about the run's."""
    sizes = (
        (job.shape.params(), row.params_m * 1e6),
        (job.tokens / replicas, row.worker_tokens),
    )
    return all(1 / ALIKE <= own / other <= ALIKE for own, other in sizes)
