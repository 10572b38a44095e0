"""When a run uses spot capacity, when on-demand, and when it waits, so that it is never late.

Spot is cheaper and may be taken back at any moment. On-demand stays. A run may leave spot or wait
for it as long as on-demand alone could still finish in time after one more restart. From then on
it stays on on-demand. This is the known "can't be late" rule.

Before that moment, the question is money. If the spot time still to be expected is enough for the
work, the run waits for it. If not, some of the work must be done on-demand anyway. It is better
done now, while spot is away, if the spot hours that this keeps for later are worth its restarts;
else at the end, in one piece.

Most gaps are short, and so is most spot that comes back; what has lasted goes on longer. So nothing
is changed before spot has been away, or back, for as long as the restart takes that the change
costs: whoever waits that long never pays more than twice the best.
"""

from dataclasses import dataclass, replace
from typing import Literal

Capacity = Literal["spot", "on-demand", "wait"]


@dataclass(frozen=True)
class SpotHistory:
    """How long spot capacity was there and away so far, and how often it was taken back."""

    up_s: float
    down_s: float
    taken: float  # times that it was taken back

    def seen(self, available: bool, lasted_s: float, was_available: bool) -> "SpotHistory":
        """Return the history after another stretch of time."""
        if available:
            return replace(self, up_s=self.up_s + lasted_s)
        return replace(self, down_s=self.down_s + lasted_s, taken=self.taken + was_available)

    @property
    def mean_up_s(self) -> float:
        """Return how long spot stays once it is there, on average."""
        return self.up_s / max(self.taken, 1.0)

    @property
    def mean_down_s(self) -> float:
        """Return how long spot stays away, on average."""
        return self.down_s / max(self.taken, 1.0)

    def useful_share(self, restart_s: float) -> float:
        """Return the share of time in which spot makes progress: each return costs a restart."""
        total_s = self.up_s + self.down_s
        return max(self.up_s - self.taken * restart_s, 0.0) / total_s if total_s else 0.0


# Before anything was seen: there three quarters of the time, eight hours at a stretch. It weighs 32
# hours. Chosen among 36 variants of an earlier rule on recorded traces (docs/log.md).
UNKNOWN = SpotHistory(24 * 3600.0, 8 * 3600.0, 3.0)


@dataclass(frozen=True)
class RentTerms:
    """What does not change while a run rents."""

    restart_s: float  # from capacity to progress: boot, load, and the work lost on average
    look_s: float  # until the next decision
    price_ratio: float  # on-demand over spot
    margin_s: float = 0.0  # kept free at the end, for failures of on-demand nodes


@dataclass(frozen=True)
class RentState:
    """A run between two decisions. Only work that a checkpoint holds is done."""

    work_s: float  # left, at full speed
    left_s: float  # until the deadline
    on: Capacity  # what it uses now
    spot: bool  # whether spot is there now
    history: SpotHistory
    lasted_s: float = 0.0  # for how long spot has been there, or away


def can_leave_on_demand(state: RentState, terms: RentTerms) -> bool:
    """Tell whether on-demand could still finish in time if the next stretch brings nothing."""
    after_s = state.left_s - terms.look_s - terms.margin_s
    return after_s >= state.work_s + terms.restart_s


def choose_capacity(state: RentState, terms: RentTerms) -> Capacity:
    """Choose what a run uses until the next decision."""
    if not can_leave_on_demand(state, terms):
        return "on-demand"
    if terms.price_ratio <= 1:  # spot that is not cheaper only risks time
        return "on-demand"
    if state.spot:
        settled = state.lasted_s >= terms.restart_s
        if state.on != "on-demand" or (settled and _hop_pays(state, terms)):
            return "spot"
        return "on-demand"
    if state.on == "on-demand":  # waiting now would waste the restart that was just paid for
        return "on-demand"
    expected_s = state.history.useful_share(terms.restart_s) * state.left_s
    if expected_s >= state.work_s or state.lasted_s < terms.restart_s:
        return "wait"
    return "on-demand" if _filling_pays(state.history, terms) else "wait"


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
