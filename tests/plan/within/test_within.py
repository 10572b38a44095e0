"""The best model for a budget: exact against trying everything, monotone, helpful refusals."""

import json
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock.catalog import scaling_laws
from penstock.cli.main import app
from penstock.cli.within import ANY_RUN
from penstock.errors import PenstockError
from penstock.plan.cost.cost import HourlyPrice
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.within import limits
from penstock.plan.within.adapting import adaptation, law_loss
from penstock.plan.within.best import BudgetPlanner, _halves, deciding_law
from penstock.plan.within.limits import SpendingLimits
from penstock.run.load import load_table

RUN = load_table(ANY_RUN, ["cluster.use=H100"])
PRICE = HourlyPrice(2.0, "given")
DAY = 86400.0


class Few(BudgetPlanner):
    """A planner with every fourth size, and its speeds kept between budgets."""

    known: dict = {}  # noqa: RUF012

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ladder = self.ladder[::4]
        self._jobs = Few.known


def planner(usd: float | None, days: float | None, nodes: int = 1) -> BudgetPlanner:
    seconds = None if days is None else days * DAY
    found = SpendingLimits(usd, seconds)
    return Few(RUN, of_catalog("H100", 8 * nodes), PRICE, found)


# The laws.


@pytest.mark.parametrize(
    ("law", "flops", "params", "tokens"),
    [
        # The papers' own examples: 3.8e25 FLOPs, and 67B parameters for Gopher's 5.76e23.
        ("Llama 3 2024", 3.8e25, 402e9, 16.55e12),
        ("Chinchilla rule", 5.76e23, 67e9, 1.4e12),
    ],
)
def test_laws_give_what_their_papers_say(
    law: str, flops: float, params: float, tokens: float
) -> None:
    best = scaling_laws.find(law).best_params(flops)
    assert best == pytest.approx(params, rel=0.12)
    assert flops / 6 / best == pytest.approx(tokens, rel=0.12)


@pytest.mark.parametrize("law", scaling_laws.of_loss(), ids=lambda law: law.name)
@pytest.mark.parametrize("flops", [1e18, 1e21, 1e24])
def test_the_best_size_of_a_loss_is_its_minimum(law: scaling_laws.ScalingLaw, flops: float) -> None:
    best = law.best_params(flops)

    def loss(params: float) -> float:
        return law.loss(params, flops / 6 / params)

    assert loss(best) <= min(loss(best * 1.05), loss(best / 1.05))


def test_the_two_losses_are_as_published() -> None:
    """Chinchilla itself: 70B parameters on 1.4T tokens."""
    first, again = scaling_laws.of_loss()
    assert first.loss(70e9, 1.4e12) == pytest.approx(1.69 + 0.0834 + 0.1632, abs=2e-3)
    assert again.loss(70e9, 1.4e12) == pytest.approx(1.8172 + 0.0813 + 0.0755, abs=2e-3)


# The choice.


def test_the_best_is_that_of_trying_everything() -> None:
    asked = planner(400.0, 3.0, nodes=2)
    every = [asked.afford(s, m) for s in asked.ladder for m in asked.machines]
    answer = asked.answer()
    assert answer.best.loss == min(one.loss for one in every if one)
    assert answer.best.usd is not None
    assert answer.best.usd <= 400
    assert answer.best.wall_s <= 3 * DAY


@given(st.floats(0.3, 3.5), st.floats(0.0, 1.0), st.floats(-0.5, 1.0), st.floats(0.0, 1.0))
@settings(deadline=None, max_examples=12)
def test_more_money_or_time_is_never_a_worse_loss(
    money: float, more_money: float, time: float, more_time: float
) -> None:
    def loss(usd: float, days: float) -> float:
        try:
            return planner(usd, days).answer().best.loss
        except PenstockError:
            return inf  # too small for anything

    least = loss(10**money, 10**time)
    assert loss(10 ** (money + more_money), 10**time) <= least
    assert loss(10**money, 10 ** (time + more_time)) <= least


def test_money_goes_further_on_fewer_nodes_where_there_is_time() -> None:
    asked = planner(200.0, None, nodes=4)
    assert [m.accelerators for m in asked.machines] == [32, 16, 8]
    assert asked.answer().best.job.layout.ranks == 8


def test_halves_end_with_one_node() -> None:
    assert [m.nodes for m in _halves(of_catalog("H100", 40))] == [5, 2, 1]
    assert [m.accelerators for m in _halves(of_catalog("H100", 1))] == [1]


def test_an_open_model_is_the_better_buy_only_if_the_law_says_so() -> None:
    asked = planner(400.0, 3.0)
    found = adaptation(asked, 3.0)
    assert found
    assert found.loss < 3.0
    assert found.usd is not None
    assert found.usd <= 400
    smaller = [w for w in _open() if w.shape.params() < found.weights.shape.params()]
    assert all(law_loss(weights) >= 3.0 for weights in smaller)
    none_better = adaptation(asked, 1.0)
    assert none_better
    assert none_better.loss > 1.0


def _open() -> list:
    from penstock.catalog import open_weights

    return open_weights.all()


# What is refused.


@pytest.mark.parametrize(
    ("text", "usd"),
    [("5000usd", 5000), ("5,000 USD", 5000), ("$20", 20), ("5kusd", 5000), ("1.5Musd", 1.5e6)],
)
def test_money_is_read_with_its_unit(text: str, usd: float) -> None:
    assert limits.dollars(text) == pytest.approx(usd)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("5000", "no unit"),
        ("50000cents", "in cents"),
        ("5000 ct", "in cents"),
        ("5000eur", "'eur' is not one of"),
        ("0usd", "above zero"),
        ("-5usd", "above zero"),
        ("much", "not an amount of money"),
        ("1e99usd", "above zero"),
    ],
)
def test_other_money_is_refused(text: str, says: str) -> None:
    with pytest.raises(PenstockError, match=says):
        limits.dollars(text)


@pytest.mark.parametrize("days", [0.0, -1.0, float("nan"), inf])
def test_days_are_above_zero(days: float) -> None:
    with pytest.raises(PenstockError, match="above zero"):
        limits.parse(None, days)


def test_too_little_says_the_smallest() -> None:
    with pytest.raises(PenstockError, match=r"too small for anything: .*M parameters.* USD") as why:
        planner(0.01, None).answer()
    least = float(str(why.value).split("takes ")[1].split(" USD")[0])
    with pytest.raises(PenstockError, match="too small"):
        planner(0.9 * least, None).answer()
    assert planner(1.1 * least + 0.01, None).answer().best.params < 20e6


def test_money_without_a_price_is_refused() -> None:
    machine = of_catalog("H100", 8)
    here = load_table(ANY_RUN)
    with pytest.raises(PenstockError, match=r"cluster\.usd_per_hour"):
        limits.known_price(here, machine, SpendingLimits(5.0, None))
    assert limits.known_price(here, machine, SpendingLimits(None, DAY)) is None


# The command.


def test_the_command_in_words_and_in_json() -> None:
    asked = ["plan", "--within", "300usd", "--days", "2", "cluster.use=H100"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    assert "the better buy" in shown.output
    found = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert found["within_usd"] == 300
    best, loss = found["best"], found["best"]["loss"]
    assert loss["low"] < loss["expected"] < loss["high"]
    assert loss["expected"] == pytest.approx(deciding_law().loss(best["params"], best["tokens"]))
    assert best["usd"] <= 300
    assert found["adapt"]["better"] is True
    longer = found["overtrained"]
    assert longer["params"] < best["params"]
    assert loss["expected"] < longer["loss"]["expected"] <= 1.02 * loss["expected"]
    assert longer["tokens_per_param"] > best["tokens_per_param"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--within", "5000"], "no unit"),
        (["--days", "0"], "above zero"),
        (["--days", "1", "--deadline", "2 days"], "two questions"),
        ([], "no run file"),
    ],
)
def test_mistakes_end_with_two(more: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["plan", *more])
    assert result.exit_code != 0
    assert says in str(result.exception or "") + result.output
