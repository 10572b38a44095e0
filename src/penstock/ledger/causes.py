"""The eleven causes: every accelerator-second of a run has exactly one of them.

The order is the order of every table and chart: the work that counts first, what nobody can
explain last.
"""

from enum import StrEnum


class Cause(StrEnum):
    """The cause of an accelerator-second; `meaning` is one printable line."""

    COMPUTE = "compute"
    COMMUNICATE = "communicate"
    BUBBLE = "bubble"
    PEER_WAIT = "peer_wait"
    DATA_WAIT = "data_wait"
    CHECKPOINT = "checkpoint"
    EVALUATE = "evaluate"
    STARTUP = "startup"
    DOWN = "down"
    REDO = "redo"
    UNEXPLAINED = "unexplained"

    @property
    def meaning(self) -> str:
        """The line that says what belongs to the cause."""
        return _MEANINGS[self]


_MEANINGS = {
    Cause.COMPUTE: "forward, backward and optimizer work that counts",
    Cause.COMMUNICATE: "collectives and transfers not hidden behind compute",
    Cause.BUBBLE: "pipeline stages with nothing to do",
    Cause.PEER_WAIT: "waiting for a slower peer (straggler)",
    Cause.DATA_WAIT: "waiting for data",
    Cause.CHECKPOINT: "the step held up by saving",
    Cause.EVALUATE: "validation",
    Cause.STARTUP: "launch, imports, rendezvous, compile, warm-up, load; and shutdown",
    Cause.DOWN: "from a fault until work starts again; pauses; what an hour has no power for",
    Cause.REDO: "steps done again because the first result was lost",
    Cause.UNEXPLAINED: "what nothing above explains; in a healthy run under 2 %",
}
