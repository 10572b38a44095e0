"""When a run uses spot capacity, when on-demand, and when it waits, so that it is never late.

Spot is cheaper and may be taken back at any moment. On-demand stays. A run may leave spot or wait
for it as long as on-demand alone could still finish in time after one more restart. From then on
it stays on on-demand. This is the known "can't be late" rule.

Before that moment, the question is money. If the spot time still to be expected is enough for the
work, the run waits for it. If not, some of the work must be done on-demand anyway. It is better
done now, while spot is away, if the spot hours that this keeps for later are worth its restarts;
else at the end, in one piece.

Most gaps of spot are short, and so are most times when it is back; one that has lasted goes on
longer. So the run changes only after spot has been away, or back, for as long as the restart takes
that a change costs: such a rule never pays more than twice the best. A stretch on spot also costs
the time of two restarts. If the time that can be lost is not enough for all stretches to come, the
run takes only the longer ones: spot must then have been back for longer.

`next_look_s` says when the choice may differ although spot stays as it is, so that a run needs no
look in between.
"""

from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal

Capacity = Literal["spot", "on-demand", "wait"]

LEAST_S = 1e-3  # the rounding of moments: less time than this is none


@dataclass(frozen=True)
class SpotHistory:
    """How long spot capacity was there and away so far, and how often it was taken back."""

    up_s: float
    down_s: float
    taken: float  # times that it was taken back

    def seen(self, available: bool, lasted_s: float) -> "SpotHistory":
        """Return the history after another stretch of time."""
        if available:
            return SpotHistory(self.up_s + lasted_s, self.down_s, self.taken)
        return SpotHistory(self.up_s, self.down_s + lasted_s, self.taken)

    def lost(self) -> "SpotHistory":
        """Return the history after spot was taken back once more."""
        return SpotHistory(self.up_s, self.down_s, self.taken + 1)

    @property
    def mean_up_s(self) -> float:
        """Return how long spot stays once it is there, on average."""
        return self.up_s / max(self.taken, 1.0)

    @property
    def mean_down_s(self) -> float:
        """Return how long spot stays away, on average."""
        return self.down_s / max(self.taken, 1.0)

    def useful_s(self, restart_s: float) -> float:
        """Return the time in which spot makes progress: each return costs a restart."""
        return max(self.up_s - self.taken * restart_s, 0.0)

    def useful_share(self, restart_s: float) -> float:
        """Return the share of time in which spot makes progress."""
        total_s = self.up_s + self.down_s
        return self.useful_s(restart_s) / total_s if total_s else 0.0


# Before anything was seen: there three quarters of the time, eight hours at a stretch. It weighs 32
# hours. Chosen among 36 variants of an earlier rule on recorded traces (docs/log.md).
UNKNOWN = SpotHistory(24 * 3600.0, 8 * 3600.0, 3.0)


@dataclass(frozen=True)
class RentTerms:
    """Constants of a run that rents spot capacity."""

    restart_s: float  # from capacity to progress: boot, load, and the work lost on average
    price_ratio: float  # on-demand over spot
    margin_s: float = 0.0  # kept free at the end, for failures of on-demand nodes


@dataclass(frozen=True)
class RentState:
    """A run at a moment of decision. Only work that a checkpoint holds is done."""

    work_s: float  # left, at full speed
    left_s: float  # until the deadline
    on: Capacity  # what it uses now
    spot: bool  # whether spot is there now
    history: SpotHistory
    lasted_s: float = 0.0  # for how long spot has been there, or away
    warm_s: float = 0.0  # of a restart that is still to come on what it uses now


def slack_s(state: RentState, terms: RentTerms) -> float:
    """Return how long nothing may be done until on-demand has to begin."""
    return state.left_s - terms.margin_s - state.work_s - terms.restart_s


def can_leave_on_demand(state: RentState, terms: RentTerms) -> bool:
    """Tell whether on-demand could still finish in time if it began a moment later."""
    return slack_s(state, terms) > LEAST_S


def choose_capacity(state: RentState, terms: RentTerms) -> Capacity:
    """Choose what a run uses from now on."""
    if not can_leave_on_demand(state, terms):
        return "on-demand"
    if terms.price_ratio <= 1:  # spot that is not cheaper only risks time
        return "on-demand"
    if state.on != "spot" and slack_s(state, terms) <= terms.restart_s + LEAST_S:
        return "on-demand"  # spot could not be left again before it brought anything
    if state.spot:
        settled = state.lasted_s >= _settling_s(state, terms)
        if state.on != "on-demand" or (settled and _hop_pays(state, terms)):
            return "spot"
        return "on-demand"
    if state.on == "on-demand":  # waiting now would waste the restart that was just paid for
        return "on-demand"
    if _until_too_little_s(state, terms) > 0 or state.lasted_s < terms.restart_s:
        return "wait"
    return "on-demand" if _filling_pays(state.history, terms) else "wait"


def _settling_s(state: RentState, terms: RentTerms) -> float:
    """Return for how long spot must have been back before on-demand is left for it.

    Stretches are taken to have the tails that were recorded: about one in k that lasts for a
    restart lasts for k of them. So k restarts let through what there is time for.
    """
    cycle_s = state.history.mean_up_s + state.history.mean_down_s
    trips = state.left_s / cycle_s if cycle_s else 1.0
    return terms.restart_s * max(1.0, 2 * terms.restart_s * trips / slack_s(state, terms))


def _filling_pays(history: SpotHistory, terms: RentTerms) -> bool:
    """Tell whether work that must be on-demand is better done in gaps than at the end.

    With the share u of the time in which spot makes progress, an hour of on-demand in gaps keeps
    u / (1 - u) hours of spot that on-demand at the end would take the time of. They save the
    difference of the prices. A gap of mean length costs one restart, and the rest of it is work.
    """
    useful = history.useful_share(terms.restart_s)
    if useful <= 0:
        return True  # spot brings nothing
    gap_s = history.mean_down_s - terms.restart_s
    if gap_s <= 0:
        return False
    spot_price = history.up_s / (history.up_s + history.down_s) / useful  # of useful time
    saved = useful / max(1 - useful, 1e-9) * (terms.price_ratio - spot_price)
    return saved > terms.price_ratio * terms.restart_s / gap_s


def _hop_pays(state: RentState, terms: RentTerms) -> bool:
    """Tell whether a stretch on spot is worth its restart, and the one back to on-demand.

    Both restarts are paid for and bring nothing. The stretch ends with the work at the latest.
    """
    ratio, up_s = terms.price_ratio, state.history.mean_up_s
    gained_s = min(up_s - terms.restart_s, state.work_s)
    back_s = terms.restart_s if gained_s < state.work_s else 0.0
    return gained_s * (ratio - 1) > terms.restart_s + ratio * back_s


def next_look_s(state: RentState, terms: RentTerms) -> float:
    """Return in how many seconds the choice may differ, if spot stays as it is.

    `state.on` is what was just chosen. Every condition of `choose_capacity` changes sides at a
    moment that is known beforehand. A look comes one rounding after it, except at the last moment
    for on-demand, which is exact.
    """
    looks = [terms.restart_s - state.lasted_s]
    if state.on == "on-demand":
        if state.spot:
            looks += [_until_settled_s(state, terms), _until_hop_pays_s(state, terms)]
    elif not state.spot:
        looks += [_until_too_little_s(state, terms), _until_filling_s(state.history, terms)]
    look_s = min((one + LEAST_S for one in looks if one > 0), default=inf)
    # The last moments for on-demand; while work is done they do not come nearer.
    slack = slack_s(state, terms)
    idle_s = {"wait": inf, "spot": state.warm_s, "on-demand": 0.0}[state.on]
    lasts = [slack - terms.restart_s] if state.on == "wait" else []
    return min([look_s, *(one for one in (*lasts, slack) if LEAST_S < one < idle_s)])


def _until_too_little_s(state: RentState, terms: RentTerms) -> float:
    """Return when the spot to be expected is no longer enough, while spot stays away.

    It is enough if its useful share of the time left is more than the work.
    """
    known, work_s = state.history, state.work_s
    useful_s, total_s = known.useful_s(terms.restart_s), known.up_s + known.down_s
    return (useful_s * state.left_s - work_s * total_s) / (useful_s + work_s)


def _until_filling_s(known: SpotHistory, terms: RentTerms) -> float:
    """Return when `_filling_pays` changes, while spot stays away.

    With both sides multiplied by the useless time and the rest of a gap it is linear in time.
    """
    useful_s, ratio = known.useful_s(terms.restart_s), terms.price_ratio
    if useful_s <= 0:
        return inf
    times, restart = max(known.taken, 1.0), ratio * terms.restart_s
    saved = useful_s * (ratio - known.up_s / useful_s)  # by the useless time
    useless_s = known.up_s + known.down_s - useful_s
    slope = saved / times - restart
    if slope == 0:
        return inf
    return (restart * useless_s - saved * (known.down_s / times - terms.restart_s)) / slope


def _until_settled_s(state: RentState, terms: RentTerms) -> float:
    """Return when spot has been back for as long as `_settling_s` then asks.

    With both sides multiplied by the mean cycle it is quadratic in time. In a restart the time that
    can be lost shrinks, so the moment is too early, and is found again from there.
    """
    known, slack = state.history, slack_s(state, terms)
    if slack <= LEAST_S:
        return inf
    seen_s = known.up_s + known.down_s
    needed = 2 * terms.restart_s**2 * max(known.taken, 1.0) / slack
    half = (state.lasted_s + seen_s + needed) / 2
    return sqrt(max(half**2 - state.lasted_s * seen_s + needed * state.left_s, 0.0)) - half


def _until_hop_pays_s(state: RentState, terms: RentTerms) -> float:
    """Return when `_hop_pays` begins to hold, while spot stays there; `inf` if it never does."""
    ratio, restart_s = terms.price_ratio, terms.restart_s
    if ratio <= 1:
        return inf
    known = state.history
    times = max(known.taken, 1.0)
    # The stretch to be expected is long enough for two restarts ...
    long_s = times * (restart_s + restart_s * (1 + ratio) / (ratio - 1)) - known.up_s
    # ... or it reaches the end of the work, which comes nearer once the restart is over.
    short_s = state.work_s - known.up_s / times + restart_s
    ends_s = times * short_s
    if ends_s > state.warm_s:
        ends_s = (short_s + state.warm_s) * times / (1 + times)
    left_s = state.work_s - max(ends_s - state.warm_s, 0.0)
    if long_s < ends_s:
        return long_s
    return ends_s if left_s * (ratio - 1) > restart_s else inf
