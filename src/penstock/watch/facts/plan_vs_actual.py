"""A run held to its plan: predicted and measured side by side by cause, and the gap by its name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger, Row
from penstock.style import format_duration, format_step_time
from penstock.watch.facts.view import View

# A gap of a cause is worth a word from this share of the planned time on.
WORTH_SAYING = 0.02


@dataclass(frozen=True)
class Held:
    """The plan of the steps that were made, against what they took."""

    rows: list[Row]  # rank-seconds
    steps: int
    planned_step_s: float
    step_s: float | None  # the median
    band: tuple[float, float] | None  # of the planned step, seconds
    ranks: int

    @property
    def planned_s(self) -> float:
        return sum(row.predicted or 0.0 for row in self.rows)

    @property
    def actual_s(self) -> float:
        return sum(row.actual or 0.0 for row in self.rows)

    @property
    def off(self) -> float | None:
        """Measured over planned step, less one."""
        return None if self.step_s is None else self.step_s / self.planned_step_s - 1

    @property
    def largest(self) -> Row:
        """The cause that is farthest from its plan."""
        return max(self.rows, key=lambda row: abs(row.difference or 0.0))

    def says(self) -> str:
        """The deviation in a sentence."""
        planned = format_step_time(self.planned_step_s)
        if self.off is None or self.step_s is None:
            return f"planned {planned} a step; no step was measured"
        took = f"a step took {format_step_time(self.step_s)}, planned {planned}"
        if self.band and self.band[0] <= self.step_s <= self.band[1]:
            verdict = f"within the plan's band: {took} ({self.off:+.0%})"
        else:
            word = "slower" if self.off > 0 else "faster"
            verdict = f"{abs(self.off):.0%} {word} than planned: {took}"
        gap = self.largest.difference or 0.0
        if abs(gap) < WORTH_SAYING * self.planned_s:
            return f"{verdict}; every cause is near its plan"
        more = "more" if gap > 0 else "less"
        gap_text = format_duration(abs(gap) / self.ranks)
        return f"{verdict}; largest gap: {gap_text} {more} {self.largest.cause}"

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "step_s": {
                "predicted": self.planned_step_s,
                "measured": self.step_s,
                "deviation": self.off,
            },
            "rank_s": {"predicted": self.planned_s, "measured": self.actual_s},
            "by_cause": {
                str(row.cause): {
                    "predicted": row.predicted,
                    "measured": row.actual,
                    "difference": row.difference,
                }
                for row in self.rows
            },
            "says": self.says(),
        }


def held(view: View) -> Held | None:
    """None for a run without a plan: an own module, an unknown device, an older version."""
    plan: Mapping[str, Any] = view.plan.get("predicted") or {}
    if "ledger" not in plan or not view.account.ranks:
        return None
    whole = Ledger.from_json(plan["ledger"])
    # A fork begins at a step of another run, which is not on this account.
    forked = view.plan.get("forked_from", {}).get("step")
    steps = max(0, view.step - (forked if type(forked) is int else 0))
    done = steps / plan["steps"] if plan["steps"] else 0.0
    # A start is a start, however many steps follow it.
    part = {c: s * (1.0 if c is Cause.STARTUP else done) for c, s in whole.seconds.items()}
    band = plan.get("bands", {}).get("step_s")
    return Held(
        rows=Ledger(part).compare(view.account.ledger),
        steps=steps,
        planned_step_s=plan["step_s"],
        step_s=view.step_s,
        band=(band["low"], band["high"]) if band else None,
        ranks=view.account.ranks,
    )
