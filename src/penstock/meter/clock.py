"""Clocks: a time of day that never jumps, and the seconds of each part of a step."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

# Processes of one host read the same counter. With the same offset they have the same clock, even
# when the system's is set between the start of a supervisor and of a rank.
ENVIRONMENT = "PENSTOCK_CLOCK"
OFFSET_S = float(os.environ.get(ENVIRONMENT) or time.time() - time.perf_counter())


def now() -> float:
    """Return Unix seconds that never jump: their offset was taken when the run was started."""
    return OFFSET_S + time.perf_counter()


class StepClock:
    """A clock of one step: the seconds of fetch, compute, exchange, bubble, and held by a save.

    Time outside any part stays in `total` alone and so becomes `unexplained`. `note` is a context
    around each part while a step is traced.

    On CUDA the parts of the device are measured by events. A step ends for the host when its update
    is launched, not when it has run; the rest of the update is counted in the next step, in whose
    wall-clock it happens.
    """

    PARTS = ("fetch", "compute", "exchange", "bubble", "held")

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.note: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self._pending: list[tuple[str, Any, Any]] = []
        self._spare: list[tuple[Any, Any]] = []  # reused: a new event takes the host longer
        self.begin()

    def begin(self) -> None:
        self.start = now()
        self.seconds = dict.fromkeys(self.PARTS, 0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        with self.note(name):
            yield from self._timed(name)

    def _timed(self, name: str) -> Iterator[None]:
        if self.cuda and name != "fetch":
            first, last = self._spare.pop() if self._spare else _pair()
            first.record()
            yield
            last.record()
            self._pending.append((name, first, last))
        else:
            began = time.perf_counter()
            yield
            self.seconds[name] += time.perf_counter() - began

    def settle(self) -> dict[str, float]:
        """Return the record of the step that ends now, for the journal."""
        while self._pending and self._pending[0][2].query():
            name, first, last = self._pending.pop(0)
            self.seconds[name] += first.elapsed_time(last) / 1e3
            self._spare.append((first, last))
        total = now() - self.start
        # Time in `fetch` while the device was still busy with the last update is not a wait.
        excess = max(0.0, sum(self.seconds.values()) - total)
        self.seconds["fetch"] -= min(excess, self.seconds["fetch"])
        return {"start": self.start, "total": total, **self.seconds}


def _pair() -> tuple[Any, Any]:
    """Return two events of the device."""
    import torch

    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
