"""The ledger as a type: arithmetic, shares, provenance, JSON."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.ledger.ledger import QUANTITIES, Ledger, Provenance

SECONDS = st.floats(0, 1e12)
AMOUNTS = st.dictionaries(st.sampled_from(list(Cause)), SECONDS)
PROVENANCE = st.builds(
    Provenance,
    st.sampled_from(["measured", "published", "estimated"]),
    st.sampled_from(["", "a", "b"]),
)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    known = {q: draw(AMOUNTS) for q in QUANTITIES if q == "seconds" or draw(st.booleans())}
    return Ledger(**known, provenance={q: draw(PROVENANCE) for q in known})


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, abs_tol=1e-300)  # below it, products lose digits


def same(a: Ledger, b: Ledger) -> bool:
    """Equal up to float rounding, with the same unknowns and sources."""
    for q in QUANTITIES:
        x, y = a.amounts(q), b.amounts(q)
        if (x is None) != (y is None):
            return False
        if x is not None and y is not None and not all(close(x[c], y[c]) for c in Cause):
            return False
    return {q: p.source for q, p in a.provenance.items()} == {
        q: p.source for q, p in b.provenance.items()
    }


def test_the_eleven_causes_stand_in_the_order_of_the_design() -> None:
    assert ", ".join(Cause) == (
        "compute, communicate, bubble, peer_wait, data_wait, checkpoint, evaluate, startup, down, "
        "redo, unexplained"
    )
    assert all(c.meaning and "\n" not in c.meaning for c in Cause)
    assert Cause("peer_wait").meaning == "waiting for a slower peer (straggler)"


def test_useful_and_effective() -> None:
    ledger = Ledger.of(compute=60, data_wait=10, startup=8, checkpoint=6, down=10, redo=6)
    assert ledger.total == 100
    assert ledger.useful == pytest.approx(0.6)
    assert ledger.effective == pytest.approx(0.7)
    assert Ledger.of().useful is None
    assert Ledger.of().effective is None


def test_unknown_is_never_zero() -> None:
    known = Ledger.of(compute=1).with_quantity(
        "joules", {Cause.COMPUTE: 700.0}, Provenance("measured", "NVML")
    )
    assert Ledger.of(compute=1).sum("joules") is None
    assert known.sum("joules") == 700
    both = known + Ledger.of(compute=1)
    assert both.joules is None
    assert both.provenance["joules"].source == "unknown"
    assert "joules" in both.provenance["joules"].note
    assert (both + known).provenance["joules"].source == "unknown"
    assert "usd" not in both.provenance


def test_a_sum_is_as_good_as_its_weakest_part() -> None:
    a = Ledger.of(Provenance("measured", "journal"), compute=1)
    b = Ledger.of(Provenance("estimated", "±10 %"), compute=2)
    assert (a + b).provenance["seconds"] == Provenance("estimated", "journal; ±10 %")
    assert Ledger.of(compute=1).provenance["seconds"].source == "estimated"


def test_compare_puts_plan_and_actual_side_by_side() -> None:
    rows = Ledger.of(compute=90, data_wait=1).compare(Ledger.of(compute=90, data_wait=11))
    assert [row.cause for row in rows] == list(Cause)
    row = rows[list(Cause).index(Cause.DATA_WAIT)]
    assert (row.predicted, row.actual, row.difference) == (1, 11, 10)
    priced = Ledger.of().with_quantity("usd", {Cause.DOWN: 5.0}, Provenance("published", "list"))
    row = Ledger.of().compare(priced, "usd")[list(Cause).index(Cause.DOWN)]
    assert (row.predicted, row.actual, row.difference) == (None, 5, None)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_an_amount_is_finite_and_not_negative(bad: float) -> None:
    with pytest.raises(AssertionError, match="seconds of compute"):
        Ledger.of(compute=bad)


def test_an_unknown_cause_is_refused() -> None:
    with pytest.raises(ValueError, match="computing"):
        Ledger.of(computing=1)


@pytest.mark.parametrize(
    "bad",
    [{}, {"seconds": {"compute": 1}}, {**Ledger.of().to_json(), "seconds": None}, [1],
     {**Ledger.of().to_json(), "seconds": {"naps": 1.0}},
     {**Ledger.of().to_json(), "provenance": {"seconds": {"source": "heard"}}}],
)  # fmt: skip
def test_json_that_is_not_a_ledger_is_refused(bad: object) -> None:
    with pytest.raises(PenstockError, match="not a ledger"):
        Ledger.from_json(bad)  # type: ignore[arg-type]


@given(ledgers(), ledgers(), ledgers())
def test_addition_is_associative_and_commutative(a: Ledger, b: Ledger, c: Ledger) -> None:
    assert same((a + b) + c, a + (b + c))
    assert same(a + b, b + a)


@given(ledgers(), ledgers(), st.floats(0, 1e6))
def test_scaling_distributes(a: Ledger, b: Ledger, k: float) -> None:
    assert same((a + b).scaled(k), a.scaled(k) + b.scaled(k))
    assert close(a.scaled(k).total, k * a.total)


@given(ledgers())
def test_shares_lie_between_zero_and_one(a: Ledger) -> None:
    if a.total > 0:
        shares = [a.share(c) for c in Cause]
        assert all(s is not None and 0 <= s <= 1 for s in [*shares, a.useful, a.effective])
        assert math.isclose(math.fsum(s for s in shares if s is not None), 1)


@given(ledgers())
def test_json_round_trip_is_exact(a: Ledger) -> None:
    assert Ledger.from_json(json.loads(json.dumps(a.to_json()))) == a
