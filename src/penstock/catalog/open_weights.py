"""Open models to adapt instead of training one: their shape and how long they were trained."""

from dataclasses import dataclass

from penstock.catalog import models
from penstock.catalog.fact import Fact
from penstock.catalog.shapes import ModelShape
from penstock.catalog.table import Table


@dataclass(frozen=True, kw_only=True)
class PublishedWeights(Fact):
    """Published weights of a base model. The first alias is its name on the hub."""

    preset: str  # of the models
    tokens: float  # that it was trained on
    licence: str

    @property
    def shape(self) -> ModelShape:
        return models.preset(self.preset)

    @property
    def hub(self) -> str:
        return self.aliases[0]


TABLE = Table.of_csv("weights", PublishedWeights, file="open_weights.csv")
all, find, names = TABLE.all, TABLE.find, TABLE.names
