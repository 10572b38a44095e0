"""Ledger: the eleven causes for a span of time, in seconds, joules, USD and gCO2e.

The planner predicts one, the simulator plays one, the trainer measures one. All three use the same
type, so plan and actual can be compared. Seconds are always known; the other quantities are None
when unknown, because a silent zero would read as "free". Seconds are accelerator-seconds: the
causes add up to wall-clock × accelerators.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause

Quantity = Literal["seconds", "joules", "usd", "gco2e"]
QUANTITIES: tuple[Quantity, ...] = ("seconds", "joules", "usd", "gco2e")

Source = Literal["measured", "published", "estimated", "unknown"]
# From strongest to weakest: a sum is only as good as its weakest part.
SOURCES: tuple[Source, ...] = ("measured", "published", "estimated", "unknown")

Amounts = Mapping[Cause, float]


@dataclass(frozen=True)
class Provenance:
    """The origin of one quantity's numbers; `unknown` says why they are missing."""

    source: Source
    note: str = ""

    def __post_init__(self) -> None:
        assert self.source in SOURCES, f"source is {self.source!r}, must be one of {SOURCES}"

    def __add__(self, other: "Provenance") -> "Provenance":
        weaker = max(self.source, other.source, key=SOURCES.index)
        notes = dict.fromkeys(n for p in (self, other) for n in p.note.split("; ") if n)
        return Provenance(weaker, "; ".join(notes))


NOT_STATED = Provenance("estimated", "source not stated")


@dataclass(frozen=True)
class Row:
    """One line of plan against actual; None where a side does not know the quantity."""

    cause: Cause
    predicted: float | None
    actual: float | None

    @property
    def difference(self) -> float | None:
        """Actual minus predicted: positive is worse than planned, except for `compute`."""
        if self.predicted is None or self.actual is None:
            return None
        return self.actual - self.predicted


@dataclass(frozen=True)
class Ledger:
    """Amounts by cause. A cause that is missing from a known quantity is zero there."""

    seconds: Amounts
    joules: Amounts | None = None
    usd: Amounts | None = None
    gco2e: Amounts | None = None
    provenance: Mapping[Quantity, Provenance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.seconds is not None, "a ledger always has seconds"
        provenance = dict(self.provenance)
        for quantity in QUANTITIES:
            amounts = self.amounts(quantity)
            if amounts is not None:
                object.__setattr__(self, quantity, _complete(quantity, amounts))
                provenance.setdefault(quantity, NOT_STATED)
        ordered = {q: provenance[q] for q in QUANTITIES if q in provenance}
        object.__setattr__(self, "provenance", ordered)

    @classmethod
    def of(cls, provenance: Provenance = NOT_STATED, **seconds: float) -> "Ledger":
        """Make a ledger of seconds alone: `Ledger.of(compute=90, data_wait=10)`."""
        by_cause = {Cause(name): value for name, value in seconds.items()}
        return cls(by_cause, provenance={"seconds": provenance})

    def amounts(self, quantity: Quantity) -> Amounts | None:
        """Return the amounts by cause of one quantity; None if unknown."""
        found: Amounts | None = getattr(self, quantity)
        return found

    def with_quantity(
        self, quantity: Quantity, amounts: Amounts, provenance: Provenance
    ) -> "Ledger":
        """Return this ledger with one quantity set, and where it came from."""
        return self._made(
            lambda q: amounts if q == quantity else self.amounts(q),
            {**self.provenance, quantity: provenance},
        )

    def sum(self, quantity: Quantity) -> float | None:
        """Return one quantity over all causes; None if unknown."""
        amounts = self.amounts(quantity)
        return None if amounts is None else math.fsum(amounts.values())

    @property
    def total(self) -> float:
        """Accelerator-seconds over all causes."""
        return math.fsum(self.seconds.values())

    def share(self, *causes: Cause) -> float | None:
        """Return the share of the total seconds of these causes; None for an empty ledger."""
        total = self.total
        return math.fsum(self.seconds[c] for c in causes) / total if total > 0 else None

    @property
    def useful(self) -> float | None:
        """`compute` / total."""
        return self.share(Cause.COMPUTE)

    @property
    def effective(self) -> float | None:
        """Effective training time, as published (ETTR); never mixed with `useful`."""
        lost = self.share(Cause.STARTUP, Cause.CHECKPOINT, Cause.DOWN, Cause.REDO)
        return None if lost is None else 1 - lost

    def __add__(self, other: "Ledger") -> "Ledger":
        def added(quantity: Quantity) -> Amounts | None:
            mine, theirs = self.amounts(quantity), other.amounts(quantity)
            if mine is None or theirs is None:
                return None
            return {c: mine[c] + theirs[c] for c in Cause}

        provenance = {}
        for quantity in QUANTITIES:
            where = self._provenance_of_sum(other, quantity)
            if where is not None:
                provenance[quantity] = where
        return self._made(added, provenance)

    def _provenance_of_sum(self, other: "Ledger", quantity: Quantity) -> Provenance | None:
        mine, theirs = self.provenance.get(quantity), other.provenance.get(quantity)
        if (self.amounts(quantity) is None) != (other.amounts(quantity) is None):
            return Provenance("unknown", f"a part of the sum has no {quantity}")
        return mine + theirs if mine and theirs else mine or theirs

    def scaled(self, k: float) -> "Ledger":
        """Return every amount times `k`: one rank to many, one step to a run."""

        def times(quantity: Quantity) -> Amounts | None:
            amounts = self.amounts(quantity)
            return None if amounts is None else {c: k * amounts[c] for c in Cause}

        return self._made(times, self.provenance)

    def compare(self, actual: "Ledger", quantity: Quantity = "seconds") -> list[Row]:
        """Compare this ledger as the prediction with `actual`, a row per cause."""
        plan, real = self.amounts(quantity), actual.amounts(quantity)
        return [Row(c, plan[c] if plan else None, real[c] if real else None) for c in Cause]

    def to_json(self) -> dict[str, object]:
        """Return plain dicts with the causes' names as keys; floats survive `json` exactly."""
        out: dict[str, object] = {}
        for quantity in QUANTITIES:
            amounts = self.amounts(quantity)
            out[quantity] = None if amounts is None else {c.value: amounts[c] for c in Cause}
        out["provenance"] = {
            q: {"source": p.source, "note": p.note} for q, p in self.provenance.items()
        }
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Ledger":
        """Parse what `to_json` returned; anything else is refused with what was found."""
        try:
            amounts = {q: _by_cause(data[q]) for q in QUANTITIES}
            provenance = {q: Provenance(**data["provenance"][q]) for q in data["provenance"]}
            return cls._made(amounts.__getitem__, provenance)
        except (KeyError, ValueError, TypeError, AttributeError, AssertionError) as error:
            raise PenstockError(
                f"This is not a ledger ({type(error).__name__}: {error}). A ledger is a dict of "
                f"{', '.join(QUANTITIES)} (each by cause, or null) and provenance, "
                "as Ledger.to_json writes it."
            ) from error

    @classmethod
    def _made(
        cls,
        amounts: Callable[[Quantity], Amounts | None],
        provenance: Mapping[Quantity, Provenance],
    ) -> "Ledger":
        seconds = amounts("seconds")
        assert seconds is not None
        return cls(seconds, amounts("joules"), amounts("usd"), amounts("gco2e"), provenance)


def _complete(quantity: Quantity, amounts: Amounts) -> dict[Cause, float]:
    """Return all eleven causes in order; refuse impossible amounts."""
    full = {c: float(amounts.get(c, 0.0)) for c in Cause}
    for name, value in amounts.items():
        assert name in full, f"{name!r} is not a cause"
        assert 0 <= value < math.inf, f"{quantity} of {name} is {value}"
    return full


def _by_cause(amounts: Mapping[str, float] | None) -> dict[Cause, float] | None:
    return None if amounts is None else {Cause(name): value for name, value in amounts.items()}
