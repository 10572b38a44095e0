"""`[data]`: what the model reads."""

from typing import Literal, Self

from pydantic import Field, model_validator

from penstock.run.section import Positive, Section, Text, Tokens, Wrong


class MixPart(Section):
    """One dataset of a mixture."""

    dataset: Text = Field(description="As `data.dataset`.")
    weight: Positive = Field(description="Share of the samples, relative to the other parts.")


class DataSection(Section):
    """What the model reads."""

    dataset: Text = Field(
        "stdlib",
        description="A built dataset `name` or `name@version`, a recipe, a folder, a URL or "
        "`hf:org/name`.",
    )
    sequence: Tokens | None = Field(
        None,
        description="Length of a sample, tokens; if not given, the model's context, at most 2048.",
    )
    on_bad_shard: Literal["stop", "skip"] = Field(
        "stop", description="What to do with a shard that fails its checksum."
    )
    mix: tuple[MixPart, ...] = Field(
        (), description="Several datasets with weights, instead of `dataset`."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.mix and "dataset" in self.model_fields_set:
            raise Wrong(("dataset", "[[data.mix]] is given too; remove one of the two"))
        return self
