"""This cluster's own rates and times: what journals of its runs recorded.

Failures per time narrow the rates of any run. Times (of a step, a start, a failure, of saves) are
those of one model on one number of ranks, so only journals of the same are used for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.ledger.history import read_history
from penstock.ledger.merge import account_of
from penstock.plan.job.outcome import STEP_CAUSES
from penstock.plan.life.rates import software_at
from penstock.policy.quarantine import HardwareFault, part_at_fault
from penstock.run.folder import find_run
from penstock.simulate.fleets import Seen

ALIKE = 0.01  # parameters of the same model may differ by the vocabulary of its dataset
FEWEST_STEPS = 10  # fewer measure the warm-up rather than the machine


@dataclass(frozen=True)
class MeasuredTimes:
    """The times of runs of one model on one number of ranks; seconds of an average rank."""

    ranks: int
    params: int
    steps: int  # that were new
    faults: int
    starts: int
    seconds: dict[Cause, float] = field(default_factory=dict)

    def __add__(self, other: "MeasuredTimes") -> "MeasuredTimes":
        both = {cause: self.seconds[cause] + other.seconds[cause] for cause in Cause}
        return replace(
            self,
            steps=self.steps + other.steps,
            faults=self.faults + other.faults,
            starts=self.starts + other.starts,
            seconds=both,
        )

    @property
    def stepping_s(self) -> float:
        return sum(self.seconds[Cause(name)] for name in STEP_CAUSES)

    @property
    def step_s(self) -> float:
        return self.stepping_s / self.steps

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the parts of a step, by STEP_CAUSES."""
        return tuple(self.seconds[Cause(name)] / self.stepping_s for name in STEP_CAUSES)

    @property
    def startup_s(self) -> float:
        return self.seconds[Cause.STARTUP] / self.starts

    @property
    def stall_s(self) -> float | None:
        """Return the time from a failure until steps go on; None without any."""
        return self.seconds[Cause.DOWN] / self.faults if self.faults else None

    @property
    def redo_s(self) -> float | None:
        """Return the steps that a failure made the run do again; None without any."""
        return self.seconds[Cause.REDO] / self.faults if self.faults else None

    def share(self, cause: Cause) -> float:
        """Return the share of a cause in the working time."""
        stalls_s = self.seconds[Cause.CHECKPOINT] + self.seconds[Cause.EVALUATE]
        return self.seconds[cause] / (self.stepping_s + stalls_s)

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "faults": self.faults,
            "step_s": self.step_s,
            "startup_s": self.startup_s,
            "stall_s": self.stall_s,
            "redo_s": self.redo_s,
            "checkpoint_share": self.share(Cause.CHECKPOINT),
            "evaluate_share": self.share(Cause.EVALUATE),
        }


@dataclass(frozen=True)
class Journals:
    """Failures and times of runs in the journals of a cluster."""

    seen: Seen
    measured: tuple[MeasuredTimes, ...]

    def times_of(self, ranks: int, params: int) -> MeasuredTimes | None:
        """Return the times of runs of this model on so many ranks, as one; None without any."""
        same = [
            one
            for one in self.measured
            if one.ranks == ranks and abs(one.params - params) <= ALIKE * params
        ]
        if sum(one.steps for one in same) < FEWEST_STEPS:
            return None
        total = same[0]
        for one in same[1:]:
            total += one
        return total if total.stepping_s > 0 else None


def read_journals(runs: Sequence[str]) -> Journals:
    """Read the journals of runs. A fault that the quarantine would hold against a part is hardware;
    any other is software.
    """
    hardware = software = 0
    node_s = run_s = 0.0
    measured: list[MeasuredTimes] = []
    for name in runs:
        folder = find_run(name)
        launched = folder.read_launch_record()
        hosts = max(1, len(launched.hosts))
        history = read_history(folder.journal)
        faults = [fault for invocation, _ in history for fault in invocation.faults]
        broken = sum(_is_hardware(fault.reason) for fault in faults)
        hardware, software = hardware + broken, software + len(faults) - broken
        window_s = sum(invocation.window_s for invocation, _ in history)
        node_s += window_s * hosts
        run_s += window_s * software_at(1.0, hosts)
        account = account_of(history)
        ranks = max(1, account.ranks)
        measured.append(
            MeasuredTimes(
                launched.ranks,
                launched.params or 0,
                max(0, account.last_step or 0),
                len(faults),
                max(1, len(history)),
                {cause: account.ledger.seconds[cause] / ranks for cause in Cause},
            )
        )
    if node_s <= 0:
        raise PenstockError(
            f"--calibrate {' '.join(runs)}: no time is recorded in these journals; name runs that "
            "have trained"
        )
    return Journals(Seen(hardware, node_s, software, run_s), tuple(measured))


def _is_hardware(reason: str) -> bool:
    lost = "lost" in reason or "stopped answering" in reason
    fault = HardwareFault("", 0, reason, 0.0, "lost" if lost else "rank")
    return part_at_fault(fault) is not None
