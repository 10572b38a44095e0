"""Offers in the order of what a useful token costs, with the chance to miss a deadline.

Each machine (accelerator, accelerators of a node, nodes) is planned and simulated once: the
planner's fastest layout that fits, with node failures. Its lives serve all offers of that machine.
`policy/spot.py` then plays each life on spot, against drawn or recorded availability (`play.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from penstock.errors import PenstockError, RunFailed
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.life.life import DAY_S
from penstock.plan.scaling.sweep import ScalePlanner
from penstock.policy.spot import LEAST_S, RentTerms
from penstock.run.clusters.file import FailuresSection
from penstock.run.load import load_table
from penstock.run.save import to_table
from penstock.run.schema.run import Run
from penstock.simulate.rent.offers import Offer
from penstock.simulate.rent.play import Rented, never, play, spot_alone
from penstock.simulate.rent.spans import Span, draw_start_s, drawn, of_trace
from penstock.simulate.result import Simulation, Spread
from penstock.simulate.simulate import Question, simulate
from penstock.simulate.traces import Trace
from penstock.style import plural

MOST_LIVES = 1000  # of each machine
SIZES = 4  # numbers of nodes that are tried when none is asked for, each twice the last
HORIZON_S = 60 * DAY_S  # they begin where a run could take so long, if there is no deadline
LATE = 0.05  # an offer that is late more often than this ranks behind those in time
LONGEST_WAIT = 20  # times its work, until a run on spot alone is taken to be late
REPLACING = FailuresSection(repair="10 min")  # a provider replaces a node (estimated)
BOOT_S = 300.0  # until a rented node is up and has the software (estimated)


@dataclass(frozen=True)
class Wanted:
    """Requirements of the user on the offers."""

    deadline_s: float | None = None
    accelerators: int | None = None
    nodes: int | None = None
    lives: int = 50
    seed: int = 0
    trace: Trace | None = None  # of spot; without it, availability is drawn

    def __post_init__(self) -> None:
        if self.deadline_s is not None and self.deadline_s <= 0:
            raise PenstockError(f"--deadline '{self.deadline_s:g} s': write more than 0")
        if self.accelerators is not None and self.nodes is not None:
            raise PenstockError(
                "--accelerators and --nodes: both fix the size; give one of the two"
            )
        for name in ("accelerators", "nodes"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise PenstockError(f"--{name} {size}: write 1 or more")
        if not 1 <= self.lives <= MOST_LIVES:
            raise PenstockError(f"--lives {self.lives}: write 1 to {MOST_LIVES:,}")


@dataclass(frozen=True)
class Ranked:
    """One offer at one size."""

    offer: Offer
    nodes: int
    lived: Simulation
    usd: Spread
    days: Spread
    late: float | None  # the share of lives; None without a deadline
    fallback: Offer | None  # on-demand, for a run on spot with a deadline
    restart_s: float
    spot_share: float  # of the rented hours

    @property
    def tokens(self) -> float:
        return self.lived.plan.life.steps * self.lived.plan.step.tokens

    @property
    def usd_per_million(self) -> float:
        """Return USD for a million tokens that end in the model, by the median life."""
        return self.usd.p50 / self.tokens * 1e6

    @property
    def key(self) -> tuple[bool, float, float]:
        return ((self.late or 0.0) > LATE, self.usd_per_million, self.days.p50)

    def to_json(self) -> dict[str, Any]:
        row, own = self.offer.row, self.lived.own
        return {
            "provider": row.provider,
            "region": row.region,
            "accelerator": self.offer.accelerator,
            "term": row.term,
            "with_on_demand": self.fallback and self.fallback.label,
            "usd_per_hour": row.usd_per_hour,
            "source": self.offer.source,
            "nodes": self.nodes,
            "accelerators": own.ranks,
            "layout": self.lived.plan.job.layout.to_json(),
            "tokens_per_s": self.lived.plan.tokens_per_s,
            "usd_per_million_tokens": self.usd_per_million,
            "usd": self.usd.to_json(),
            "days": self.days.to_json(),
            "late": self.late,
            "spot_share": self.spot_share,
            "restart_s": self.restart_s,
            "interruptions_assumed": self.offer.assumed,
        }


@dataclass(frozen=True)
class Ranking:
    """All offers that fit, best first, and why others do not."""

    run: Run
    wanted: Wanted
    ranked: tuple[Ranked, ...]
    left_out: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        by_s = self.wanted.deadline_s
        return {
            "run": self.run.name,
            "deadline_days": None if by_s is None else by_s / DAY_S,
            "tokens": self.ranked[0].tokens,
            "offers": [one.to_json() for one in self.ranked],
            "left_out": list(self.left_out),
        }


def rank(
    run: Run,
    offers: Sequence[Offer],
    wanted: Wanted,
    failures: FailuresSection,
    progress: Callable[[str], None] = lambda what: None,
) -> Ranking:
    """Rank offers for a run; refuse when none fits."""
    asked = Question(wanted.lives, wanted.seed)
    lived: dict[tuple[str, int | None, int], Simulation | str] = {}
    ranked: list[Ranked] = []
    left_out: dict[str, None] = {}  # in order, each once
    least = cache(partial(_least_nodes, run, wanted.deadline_s or HORIZON_S))
    for offer in offers:
        row = offer.row
        for nodes in _sizes(offer, wanted, least):
            fewer = wanted.accelerators if nodes == 1 else None  # part of a usual node
            key = (offer.accelerator, row.per_node or fewer, nodes)
            if key not in lived:
                progress(f"living {offer.accelerator} on {nodes} nodes")
                lived[key] = _live(run, key, asked, failures)
            done = lived[key]
            if isinstance(done, str):
                left_out[f"{offer.accelerator}, {plural(nodes, 'node')}: {done}"] = None
            elif wanted.accelerators and done.own.ranks != wanted.accelerators:
                left_out[f"{offer.accelerator}: no {wanted.accelerators} in whole nodes"] = None
            elif row.nodes_available is not None and nodes > row.nodes_available:
                left_out[f"{offer.label}: {row.nodes_available} nodes, {nodes} wanted"] = None
            else:
                found = _priced(offer, nodes, done, offers, wanted)
                if found:
                    ranked.append(found)
                else:
                    left_out[f"{offer.label} {offer.accelerator} spot alone does not finish"] = None
    if not ranked:
        why = "; ".join(list(left_out)[:3]) or "there are none"
        raise RunFailed(f"no offer fits: {why}. Give other offers, or another --nodes")
    return Ranking(run, wanted, tuple(sorted(ranked, key=lambda one: one.key)), tuple(left_out))


def _sizes(offer: Offer, wanted: Wanted, least: Callable[[str, int | None], int]) -> Iterator[int]:
    """Yield the numbers of nodes to try; without a wish, from `least` of the machine on."""
    row = offer.row
    if wanted.nodes:
        yield wanted.nodes
    elif wanted.accelerators:
        yield max(wanted.accelerators // (row.per_node or _usual(offer.accelerator)), 1)
    else:
        nodes = least(offer.accelerator, row.per_node)
        if row.nodes_available is not None and nodes > row.nodes_available:
            nodes = max(1, _power_below(row.nodes_available) >> (SIZES - 1))
        for doubled in range(SIZES):
            if row.nodes_available is None or nodes << doubled <= row.nodes_available:
                yield nodes << doubled


def _least_nodes(run: Run, within_s: float, accelerator: str, per_node: int | None) -> int:
    """Return a power of two of nodes that could train the run in time if scaling cost nothing."""
    try:
        moved = _moved(run, accelerator, per_node, 1)
        needed_s = ScalePlanner.of(moved, of_catalog(accelerator, per_node or 1)).perfect_s
    except PenstockError:  # its plans will say why it cannot
        return 1
    return _power_below(int(needed_s / within_s / (per_node or _usual(accelerator))))


def _power_below(number: int) -> int:
    return 1 << max(number.bit_length() - 1, 0)


def _usual(accelerator: str) -> int:
    return of_catalog(accelerator, 10**6).per_node


def _live(
    run: Run, key: tuple[str, int | None, int], asked: Question, failures: FailuresSection
) -> Simulation | str:
    """Simulate the run on a machine; return why, where it cannot run there."""
    try:
        return simulate(_moved(run, *key), asked, failures)
    except PenstockError as error:
        return str(error).splitlines()[0].partition(". ")[0]  # the rest is advice for one machine


def _moved(run: Run, accelerator: str, per_node: int | None, nodes: int) -> Run:
    """Return the run on a rented machine."""
    table = to_table(run)
    table.pop("layout", None)  # it was chosen for another machine
    table.pop("budget", None)  # offers are compared, not refused
    table["cluster"] = {"use": accelerator, "nodes": nodes, "accelerators": per_node or "all"}
    table.get("guard", {}).pop("spares", None)  # a provider replaces nodes
    return load_table(table)


def _priced(
    offer: Offer, nodes: int, done: Simulation, offers: Sequence[Offer], wanted: Wanted
) -> Ranked | None:
    """Return the cost of an offer; None for spot that most lives do not finish on."""
    ranks, cost = done.own.ranks, done.plan.life.recovery
    restart_s = BOOT_S + done.own.startup_s + done.own.load_s + done.own.interval_s / 2
    egress = (offer.row.egress_usd_per_gb or 0.0) * cost.checkpoint_bytes / 1e9
    by_s = wanted.deadline_s
    hours = ranks / 3600
    fallback = None
    spot_share = 0.0
    if offer.spot:
        fallback = _fallback(offer, offers, nodes) if by_s is not None else None
        played = [
            _play(offer, fallback, nodes, wall_s, restart_s, wanted, number)
            for number, wall_s in enumerate(done.wall_s.tolist())
        ]
        dear = fallback.row.usd_per_hour if fallback else 0.0
        if not fallback and 2 * sum(one.done for one in played) < len(played):
            return None
        walls = np.array([one.end_s for one in played])
        usd = [
            hours * (one.spot_s * offer.row.usd_per_hour + one.on_demand_s * dear) for one in played
        ]
        rented_s = sum(one.spot_s + one.on_demand_s for one in played)
        spot_share = sum(one.spot_s for one in played) / max(rented_s, LEAST_S)
    else:
        walls = done.wall_s + BOOT_S
        usd = (walls * hours * offer.row.usd_per_hour).tolist()
    late = None if by_s is None else float(np.mean(walls > by_s))
    return Ranked(
        offer,
        nodes,
        done,
        Spread.of([one + egress for one in usd]),
        Spread.of(walls / DAY_S),
        late,
        fallback,
        restart_s,
        spot_share,
    )


def _fallback(offer: Offer, offers: Sequence[Offer], nodes: int) -> Offer | None:
    """Return the cheapest on-demand offer of the same machine, of the same provider if it can."""
    fit = [
        one
        for one in offers
        if one.row.term == "on-demand"
        and (one.accelerator, one.row.per_node) == (offer.accelerator, offer.row.per_node)
        and (one.row.nodes_available is None or nodes <= one.row.nodes_available)
    ]
    own = [one for one in fit if one.row.provider == offer.row.provider]
    return min(own or fit, key=lambda one: one.row.usd_per_hour, default=None)


def _play(
    offer: Offer,
    fallback: Offer | None,
    nodes: int,
    wall_s: float,
    restart_s: float,
    wanted: Wanted,
    number: int,
) -> Rented:
    """Play one life on spot: by the rule with a fallback, else waiting whenever spot is away."""
    by_s = wanted.deadline_s if fallback and wanted.deadline_s else LONGEST_WAIT * wall_s
    there = _there(offer, nodes, by_s, wanted, number)
    if fallback:
        terms = RentTerms(restart_s, fallback.row.usd_per_hour / offer.row.usd_per_hour)
        return play(there, wall_s, by_s, terms, history=offer.history)
    return play(there, wall_s, by_s, RentTerms(restart_s, 1.0), spot_alone, look=never)


def _there(offer: Offer, nodes: int, upto_s: float, wanted: Wanted, number: int) -> Iterator[Span]:
    """Return when all nodes are there, drawn or from the trace."""
    if wanted.trace is None:
        return drawn(offer.history, wanted.seed, number)
    start_s = draw_start_s(wanted.trace, wanted.seed, number)
    return of_trace(wanted.trace, nodes, start_s, upto_s)
