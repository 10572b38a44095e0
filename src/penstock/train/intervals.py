"""Intervals of the run file: "250 steps" or "10 min"."""

from penstock.meter.clock import now
from penstock.run.schema.quantity import Every


def due(every: Every | str, step: int, last_s: float) -> bool:
    """Return whether an interval of the run file that began at `last_s` ends with `step`."""
    if not isinstance(every, Every):
        return False  # never
    if every.steps is not None:
        return step % every.steps == 0
    return now() - last_s >= (every.seconds or 0.0)
