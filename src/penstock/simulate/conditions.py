"""`Conditions`: all that a life of a run depends on, from its plan, its policies and its machines.

Step times, save times, start-up and how often the run saves are the planner's, which asks the
guard's own policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.plan.job.outcome import STEP_CAUSES
from penstock.plan.life import causes
from penstock.plan.life.failing import compare_s, replica_start_s
from penstock.plan.life.life import DAY_S
from penstock.plan.life.pace import save_pace
from penstock.plan.life.times import NOTICED_S
from penstock.plan.life.trays import NO_TRAYS, DomainTrays, trays_of
from penstock.plan.plan import Plan
from penstock.policy import hang
from penstock.policy.shrink import WAYS, speed_with
from penstock.run.clusters.file import FailuresSection
from penstock.run.schema.run import Run
from penstock.simulate.calibrate import MeasuredTimes
from penstock.simulate.hours import LifeHours
from penstock.simulate.traces import Trace

PUBLISHED_NODE = 8  # accelerators of the nodes that published rates count
PERSON_S = 3600.0  # until somebody starts a run that gave up (estimated)
CUT_S = 1200.0  # mean length of a cut between sites (estimated)
LONGEST = 100.0  # times its undisturbed length: a life beyond it would never end


@dataclass(frozen=True)
class Conditions:
    """One run on one machine; seconds are wall clock, rates are per second."""

    ranks: int
    per_node: int
    nodes: int  # that work
    spares: int
    replicas: int
    microbatches: int  # of one data-parallel way in a step
    layout: Mapping[str, int]  # as `policy/shrink.py` reads it
    steps: float  # inf: as many as fit into `horizon_s`
    horizon_s: float
    step_s: float
    shares: tuple[float, ...]  # of a step, by STEP_CAUSES
    startup_s: float  # the first one
    again_s: float  # until ranks are ready again after a failure
    replica_s: float  # until a lost replica of live mode is ready
    load_s: float  # a durable checkpoint, by all nodes at once
    save_s: float  # until a save is safe
    save_cost_s: float  # that a save holds training up
    interval_s: float  # of work between saves
    fast_every: int  # steps between copies in memory; 0: none
    fast_share: float  # of the working time that those copies take
    evaluate_share: float
    live: bool
    restarts: int
    timeout_s: float
    grace_s: float
    noticed_s: float  # until the end of a process is noticed; a lost host: timeout_s
    hang_s: float  # until a hang is noticed
    compare_s: float  # between comparisons of the replicas
    stall_s: float | None
    redo_more_s: float  # beyond the distance to the newest copy: copies that were under way
    repair_s: float
    lemons: float
    infant: float
    sites: int
    cut_per_s: float
    cut_s: float
    per_failure_node: float  # accelerators of a node over those of a published one
    trays: DomainTrays = NO_TRAYS  # of a rack-scale node
    trace: Trace | None = None
    hours: LifeHours | None = None  # before the first of them; each life has its own copy

    @property
    def data_ways(self) -> int:
        return self.layout["replicate"] * self.layout["shard"]

    def speed(self, data_ways: int) -> float:
        """Return the speed with fewer data-parallel ways, over that with all."""
        return speed_with(self.microbatches, self.data_ways, data_ways)

    def stretched(self, replicas: int) -> float:
        """Return the same for replicas of live mode."""
        return self.speed(replicas * self.layout["shard"])


def conditions(
    run: Run,
    plan: Plan,
    given: FailuresSection,
    days: float | None = None,
    trace: Trace | None = None,
    measured: MeasuredTimes | None = None,
) -> Conditions:
    """Return the conditions of a planned run; `days` replace its length, and `measured` times of
    the same run what is planned.
    """
    job, step, cost = plan.job, plan.step, plan.life.recovery
    nodes, guard = plan.life.nodes, run.guard
    _refuse(run, given, nodes, days)
    step_s = measured.step_s if measured else step.step_s
    pace = save_pace(run, step_s, cost)
    interval_s = max(pace.interval_s, cost.save_s)
    work_s = plan.life.steps * step_s
    evaluate_s = plan.life.evaluate_s
    copies = pace.fast_share(step_s)  # of the time in steps and copies
    working_s = work_s / (1 - copies) + evaluate_s
    seen = hang.RankObservation(0, "forward", 1, 0.0)
    own = Conditions(
        ranks=job.layout.ranks,
        per_node=job.machine.per_node,
        nodes=nodes,
        spares=guard.spares,
        replicas=job.layout.replicate,
        microbatches=max(1, job.microbatches),
        layout={name: getattr(job.layout, name) for name in WAYS},
        steps=inf if days is not None else plan.life.steps,
        horizon_s=inf if days is None else days * DAY_S,
        step_s=step_s,
        shares=tuple(step.causes[name] / step.step_s for name in STEP_CAUSES),
        startup_s=cost.startup_s,
        again_s=cost.again_s,
        replica_s=replica_start_s(cost, nodes, job.layout.replicate),
        load_s=cost.load_s,
        save_s=cost.save_s,
        save_cost_s=pace.stall_s,
        interval_s=interval_s,
        fast_every=pace.fast_steps,
        fast_share=work_s * copies / (1 - copies) / working_s,
        evaluate_share=evaluate_s / working_s,
        live=guard.mode == "live" and job.layout.replicate > 1,
        restarts=guard.restarts,
        timeout_s=guard.timeout,
        grace_s=guard.grace,
        noticed_s=NOTICED_S,
        hang_s=hang.allowed_s(seen, step_s, guard.timeout),
        compare_s=compare_s(run, job.layout.replicate, pace, step_s),
        stall_s=given.stall,
        redo_more_s=0.0,
        repair_s=given.repair or causes.REPAIR_S,
        lemons=causes.LEMONS if given.lemons is None else given.lemons,
        infant=given.infant,
        sites=given.sites,
        cut_per_s=1 / given.cut_mtbf if given.cut_mtbf else 0.0,
        cut_s=given.cut or CUT_S,
        per_failure_node=1.0
        if given.node_mtbf or job.machine.kind == "cpu"
        else job.machine.per_node / PUBLISHED_NODE,
        trays=replace(trays_of(job.machine), spares=given.spare_trays),
        trace=trace,
        hours=LifeHours.of(plan.hours) if plan.hours and days is None else None,
    )
    return with_measured(own, measured) if measured else own


def with_measured(own: Conditions, measured: MeasuredTimes) -> Conditions:
    """Return conditions with measured times in place of planned ones. Saves of both kinds are then
    a share of the working time. The work that a failure makes the run do again follows from how
    often it saves; other measured costs are the same for each failure.
    """
    near_s = own.fast_every * own.step_s / 2 if own.fast_every else own.interval_s / 2 + own.save_s
    return replace(
        own,
        shares=measured.shares,
        startup_s=measured.startup_s,
        stall_s=measured.stall_s if own.stall_s is None else own.stall_s,
        redo_more_s=max(0.0, (measured.redo_s or 0.0) - near_s),
        save_cost_s=0.0,
        fast_share=measured.share(Cause.CHECKPOINT),
        evaluate_share=measured.share(Cause.EVALUATE),
    )


def undisturbed_s(own: Conditions) -> float:
    """Return the seconds that the run takes if nothing ever fails."""
    if own.steps == inf:
        return own.horizon_s
    work_s = own.steps * own.step_s / (1 - own.evaluate_share - own.fast_share)
    return own.startup_s + work_s * (1 + own.save_cost_s / own.interval_s) + own.save_s


def with_limit(own: Conditions) -> Conditions:
    """Return conditions in which a life that would never end is cut off."""
    if own.steps == inf:
        return own
    return replace(own, horizon_s=LONGEST * undisturbed_s(own) + 30 * DAY_S)


def _refuse(run: Run, given: FailuresSection, nodes: int, days: float | None) -> None:
    if run.guard.spares > nodes:
        raise PenstockError(
            f"guard.spares = {run.guard.spares}: more spares than the {nodes} nodes that work; "
            f"write at most {nodes}"
        )
    if given.sites > nodes:
        raise PenstockError(f"failures.sites = {given.sites}: the run has {nodes} nodes in all")
    if given.cut_mtbf and given.sites == 1:
        raise PenstockError(
            "failures.cut_mtbf: one site has no network to cut; write failures.sites"
        )
    if days is not None and not 0 < days <= 36525:
        raise PenstockError(f"--days {days:g}: out of range; write more than 0 and at most 36525")
