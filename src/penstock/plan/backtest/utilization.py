"""The backtest of utilisation: published shares of time that replicas compute, by link and cadence.

A row says how long a step computes, how often replicas agree, and over which link; the prediction
is the plan's own rule for what a round waits for (`plan/step/outer.py`). Where a row's bandwidth
was found on a grid, it is only known up to the next value of the grid, and its middle is meant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.plan.backtest.columns import TableColumn
from penstock.plan.backtest.rows import RowSkipped, number
from penstock.plan.backtest.scores import ScoredPair, by_source, score
from penstock.plan.hardware import network
from penstock.plan.hardware.machine import NetworkTier
from penstock.plan.hardware.network import CommGroup, CommRing
from penstock.plan.step.outer import waited_s

MEASURED = "utilization"
CLOSE = 15.0  # per cent


def _column(name: str, about: str, needed: bool = False, numeric: bool = True) -> TableColumn:
    return TableColumn(name, about, "throughput", numeric=numeric, needed=needed)


COLUMNS = (
    _column("source", "who published; errors are averaged by source", numeric=False),
    _column("system", "the model, in words", numeric=False),
    _column("params_b", "parameters that travel, in billions", needed=True),
    _column("step_s", "time that a step computes, s", needed=True),
    _column("local_steps", "steps between two exchanges; 1: data parallel", needed=True),
    _column("gbit_per_s", "link of a replica, each way", needed=True),
    _column("grid", "the next bandwidth that was tried, over this one; blank: 1"),
    _column("value_bits", "bits of a value as it travels; blank: 16"),
    _column("replicas", "how many there are; blank: 2"),
    _column("collective", "ring (sums) or gather; blank: ring", numeric=False),
    _column("hop_ms", "latency of one hop; blank: 0"),
    _column("parts", "of the model, exchanged in turn; blank: 1"),
    _column("late_steps", "steps behind which a part travels; blank: local_steps / parts, if > 1"),
    _column("behind", "share of a step behind which the exchange runs too; blank: 0"),
    _column(MEASURED, "the share of the time that is computing, 0 to 1", needed=True),
)


@dataclass(frozen=True)
class UtilizationRow:
    """One published point."""

    number: int  # 0-based, in the file
    source: str
    system: str
    values: float
    step_s: float
    local_steps: int
    bytes_per_s: float
    value_bytes: float
    replicas: int
    gather: bool
    hop_s: float
    parts: int
    late_steps: float  # those that a part has, and the share of a step that hides exchanges
    measured: float


@dataclass(frozen=True)
class ScoredUtilization(ScoredPair):
    """A point beside its prediction; `accelerator` is the system."""

    row: UtilizationRow


@dataclass(frozen=True)
class UtilizationReport:
    """The backtest of one file."""

    rows: int
    skipped: tuple[tuple[int, str], ...]
    items: tuple[ScoredUtilization, ...]

    @property
    def close(self) -> int:
        """Return how many predictions are off by less than `CLOSE` per cent."""
        return sum(item.ape < CLOSE for item in self.items)

    def to_json(self) -> dict[str, object]:
        return {
            "kind": "utilization",
            "rows": self.rows,
            "predicted": len(self.items),
            "skipped": [{"row": number, "reason": reason} for number, reason in self.skipped],
            **asdict(score(self.items)),
            "within_15_percent": self.close,
            "by_source": {n: asdict(score(own)) for n, own in by_source(self.items).items()},
            "items": [
                {
                    "row": item.row.number,
                    "source": item.source,
                    "system": item.accelerator,
                    "local_steps": item.row.local_steps,
                    "predicted": item.predicted,
                    "measured": item.measured,
                    "ape": item.ape,
                }
                for item in self.items
            ],
        }


def is_utilization(lines: Sequence[Mapping[str, str]]) -> bool:
    """Tell whether a table is one of utilisation."""
    return MEASURED in lines[0]


def run(path: Path, lines: Sequence[Mapping[str, str]]) -> UtilizationReport:
    """Predict every row of a table."""
    missing = [c.name for c in COLUMNS if c.needed and c.name not in lines[0]]
    if missing:
        raise PenstockError(
            f"{path} has no column {', '.join(missing)}; `penstock backtest --help` lists the "
            "columns of all tables"
        )
    items: list[ScoredUtilization] = []
    skipped: list[tuple[int, str]] = []
    for at, cells in enumerate(lines):
        try:
            row = read_row(at, cells)
        except RowSkipped as why:
            skipped.append((at, str(why)))
            continue
        items.append(ScoredUtilization(predict(row), row.measured, row.source, row.system, row))
    if not items:
        first, reason = skipped[0]
        raise PenstockError(
            f"none of the {len(lines)} rows of {path} can be predicted; row {first}: {reason}"
        )
    return UtilizationReport(len(lines), tuple(skipped), tuple(items))


def read_row(at: int, cells: Mapping[str, str]) -> UtilizationRow:
    """Read one line; raise `RowSkipped` with the reason where that cannot be."""

    def cell(name: str, usual: float | None = None) -> float:
        value = number(cells, name)
        if value is None:
            value = usual
        if value is None:
            raise RowSkipped(f"{name} is blank")
        return value

    def above_zero(name: str, usual: float | None = None) -> float:
        value = cell(name, usual)
        if not value:
            raise RowSkipped(f"{name} is 0")
        return value

    collective = cells.get("collective", "") or "ring"
    if collective not in ("ring", "gather"):
        raise RowSkipped(f"collective is '{collective}', not ring or gather")
    local_steps, parts = int(above_zero("local_steps")), int(above_zero("parts", 1))
    measured = above_zero(MEASURED)
    if measured > 1:
        raise RowSkipped(f"{MEASURED} is {measured:g}, not a share from 0 to 1")
    usual = local_steps // parts if parts > 1 else 0
    return UtilizationRow(
        number=at,
        source=cells.get("source", "") or "unnamed",
        system=cells.get("system", "") or "unnamed",
        values=above_zero("params_b") * 1e9,
        step_s=above_zero("step_s"),
        local_steps=local_steps,
        bytes_per_s=above_zero("gbit_per_s") * above_zero("grid", 1) ** 0.5 * 1e9 / 8,
        value_bytes=above_zero("value_bits", 16) / 8,
        replicas=max(2, int(cell("replicas", 2))),
        gather=collective == "gather",
        hop_s=cell("hop_ms", 0) / 1e3,
        parts=parts,
        late_steps=cell("late_steps", usual) + cell("behind", 0),
        measured=measured,
    )


def predict(row: UtilizationRow) -> float:
    """Return the share of the time that is computing."""
    tier = NetworkTier("wan", row.replicas, row.bytes_per_s, row.hop_s)
    g = CommGroup(row.replicas, (CommRing(row.replicas, 1, tier),))
    size = row.values * row.value_bytes / row.parts
    each_s = network.spread_s(g, size) if row.gather else network.ring_sum_s(g, size)
    computing = row.local_steps * row.step_s
    return computing / (computing + waited_s(each_s, row.late_steps * row.step_s, row.parts))
