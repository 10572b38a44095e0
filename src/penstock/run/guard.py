"""`[guard]`: what keeps a run safe."""

from typing import Literal

from pydantic import Field

from penstock.run.section import EveryOrAuto, Seconds, Section, Some, SomeOrNone, Text


class GuardSection(Section):
    """What keeps a run safe."""

    checkpoint: EveryOrAuto = Field(
        "auto",
        description='Steps or time between checkpoints; "auto": by save time and failure rate.',
    )
    durable: Text | None = Field(
        None, description="Second place for checkpoints (URL), for capacity that can vanish."
    )
    keep: Some = Field(3, description="Newest checkpoints that are kept.")
    mode: Literal["restart", "live"] = Field(
        "restart",
        description="After a lost rank: restart from the checkpoint, or go on without it.",
    )
    spares: SomeOrNone = Field(0, description="Spare nodes.")
    on_spike: Literal["stop", "skip", "rollback"] = Field(
        "stop", description="What to do when the loss or the gradient jumps."
    )
    on_oom: Literal["stop", "replan"] = Field(
        "stop", description="What to do when memory runs out."
    )
    restarts: SomeOrNone = Field(3, description="Restarts without progress before giving up.")
    timeout: Seconds = Field(
        120.0,
        description="Longest wait in a collective or at the start before ranks are restarted.",
    )
