"""Many lives of one run: planned once, lived with rates drawn from published fleets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from penstock.errors import PenstockError, RunFailed
from penstock.found import expanded_path
from penstock.ledger.journal.follow import garbage_collection_paused
from penstock.plan.hardware.cluster import ResolvedMachine, here_file, machine_for
from penstock.plan.life.life import DAY_S
from penstock.plan.make import make
from penstock.plan.plan import Plan
from penstock.plan.power.site import under_feed
from penstock.run.clusters.file import FailuresSection
from penstock.run.clusters.load import load_cluster
from penstock.run.schema.run import Run
from penstock.simulate import fleets
from penstock.simulate.calibrate import Journals
from penstock.simulate.conditions import LONGEST, Conditions, conditions, undisturbed_s, with_limit
from penstock.simulate.draws import Draws, generator
from penstock.simulate.fleets import FleetModel
from penstock.simulate.life import Life
from penstock.simulate.record import Recorder
from penstock.simulate.recovery import LifeResult
from penstock.simulate.result import Simulation
from penstock.simulate.traces import Trace

LIVES = 200
MOST_LIVES = 100_000
TICKS = 60  # moments of a life that a picture shows
_RATES = 2**63  # the stream that rates are drawn from: no life has this number


@dataclass(frozen=True)
class Question:
    """Options of a simulation beside the run: lengths, seeds, and data on the fleet."""

    lives: int = LIVES
    seed: int = 0
    days: float | None = None
    by_s: float | None = None  # finish by then
    fleet: str | None = None
    without: tuple[str, ...] = ()
    journals: Journals | None = None
    trace: Trace | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.lives <= MOST_LIVES:
            raise PenstockError(f"--lives {self.lives}: write 1 to {MOST_LIVES:,}")
        if not 0 <= self.seed < 2**32:
            raise PenstockError(f"--seed {self.seed}: write 0 to {2**32 - 1}")


def stated_failures(run: Run) -> FailuresSection:
    """Return `[failures]` of the cluster file that the run uses, if it uses one."""
    use = run.cluster.use
    if use.endswith(".toml"):
        return load_cluster(expanded_path(use)).failures
    if use == "here" and here_file().is_file():
        return load_cluster(here_file()).failures
    return FailuresSection()


def simulate(
    run: Run,
    asked: Question | None = None,
    given: FailuresSection | None = None,
    found: ResolvedMachine | None = None,
    notes: Sequence[str] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> Simulation:
    """Simulate many lives of a run; `given` are failure rates, by default its cluster file's."""
    asked = asked or Question()
    given = stated_failures(run) if given is None else given
    plan, found = planned(run, given, found)
    if not plan.memory.fits:
        short = plan.memory.short_bytes / 2**30
        raise RunFailed(f"it does not fit: out of memory by {short:,.1f} GiB; see `penstock plan`")
    known = asked.journals
    times = known.times_of(plan.job.layout.ranks, plan.job.shape.params()) if known else None
    own = with_limit(conditions(run, plan, given, asked.days, asked.trace, times))
    model = fleets.model(
        given.node_mtbf,
        given.software_mtbf,
        asked.fleet,
        asked.without,
        known.seen if known else None,
    )
    rates = model.draw(generator(asked.seed, _RATES), asked.lives)
    ticks = _ticks(own)
    results: list[LifeResult] = []
    for number in range(asked.lives):
        draws = Draws(generator(asked.seed, number))
        with garbage_collection_paused():
            results.append(Life(own, rates[number], draws, ticks=ticks).run())
        progress(number + 1)
    _refuse_endless(run, own, results)
    by_s = asked.by_s
    if by_s is None and own.hours:
        by_s = own.hours.within_s
    return Simulation(
        run, plan, own, model, results, by_s, (*found.warnings, *notes), asked.seed, times
    )


def planned(
    run: Run, given: FailuresSection, found: ResolvedMachine | None = None
) -> tuple[Plan, ResolvedMachine]:
    """Plan the run on its machine, with the failure rates that are stated.

    At a site that cannot feed all accelerators at once, each of them has a power limit.
    """
    found = found or machine_for(run)
    own = found.machine
    stated = replace(
        own,
        node_mtbf_s=given.node_mtbf or own.node_mtbf_s,
        software_mtbf_s=given.software_mtbf or own.software_mtbf_s,
        repair_s=given.repair or own.repair_s,
        spare_trays=given.spare_trays,
        stall_s=own.stall_s if given.stall is None else given.stall,
    )
    fed, limited = under_feed(stated)
    found = replace(found, machine=fed, warnings=(*found.warnings, *filter(None, [limited])))
    return make(run, found.machine, found.warnings), found


def record_life(own: Conditions, model: FleetModel, seed: int, lives: int, number: int) -> Recorder:
    """Simulate one life again, and return all that happened in it."""
    rates = model.draw(generator(seed, _RATES), lives)
    record = Recorder()
    Life(own, rates[number], Draws(generator(seed, number)), record, _ticks(own)).run()
    return record


def _ticks(own: Conditions) -> tuple[float, ...]:
    """Return the moments at which the course of a life is noted."""
    length = own.horizon_s if own.steps == inf else 1.5 * undisturbed_s(own)
    return tuple(length * i / TICKS for i in range(TICKS + 1))


def _refuse_endless(run: Run, own: Conditions, results: Sequence[LifeResult]) -> None:
    """Refuse a run that would never end."""
    ended = sum(life.finished for life in results)
    if own.steps == inf or 2 * ended >= len(results):
        return
    done = sorted(life.steps / own.steps for life in results)[len(results) // 2]
    raise PenstockError(
        f"this run would never end: after {own.horizon_s / DAY_S:,.0f} days ({LONGEST:g} times its "
        f"undisturbed length) {len(results) - ended} of {len(results)} lives are not done, half of "
        f"them with less than {100 * done:.2g} % of the steps. Use fewer nodes or guard.mode = "
        f'"live" (it is "{run.guard.mode}"), give spares, or simulate a part of it with --days 30'
    )
