"""Published scaling laws: the loss of a model by its size and its tokens, and the best split of
compute between the two.
"""

from dataclasses import dataclass
from typing import Literal

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table

FLOPS_PER_TOKEN = 6.0  # for each parameter, in the way all of these laws count


@dataclass(frozen=True, kw_only=True)
class ScalingLaw(Fact):
    """One published fit.

    `loss`: floor + params_factor / N^params_exponent + tokens_factor / D^tokens_exponent, in nats a
    token. `tokens`: the best D is tokens_factor × FLOPs^tokens_exponent. `ratio`: tokens_factor
    tokens for each parameter.
    """

    kind: Literal["loss", "tokens", "ratio"]
    floor: float | None
    params_factor: float | None
    params_exponent: float | None
    tokens_factor: float
    tokens_exponent: float | None
    floor_error: float | None  # standard error of the floor, where it was published
    fitted_to_params: float  # the largest model of the fit

    def loss(self, params: float, tokens: float) -> float:
        """Return the loss of `params` parameters trained on `tokens` tokens."""
        assert self.floor is not None
        assert self.params_factor is not None
        assert self.params_exponent is not None
        assert self.tokens_exponent is not None
        short = self.params_factor / params**self.params_exponent
        return self.floor + short + self.tokens_factor / tokens**self.tokens_exponent

    def best_params(self, flops: float) -> float:
        """Return the size of model that the law would train with so much compute."""
        budget = flops / FLOPS_PER_TOKEN
        if self.kind == "ratio":
            return (budget / self.tokens_factor) ** 0.5
        assert self.tokens_exponent is not None
        if self.kind == "tokens":
            return budget / (self.tokens_factor * flops**self.tokens_exponent)
        assert self.params_factor is not None
        assert self.params_exponent is not None
        a, b = self.params_exponent, self.tokens_exponent
        best: float = (a * self.params_factor / (b * self.tokens_factor) * budget**b) ** (
            1 / (a + b)
        )
        return best


TABLE = Table.of_csv("laws", ScalingLaw, file="scaling_laws.csv")
all, find, names = TABLE.all, TABLE.find, TABLE.names


def of_loss() -> list[ScalingLaw]:
    """Return the laws that predict a loss."""
    return [law for law in TABLE if law.kind == "loss"]
