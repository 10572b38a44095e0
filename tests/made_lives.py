"""Conditions of simulated lives made by hand, simple enough for paper."""

from math import inf
from typing import Any

from penstock.plan.life.rates import FailureRates
from penstock.simulate.conditions import Conditions
from penstock.simulate.draws import Draws, generator
from penstock.simulate.life import Life
from penstock.simulate.recovery import LifeResult

DAY_S = 86400.0
NONE = FailureRates(0.0, 0.0)


def conditions(**changed: Any) -> Conditions:
    """64 nodes of 8 in 16 replicas; a step of 10 s, a save every 600 s that costs 3 s."""
    own: dict[str, Any] = {
        "ranks": 512,
        "per_node": 8,
        "nodes": 64,
        "spares": 4,
        "replicas": 16,
        "microbatches": 8,
        "layout": {"replicate": 16, "shard": 32},
        "steps": inf,
        "horizon_s": 30 * DAY_S,
        "step_s": 10.0,
        "shares": (0.7, 0.1, 0.1, 0.05, 0.05),
        "startup_s": 120.0,
        "again_s": 120.0,
        "replica_s": 120.0 * (4 / 64) ** 0.36 + 20.0,
        "load_s": 20.0,
        "save_s": 30.0,
        "save_cost_s": 3.0,
        "interval_s": 600.0,
        "fast_every": 5,
        "fast_share": 0.001,
        "evaluate_share": 0.01,
        "live": False,
        "restarts": 3,
        "timeout_s": 120.0,
        "grace_s": 30.0,
        "noticed_s": 1.0,
        "hang_s": 100.0,
        "compare_s": 600.0,
        "stall_s": None,
        "redo_more_s": 0.0,
        "repair_s": DAY_S,
        "lemons": 0.05,
        "infant": 1.0,
        "sites": 1,
        "cut_per_s": 0.0,
        "cut_s": 1200.0,
        "per_failure_node": 1.0,
    }
    return Conditions(**own | changed)


def lived(own: Conditions, rates: FailureRates, seed: int = 0, life: int = 0) -> LifeResult:
    return Life(own, rates, Draws(generator(seed, life))).run()


def a_day(failures: float, nodes: int = 64, software: float = 0.0) -> FailureRates:
    """Rates that make so many failures of all nodes a day, and so many of the software."""
    return FailureRates(failures / nodes / DAY_S, software / DAY_S)
