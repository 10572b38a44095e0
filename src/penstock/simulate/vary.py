"""Questions as a table: every combination of some fields, each lived as often, with equal luck."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from rich.table import Table

from penstock.errors import PenstockError
from penstock.plan.life.life import DAY_S
from penstock.run.clusters.file import FailuresSection
from penstock.run.load import load_table
from penstock.run.save import to_table
from penstock.run.schema.run import Run
from penstock.simulate import given
from penstock.simulate.result import Simulation, Spread
from penstock.simulate.simulate import Question, simulate
from penstock.style import MONEY, format_predicted, format_predicted_times

MOST = 64  # combinations


@dataclass(frozen=True)
class SimulatedVariant:
    """One combination and its outcome."""

    changes: tuple[str, ...]  # FIELD=VALUE
    done: Simulation

    @property
    def label(self) -> str:
        return ", ".join(change.split(".", 1)[-1] for change in self.changes)


@dataclass(frozen=True)
class Comparison:
    """All combinations of a question."""

    fields: tuple[str, ...]
    variants: tuple[SimulatedVariant, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "vary": list(self.fields),
            "variants": [
                {"changes": dict(change.split("=", 1) for change in one.changes)}
                | one.done.to_json()
                for one in self.variants
            ],
        }

    def table(self) -> Table:
        """Return one row per combination."""
        shown = Table(box=None, pad_edge=False, header_style="")
        for name in (*self.fields, "interruptions", "effective %", "time", "USD", "spares dry"):
            shown.add_column(name, justify="right")
        for one in self.variants:
            done = one.done
            dry = sum(life.fewest_spares == 0 for life in done.lives) / len(done.lives)
            values = [change.split("=", 1)[1] for change in one.changes]
            usd = done.usd
            shown.add_row(
                *values,
                _range(done.interruptions, "{:,.0f}"),
                _range(done.effective, "{:.1f}", 100),
                format_predicted_times(
                    *(d * DAY_S for d in (done.days.p50, done.days.p5, done.days.p95))
                ),
                "–" if usd is None else format_predicted(usd.p50, MONEY),
                f"{100 * dry:.0f} %" if done.own.spares else "–",
            )
        return shown


def _range(found: Spread, form: str, scale: float = 1.0) -> str:
    middle, low, high = (form.format(v * scale) for v in (found.p50, found.p5, found.p95))
    return f"{middle} ({low}–{high})"


def vary(
    run: Run,
    failures: FailuresSection,
    asked: Question,
    wanted: Sequence[str],
    progress: Callable[[str], None] = lambda what: None,
) -> Comparison:
    """Simulate every combination of the values in `wanted` (FIELD=A,B,C)."""
    axes = [_axis(text) for text in wanted]
    combinations = list(product(*(values for _, values in axes)))
    if len(combinations) > MOST:
        raise PenstockError(f"--vary: {len(combinations)} combinations; at most {MOST} are lived")
    variants: list[SimulatedVariant] = []
    for values in combinations:
        changes = tuple(f"{axes[i][0]}={value}" for i, value in enumerate(values))
        progress(f"living {', '.join(changes)} ({len(variants) + 1} of {len(combinations)})")
        of_run, of_failures = given.split(changes)
        changed = load_table(to_table(run), of_run) if of_run else run
        rates = given.changed(failures, of_failures) if of_failures else failures
        variants.append(SimulatedVariant(changes, simulate(changed, asked, rates)))
    return Comparison(tuple(name for name, _ in axes), tuple(variants))


def _axis(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, values = text.partition("=")
    found = tuple(value.strip() for value in values.split(","))
    if not equals or not name or not all(found):
        raise PenstockError(f"--vary {text}: write FIELD=A,B,C, such as guard.spares=0,8,32")
    return name, found
