"""`[evaluate]`: how often, and on what, the model is judged."""

from typing import Self

from pydantic import Field, model_validator

from penstock.run.schema.quantity import Every
from penstock.run.schema.section import (
    CountOrFlag,
    Documents,
    EveryOrNever,
    InvalidFields,
    NotNegative,
    PositiveCount,
    Section,
    ShareBelowOne,
    Text,
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

    tasks: tuple[Text, ...] = Field(
        (),
        description="Benchmark tasks of lm-evaluation-harness that are run while training, and "
        "once more at the end.",
    )
    tasks_dir: Text | None = Field(
        None,
        description="Folder with tasks of your own in the harness's YAML format; relative to the "
        "current folder or the run file's.",
    )
    tasks_every: EveryOrNever = Field(
        Every(steps=1000),
        description='Steps or time between evaluations of `tasks`; "never" is at the end only.',
    )
    tasks_limit: Documents | None = Field(
        None, description="Documents of each task that are evaluated; if not given, all."
    )

    @model_validator(mode="after")
    def _has_tasks(self) -> Self:
        for name in ("tasks_dir", "tasks_limit"):
            if getattr(self, name) is not None and not self.tasks:
                raise InvalidFields((name, f"needs tasks; name some, or leave `{name}` out"))
        return self

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
