"""`[guard]`: what keeps a run safe."""

from typing import Literal

from pydantic import Field

from penstock.run.schema.quantity import Every
from penstock.run.schema.section import (
    CountOrZero,
    EveryOrAuto,
    EveryOrAutoOrNever,
    EveryOrNever,
    FolderOrUrl,
    PositiveCount,
    Seconds,
    Section,
)


class GuardSection(Section):
    """Checkpoints, and the reactions to faults."""

    checkpoint: EveryOrAuto = Field(
        "auto",
        description='Steps or time between checkpoints; "auto": by save time and failure rate.',
    )
    fast: EveryOrAutoOrNever = Field(
        "auto",
        description="Steps or time between copies that are kept in the hosts' memory.",
    )
    durable: FolderOrUrl | None = Field(
        None, description="Second place for checkpoints, for capacity that can vanish."
    )
    keep: PositiveCount = Field(3, description="Newest checkpoints that are kept.")
    mode: Literal["restart", "live"] = Field(
        "restart",
        description="After a lost rank: restart from the checkpoint, or go on without it.",
    )
    spares: CountOrZero = Field(0, description="Spare nodes.")
    on_spike: Literal["stop", "skip", "rollback"] = Field(
        "rollback", description="What to do when the loss or the gradient jumps."
    )
    compare: EveryOrNever = Field(
        Every(steps=100), description="Steps between comparisons of the replicas' weights."
    )
    replay: EveryOrNever = Field(
        "never", description="Steps between microbatches that a second replica computes again."
    )
    on_oom: Literal["stop", "replan"] = Field(
        "stop", description="What to do when memory runs out."
    )
    restarts: CountOrZero = Field(3, description="Restarts without progress before giving up.")
    timeout: Seconds = Field(
        120.0,
        description="Longest wait in a collective or at the start before ranks are restarted.",
    )
    grace: Seconds = Field(
        30.0, description="Time that a notice of preemption (SIGTERM) leaves to save and stop."
    )
