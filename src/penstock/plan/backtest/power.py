"""The power model against metered nodes, and the rules that it has to beat.

Nothing that a row's meter said is used for the row: the model's two shares are fitted without it
(`power_fit`), and the rest of the prediction comes from its configuration.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import hypot
from pathlib import Path

from penstock.catalog import nodes
from penstock.catalog import power as metered
from penstock.errors import PenstockError
from penstock.plan.backtest import power_rows, scores
from penstock.plan.backtest.power_busy import busy
from penstock.plan.backtest.power_fit import fit, others
from penstock.plan.backtest.power_rows import MeteredRow, NodeConfig
from penstock.plan.backtest.scores import ScoredPair, score
from penstock.plan.power import power
from penstock.plan.power.host import host_power

# How far the model may be off, in four of five cases: on the nodes it was fitted on, and elsewhere.
FITTED_OFF, OTHER_OFF = 0.05, 0.10
FITTED_ON = "H100 SXM5"
COOLING_OFF = 0.08  # when the row does not say how the node is cooled


@dataclass(frozen=True)
class ScoredPowerRow(ScoredPair):
    """A predicted row, in watts of one node."""

    row: MeteredRow
    low: float
    high: float
    assumed: tuple[str, ...]

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high

    def to_json(self) -> dict[str, object]:
        return {
            "row": self.row.number,
            "predicted": self.predicted,
            "measured": self.measured,
            "unit": "W",
            "ape": self.ape,
            "band": {"low": self.low, "high": self.high},
            "source": self.source,
            "accelerator": self.accelerator,
            "assumed": list(self.assumed),
        }


@dataclass(frozen=True)
class PowerReport:
    """The backtest of one table of metered nodes."""

    rows: int
    skipped: tuple[tuple[int, str], ...]  # row number, reason
    items: tuple[ScoredPowerRow, ...]
    tdp: tuple[ScoredPair, ...]  # accelerators × TDP
    rated: tuple[ScoredPair, ...]  # what the node's supplies are rated for, where the catalog knows
    constant: tuple[ScoredPair, ...]  # the best share of accelerators × TDP for these very rows

    @property
    def predicted(self) -> int:
        return len(self.items)

    def to_json(self) -> dict[str, object]:
        rivals = {"tdp": self.tdp, "rated": self.rated, "constant": self.constant}
        return {
            "kind": "power",
            "leave_one_out": True,
            "rows": self.rows,
            "predicted": self.predicted,
            "skipped": [{"row": number, "reason": reason} for number, reason in self.skipped],
            **{k: v for k, v in asdict(score(self.items)).items() if k != "rows"},
            "scored_rows": self.predicted,
            "in_band": sum(item.inside for item in self.items),
            "by_source": _scores(scores.by_source(self.items)),
            "by_accelerator": _scores(scores.by_accelerator(self.items)),
            "baseline": {name: asdict(score(pairs)) for name, pairs in rivals.items()},
            "items": [item.to_json() for item in self.items],
        }


def run(path: Path) -> PowerReport:
    found = power_rows.read(path)
    table = [row.config for row in found if row.config]
    items = tuple(_item(row, table) for row in found if row.config)
    skipped = tuple((row.number, row.skipped) for row in found if row.config is None)
    if not items:
        first, reason = skipped[0]
        raise PenstockError(
            f"none of the {len(found)} rows of {path} can be predicted; row {first}: {reason}. "
            "`penstock backtest --help` lists the columns"
        )
    return PowerReport(
        rows=len(found),
        skipped=skipped,
        items=items,
        tdp=tuple(_as_rule(i, _tdp_w(_config(i))) for i in items),
        rated=tuple(_as_rule(i, w) for i in items if (w := _rated_w(_config(i)))),
        constant=_constant(items),
    )


def predict(
    config: NodeConfig, table: Sequence[NodeConfig] = ()
) -> tuple[float, float, tuple[str, ...]]:
    """Predict the mean watts of one node, how far they may be off, and what was assumed."""
    known = others(config, metered.all())
    share = busy(config, known, table)
    chip = fit(known).of(config.tdp_w)
    host = host_power(config.accelerator)
    node = power.node(chip, config.per_node, config.cooling, config.supplies, host)
    watts = node.at(share.share)
    own = config.accelerator.name == FITTED_ON and config.per_node == 8
    parts = [
        FITTED_OFF if own else OTHER_OFF,
        share.off * (node.busy_w - node.wait_w) / watts,
        COOLING_OFF if config.cooling == "unknown" else 0.0,
    ]
    return watts, hypot(*parts), (*config.assumed, f"busy: {share.words}")


def _item(row: MeteredRow, table: Sequence[NodeConfig]) -> ScoredPowerRow:
    assert row.config
    assert row.node_w
    watts, off, assumed = predict(row.config, table)
    return ScoredPowerRow(
        watts,
        row.node_w,
        row.source,
        row.config.accelerator.name,
        row,
        watts * (1 - off),
        watts * (1 + off),
        assumed,
    )


def _config(item: ScoredPowerRow) -> NodeConfig:
    assert item.row.config
    return item.row.config


def _as_rule(item: ScoredPowerRow, watts: float) -> ScoredPair:
    """Return the same row as a simpler rule predicts it."""
    return ScoredPair(watts, item.measured, item.source, item.accelerator)


def _tdp_w(config: NodeConfig) -> float:
    return config.per_node * config.tdp_w


def _rated_w(config: NodeConfig) -> float | None:
    """Return the rated watts of the system that is sold with as many of these accelerators."""
    rows = [
        n.rated_w
        for n in nodes.TABLE
        if n.accelerator == config.accelerator.name and n.accelerators == config.per_node
    ]
    return next((w for w in rows if w), None)


def _constant(items: Sequence[ScoredPowerRow]) -> tuple[ScoredPair, ...]:
    """Return the one share with the least mean error on all rows: nobody knows it beforehand."""
    pairs = [_as_rule(item, _tdp_w(_config(item))) for item in items]
    tries = (
        tuple(replace(p, predicted=p.predicted * q.measured / q.predicted) for p in pairs)
        for q in pairs
    )
    return min(tries, key=lambda made: scores.mape(made) or 0.0)


def _scores(groups: dict[str, list[ScoredPowerRow]]) -> dict[str, dict[str, float | int | None]]:
    return {name: asdict(score(items)) for name, items in groups.items()}
