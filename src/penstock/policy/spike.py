"""The decision whether a step may change the weights, from the loss and the gradient norm that all
ranks agreed on.

A number that is not finite never reaches the weights. A finite one is a spike when loss *and* norm
are far above their recent medians, which a spike cannot move; the norm is judged on a log scale.
One of them alone is normal: rare batches have steep gradients, and the start of a run has high
losses. The state is small and is saved with every checkpoint, so an interrupted run decides as one
that was not interrupted.
"""

import math
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any, Literal

OnSpike = Literal["stop", "skip", "rollback"]
Kind = Literal["good", "skip", "rollback", "stop"]

WINDOW = 64  # steps that "lately" means
LEAST = 20  # steps before a finite value is judged
SIGMAS = 10.0  # above the median; recorded curves stay below 3 for both, norms alone reach 17
LOSS_RISE = 0.1  # at least, as a share of the median
NORM_RISE = math.log(3.0)  # at least
NORM_ALONE = math.log(100.0)  # from here on the norm alone is a spike
IN_A_ROW = 3  # consecutive steps refused: the batch is not the reason
SHARE = 0.01  # of all steps; more refused steps stop the run
# A spike that comes back after a rollback began before it showed. Each time it comes back near the
# last one, more of the batches before it are left out.
WIDTHS = (1, 4, 16)
SIGMA_OF_MAD = 1.4826  # for a normal distribution


@dataclass(frozen=True)
class SpikeState:
    """The recent losses and norms, and what was done about earlier spikes."""

    losses: tuple[float, ...] = ()  # of the steps taken lately
    norms: tuple[float, ...] = ()  # their logarithms
    refused: tuple[int, ...] = ()  # steps that were found bad
    rolled_back: tuple[int, ...] = ()  # those of them that the run went back for
    skips: tuple[int, ...] = ()  # steps whose batch is not trained on, whatever it looks like

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: dict[str, list[Any]]) -> "SpikeState":
        return cls(**{name: tuple(values) for name, values in saved.items()})

    def knowing(self, later: "SpikeState") -> "SpikeState":
        """Return this state, of a step that the run went back to, with what it learned since."""
        return replace(
            self,
            refused=_union(self.refused, later.refused),
            rolled_back=_union(self.rolled_back, later.rolled_back),
            skips=_union(self.skips, later.skips),
        )

    def forgiving(self, *steps: int) -> "SpikeState":
        """Return this state without what was held against steps whose batches were sound."""
        return replace(
            self,
            refused=tuple(s for s in self.refused if s not in steps),
            rolled_back=tuple(s for s in self.rolled_back if s not in steps),
            skips=tuple(s for s in self.skips if s not in steps),
        )


@dataclass(frozen=True)
class SpikeVerdict:
    """The verdict on a step. `why` is empty for a good step. A rollback goes to before `first`."""

    kind: Kind
    why: str = ""
    first: int = 0
    known: bool = False  # the batch was found bad before, and this is it again


def decide(
    state: SpikeState, step: int, loss: float, norm: float, on_spike: OnSpike
) -> tuple[SpikeState, SpikeVerdict]:
    """Decide about `step` from its `loss` and `norm`, before the weights have changed."""
    if step in state.skips:
        return state, SpikeVerdict("skip", "found bad before", known=True)
    finite = math.isfinite(loss) and math.isfinite(norm)
    why = _spike(state, loss, norm) if finite else f"loss {loss:g}, gradient norm {norm:g}"
    if not why:
        return _taken(state, loss, norm), SpikeVerdict("good")
    after = replace(state, refused=_union(state.refused, (step,)))
    if on_spike == "stop":
        return after, SpikeVerdict("stop", why)
    if len(after.refused) > max(IN_A_ROW, SHARE * step):
        return after, SpikeVerdict(
            "stop", f"{why}; {len(after.refused)} of {step} steps were like it"
        )
    if on_spike == "rollback" and finite:
        return _back(after, step, why)
    row = range(step - IN_A_ROW + 1, step + 1)
    if all(other in after.refused for other in row):
        return _not_the_batch(
            after, row, f"{why}; {IN_A_ROW} steps in a row were like it", on_spike
        )
    return replace(after, skips=_union(after.skips, (step,))), SpikeVerdict("skip", why)


def _taken(state: SpikeState, loss: float, norm: float) -> SpikeState:
    if norm <= 0:  # nothing was learned, and it has no logarithm
        return state
    norms = (*state.norms, math.log(norm))[-WINDOW:]
    return replace(state, losses=(*state.losses, loss)[-WINDOW:], norms=norms)


def _spike(state: SpikeState, loss: float, norm: float) -> str:
    """Say how far beyond the usual the value is; "" if it is not."""
    if len(state.norms) < LEAST or norm <= 0:
        return ""
    usual_loss, usual_log = median(state.losses), median(state.norms)
    rise = max(SIGMAS * _sigma(state.losses), LOSS_RISE * abs(usual_loss))
    high_loss = loss - usual_loss > rise
    over = math.log(norm) - usual_log
    high_norm = over > max(SIGMAS * _sigma(state.norms), NORM_RISE)
    if not high_norm or not (high_loss or over > NORM_ALONE):
        return ""
    return (
        f"loss {loss:.4g} where {usual_loss:.4g} is usual, gradient norm {norm:.4g} where "
        f"{math.exp(usual_log):.4g} is"
    )


def _sigma(values: tuple[float, ...]) -> float:
    """Return the standard deviation of the noise, from the median of the differences between
    neighbours: outliers and a slope do not change it.
    """
    return SIGMA_OF_MAD * median(abs(b - a) for a, b in pairwise(values)) / 2**0.5


def _not_the_batch(
    state: SpikeState, row: range, why: str, on_spike: OnSpike
) -> tuple[SpikeState, SpikeVerdict]:
    """Go back once to good weights and repeat these batches: the weights may be corrupt in
    memory.
    """
    if on_spike != "rollback" or set(row) & set(state.rolled_back):
        return state, SpikeVerdict("stop", why)
    after = state.forgiving(*row)
    after = replace(after, rolled_back=_union(after.rolled_back, (row[-1],)))
    return after, SpikeVerdict("rollback", why, row[0])


def _back(state: SpikeState, step: int, why: str) -> tuple[SpikeState, SpikeVerdict]:
    """Go back and leave out this batch; leave out more before it where going back did not help."""
    near = [other for other in state.rolled_back if abs(step - other) <= WINDOW]
    if len(near) == len(WIDTHS):
        return state, SpikeVerdict("stop", f"{why}; going back {len(near)} times did not help")
    first = max(1, step - WIDTHS[len(near)] + 1)
    after = replace(
        state,
        rolled_back=_union(state.rolled_back, (step,)),
        skips=_union(state.skips, tuple(range(first, step + 1))),
    )
    return after, SpikeVerdict("rollback", why, first)


def _union(own: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({*own, *others}))
