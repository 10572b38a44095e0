"""Failures: rates of what breaks, each number with a typed meaning.

Rates of different studies count different things (interruptions, lost hosts, dead GPUs). Read the
note before comparing two.
"""

from dataclasses import dataclass
from typing import Literal

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table

Measure = Literal[
    "per_1000_node_days",  # unexpected failures of nodes
    "software_per_day",  # failures of one run's software
    "job_mttf_hours",  # mean time to failure of one job on `accelerators` devices
    "cause_share",  # share of one run's unexpected interruptions; these add up to 1
    "effective_share",  # effective training time over wall-clock
    "straggler_job_share",  # share of jobs that straggle
    "link_share_per_month",  # share of links that fail in a month
    "sdc_interval_weeks",  # time between silent data corruptions
    "spot_interruptions_per_hour",  # per hour that the instance was up
    "spot_share_per_month",  # share of instances interrupted in a month
    "spot_notice_s",  # warning before the instance goes
]


@dataclass(frozen=True, kw_only=True)
class FailureRate(Fact):
    """One published number; `measure` is its meaning."""

    measure: Measure
    value: float
    low: float | None = None
    high: float | None = None
    accelerators: int | None = None  # devices in the run, cluster or job
    days: float | None = None  # of the run, or of the time that was looked at
    accelerator: str | None = None  # a name in the accelerators
    component: str = ""  # of a cause: gpu, host, network, software, maintenance, unknown
    events: int | None = None  # how many were counted


TABLE = Table.of_csv("failures", FailureRate)
all, find, names = TABLE.all, TABLE.find, TABLE.names


def measured(measure: Measure) -> list[FailureRate]:
    """Return all rows of one measure."""
    return [row for row in TABLE if row.measure == measure]


def cause_shares() -> dict[str, float]:
    """Return the share of interruptions by component, of the one run that published all causes."""
    rows = measured("cause_share")
    total = sum(row.events or 0 for row in rows)
    shares: dict[str, float] = {}
    for row in rows:
        shares[row.component] = shares.get(row.component, 0.0) + (row.events or 0) / total
    return shares
