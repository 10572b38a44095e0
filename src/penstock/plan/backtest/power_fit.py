"""The fit of the power model's two shares to metered nodes, without the runs to be predicted.

Least squares of relative errors. A run is left out with all that would give it away: every metered
run of the same benchmark on as many nodes of the same accelerator, whoever metered it and how.
"""

from collections.abc import Sequence

from penstock.catalog import accelerators
from penstock.catalog.power import MeteredRun
from penstock.plan.backtest.power_busy import benchmark_of
from penstock.plan.backtest.power_rows import NodeConfig
from penstock.plan.power import power
from penstock.plan.power.host import BOARD
from penstock.plan.power.power import TdpShares


def others(config: NodeConfig, known: Sequence[MeteredRun]) -> list[MeteredRun]:
    """Return the metered runs that may say something about this one."""
    key = (config.accelerator.name, config.nodes, benchmark_of(config.benchmark))
    return [run for run in known if _key(run) != key]


def _key(run: MeteredRun) -> tuple[str, int, str]:
    return accelerators.find(run.accelerator).name, run.nodes, benchmark_of(run.benchmark)


def fit(runs: Sequence[MeteredRun]) -> TdpShares:
    """Fit watts = a + b × wait + c × busy, with a, b and c known for each run."""
    rows = [_terms(run) for run in runs if run.whole]
    ww = sum(w * w for w, _, _ in rows)
    wb = sum(w * b for w, b, _ in rows)
    bb = sum(b * b for _, b, _ in rows)
    wr = sum(w * rest for w, _, rest in rows)
    br = sum(b * rest for _, b, rest in rows)
    det = ww * bb - wb * wb
    assert det > 0, "runs of one node alone say nothing of waiting"
    return TdpShares(busy=(ww * br - wb * wr) / det, wait=(bb * wr - wb * br) / det)


def _terms(run: MeteredRun) -> tuple[float, float, float]:
    """Return what a share of 1 would add while waiting and while busy, and what host and fans
    leave of the meter's reading.
    """
    tdp_w = accelerators.find(run.accelerator).tdp_w
    assert tdp_w
    each = run.accelerators // run.nodes
    fans = BOARD.fans_share(power.cooling_class(run.cooling) or "air")
    chips = each * tdp_w / power.SUPPLIES / run.node_w
    host = BOARD.total_w(each) / power.SUPPLIES * (1 + fans) / run.node_w
    return chips * (1 - run.busy), chips * (run.busy + fans), 1 - host
