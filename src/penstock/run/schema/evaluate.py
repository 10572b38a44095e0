"""`[evaluate]`: how often, and on what, the model is judged."""

from typing import Self

from pydantic import Field, model_validator

from penstock.run.schema.quantity import Every
from penstock.run.schema.section import (
    CountOrFlag,
    EveryOrNever,
    InvalidFields,
    NotNegative,
    PositiveCount,
    Section,
    ShareBelowOne,
    Tokens,
)


class EvaluateSection(Section):
    """Validation during training: how often, and on which data."""

    every: EveryOrNever = Field(
        Every(steps=250), description='Steps or time between evaluations, or "never".'
    )
    holdout: ShareBelowOne = Field(
        0.005, description="Share of the dataset that is kept out of training; 0 is none."
    )
    tokens: Tokens = Field(256 * 2**10, description="Most tokens read by one evaluation.")
    keep_best: CountOrFlag = Field(
        0,
        description="Checkpoints with the lowest validation loss that are kept beside the newest "
        "`guard.keep`; true is 1. An evaluation that is the best so far is saved.",
    )
    patience: PositiveCount | None = Field(
        None,
        description="Evaluations in a row without improvement after which the run saves and stops; "
        "if not given, it never does.",
    )
    min_delta: NotNegative = Field(
        0.0,
        description="Least fall of the validation loss that counts as improvement, for `patience`.",
    )

    @model_validator(mode="after")
    def _evaluates(self) -> Self:
        for name in ("keep_best", "patience"):
            if getattr(self, name) and self.every == "never":
                what = 'needs evaluations, and every = "never"'
                raise InvalidFields(
                    (name, f'{what}; write every = "250 steps", or leave `{name}` out')
                )
            if getattr(self, name) and not self.holdout:
                what = "needs held-out samples, and holdout = 0"
                raise InvalidFields(
                    (name, f'{what}; write holdout = "0.5%", or leave `{name}` out')
                )
        return self
