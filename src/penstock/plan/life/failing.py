"""The average cost of failures for a run, in closed form; the simulator draws them instead.

Every cause has a rate, the seconds until steps go on, and the seconds of steps that are done again.
Nodes in repair are a Poisson number (each comes back by itself), and so are stragglers. Mean
values leave out what only a simulated life has: quarantine, luck, and failures at the same time.
`tests/simulate/test_simulate_plan.py` holds them to the simulator.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import erf, exp, expm1, inf, lgamma, log, sqrt

from penstock.plan.job.job import Job
from penstock.plan.life import causes
from penstock.plan.life.causes import SITE, hardware_classes
from penstock.plan.life.pace import SavePace
from penstock.plan.life.rates import FailureRates, software_at
from penstock.plan.life.recovery import RecoveryCosts, nodes_of
from penstock.plan.life.times import GROWTH, NOTICED_S, REGROUP_S
from penstock.plan.life.trays import trays_of
from penstock.policy import hang, shrink
from penstock.run.schema.run import Run


@dataclass(frozen=True)
class FailureLoss:
    """Means over all causes. Rates are per second of wall clock."""

    per_s: float  # of all failures
    down_s: float  # of one failure, until steps go on
    redo_s: float  # steps of one failure that are done again
    regroups_per_s: float  # times that all start again to use a node that is back
    speed: float  # of steps, with the nodes that are missing
    active: float  # share of the ranks that work
    straggling: float  # speed beside stragglers
    data_wait: float  # seconds of late storage, per second


@dataclass
class _Sums:
    """Rates times costs, added up over the causes."""

    per_s: float = 0.0
    down: float = 0.0
    redo: float = 0.0
    out: float = 0.0  # nodes in repair
    back_per_s: float = 0.0  # nodes that come back
    starting: float = 0.0  # replicas of live mode that start
    trays_out: float = 0.0  # of rack-scale domains that go on without them
    trays_back_per_s: float = 0.0

    def add(self, per_s: float, down_s: float, redo_s: float) -> None:
        self.per_s += per_s
        self.down += per_s * down_s
        self.redo += per_s * redo_s


def failure_loss(
    run: Run,
    job: Job,
    step_s: float,
    cost: RecoveryCosts,
    pace: SavePace,
    rates: FailureRates,
    length_s: float,
) -> FailureLoss:
    """Return what failures cost on average in a run of so many seconds."""
    nodes, machine, lay = nodes_of(job), job.machine, job.layout
    live = run.guard.mode == "live" and lay.replicate > 1
    seen = hang.RankObservation(0, "forward", 1, 0.0)
    hang_s = hang.allowed_s(seen, step_s, run.guard.timeout)
    ended_s = causes.HANG_SHARE * hang_s + (1 - causes.HANG_SHARE) * NOTICED_S
    late_s = pace.interval_s / 2 + min(cost.save_s, pace.interval_s)  # to the newest safe save
    near_s = pace.fast_steps * step_s / 2 if pace.fast_steps else late_s
    load_s = 0.0 if pace.fast_steps else cost.load_s
    trays = trays_of(machine)
    sums, node_per_s = (
        _Sums(),
        rates.node * _rotation(rates.node, nodes, run.guard.spares, length_s),
    )
    for cause in hardware_classes():
        per_s = node_per_s * nodes * cause.share
        if cause.name == "corruption":
            sums.add(
                per_s,
                cost.load_s + NOTICED_S,
                late_s + _found_late_s(run, lay.replicate, pace, step_s),
            )
            continue
        taken, lost = min(causes.nodes_taken(cause, trays.domain_nodes), nodes), 1 - cause.stays
        noticed_s = lost * run.guard.timeout + cause.stays * ended_s
        repair_s = cause.repair_s or machine.repair_s or causes.REPAIR_S
        share = 1.0  # of a node, that it takes along
        if trays.tray and cause.name in causes.OF_A_TRAY:
            share = trays.tray / machine.per_node
            if not trays.spares and not run.guard.spares:
                sums.trays_out += per_s * lost * repair_s
                sums.trays_back_per_s += per_s * lost
        if share == 1.0 or (run.guard.spares and not trays.spares):
            sums.out += per_s * lost * taken * repair_s
            sums.back_per_s += per_s * lost * taken
        if live:
            hit = max(taken * share * lay.replicate / nodes, 1.0)
            sums.starting += per_s * hit * replica_start_s(cost, nodes, lay.replicate)
            sums.add(per_s, noticed_s + 2 * REGROUP_S, step_s / 2)
            continue
        durable = lost if taken > 1 or (nodes == 1 and share == 1.0) else 0.0
        down_s = noticed_s + cost.again_s + durable * cost.load_s + (1 - durable) * load_s
        sums.add(per_s, down_s, durable * late_s + (1 - durable) * near_s)
    software = software_at(rates.software, nodes)
    sums.add(software, ended_s + cost.again_s + load_s, near_s)
    sums.add(causes.SITE_PER_S, (SITE.repair_s or 0.0) + cost.again_s + cost.load_s, late_s)
    speed, active, short = _strength(job, nodes, run.guard.spares, sums, live, length_s, trays.tray)
    stall_s = machine.stall_s
    return FailureLoss(
        per_s=sums.per_s,
        down_s=stall_s if stall_s is not None else sums.down / sums.per_s,
        redo_s=sums.redo / sums.per_s,
        regroups_per_s=0.0 if live else sums.back_per_s * short + sums.trays_back_per_s,
        speed=speed,
        active=active,
        straggling=straggling_speed(nodes * causes.STRAGGLER_PER_S * causes.STRAGGLER_S),
        data_wait=causes.DATA_STALL_PER_S * causes.DATA_STALL_S,
    )


def _rotation(node_per_s: float, nodes: int, spares: int, length_s: float) -> float:
    """Return the hardware failures of a run with spares, over those without.

    Lemons cause half of them. One that is lost gives its place to a spare, which is seldom one, and
    waits behind all other spares when it is repaired; so there are ever fewer at work until the
    whole queue has been used.
    """
    if not spares or round(causes.LEMONS * (nodes + spares)) < 1:
        return 1.0
    lost = sum(c.share * (1 - c.stays) for c in hardware_classes() if c.name != "corruption")
    leave_per_s = lost * node_per_s * 0.5 / causes.LEMONS
    until_s = min(length_s, spares / (lost * node_per_s * nodes))
    gone = -expm1(-leave_per_s * until_s)
    left_s = gone / leave_per_s + (length_s - until_s) * (1 - gone)
    return 0.5 + 0.5 * left_s / length_s


def replica_start_s(cost: RecoveryCosts, nodes: int, replicas: int) -> float:
    """Return how long one replica of live mode takes to start: as a run of its nodes would. It is
    then healed from a peer's memory.
    """
    share = max(nodes / replicas, 1.0) / nodes
    return float(cost.again_s * share**GROWTH + cost.load_s)


def compare_s(run: Run, replicas: int, pace: SavePace, step_s: float) -> float:
    """Return the seconds between comparisons of the replicas; they are compared at saves too."""
    asked, every_s = run.guard.compare, inf
    if asked != "never":
        every_s = asked.steps * step_s if asked.steps else asked.seconds or inf
    return min(every_s, pace.interval_s) if replicas > 1 else inf


def _found_late_s(run: Run, replicas: int, pace: SavePace, step_s: float) -> float:
    """Return how long a corruption goes unnoticed on average."""
    every_s = compare_s(run, replicas, pace, step_s)
    if every_s == inf:
        return causes.LATE_S
    return causes.LATE_SHARE * causes.LATE_S + (1 - causes.LATE_SHARE) * every_s / 2


def _strength(
    job: Job, nodes: int, spares: int, sums: _Sums, live: bool, length_s: float, tray: int
) -> tuple[float, float, float]:
    """Return the mean speed and the mean share of ranks that work, over the number of nodes in
    repair; and how often a node that comes back finds its place open.
    """
    lay, ways = job.layout, job.layout.replicate * job.layout.shard
    asked = {name: getattr(lay, name) for name in shrink.WAYS}
    mean = sums.out
    shrinks = shrink.fit_to_ranks(asked, (nodes - 1) * job.machine.per_node) is not None
    if mean and shrinks:
        # It goes on with fewer nodes, and has lost none when it begins. A run that has to wait for
        # the repair waits to its end, however short it is itself.
        repair_s = sums.out / sums.back_per_s
        mean *= 1 + repair_s / length_s * expm1(-length_s / repair_s)
    trays = sums.trays_out
    if trays:
        repair_s = trays / sums.trays_back_per_s
        trays *= 1 + repair_s / length_s * expm1(-length_s / repair_s)
    if live:
        per_node = max(lay.replicate / nodes, 1.0)
        open_ = sum(p * (out - spares) for out, p in _poisson(mean) if out > spares)
        of_tray = max(lay.replicate * tray / (nodes * job.machine.per_node), 1.0)
        gone = open_ * per_node + trays * of_tray
        lacking = -lay.replicate * expm1(-gone / lay.replicate)
        up = [(p, max(lay.replicate - n, 1)) for n, p in _poisson(sums.starting + lacking)]
        speeds = [
            (p, shrink.speed_with(max(1, job.microbatches), ways, n * lay.shard), n) for p, n in up
        ]
        return (
            sum(p * speed for p, speed, _ in speeds),
            sum(p * n / lay.replicate for p, _, n in speeds),
            0.0,
        )
    speed = active = short = 0.0
    for out, p in _poisson(mean):
        if out >= spares:
            short += p
        for lost, chance in _poisson(trays):
            there = min(nodes - out + spares, nodes) * job.machine.per_node - lost * tray
            left, each = min(lay.ranks, there), p * chance
            if out <= spares and not lost:
                speed, active = speed + each, active + each
                continue
            fit = shrink.fit_to_ranks(asked, max(left, 0))
            if fit is None:
                continue  # it waits for the repair
            found = fit["replicate"] * fit["shard"]
            speed += each * shrink.speed_with(max(1, job.microbatches), ways, found)
            active += each * min(1.0, found / ways)
    return speed, active, short


def _poisson(mean: float) -> list[tuple[int, float]]:
    """Return the numbers that matter, and their probabilities, which add up to 1."""
    if mean <= 0:
        return [(0, 1.0)]
    width = 7 * sqrt(mean) + 7
    numbers = range(max(0, int(mean - width)), int(mean + width) + 1)
    found = [(n, exp(n * log(mean) - mean - lgamma(n + 1))) for n in numbers]
    total = sum(p for _, p in found)
    return [(n, p / total) for n, p in found]


@lru_cache(maxsize=4096)
def straggling_speed(mean: float, points: int = 400) -> float:
    """Return the mean speed of a run that waits for its slowest node, with so many stragglers at a
    time on average.

    The chance that the worst of a Poisson number of them has an excess below x is
    exp(-mean × share above x).
    """
    lost, before = 0.0, exp(-mean)
    for i in range(1, points + 1):
        x = 4.0 * i / points
        z = log(x / causes.STRAGGLER_FACTOR) / causes.STRAGGLER_SPREAD
        below = exp(-mean * (1 - (1 + erf(z / sqrt(2))) / 2))
        middle = x - 2.0 / points
        lost += (below - before) * middle / (1 + middle)
        before = below
    return 1 - lost
