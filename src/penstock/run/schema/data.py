"""`[data]`: what the model reads."""

from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from penstock.run.schema.machine_fields import Size
from penstock.run.schema.section import Flag, InvalidFields, Positive, Section, Text, Tokens

# Fields that were added later, with their old fixed values: left out at these values, so that older
# runs keep their fingerprints.
_CAME_LATER = {
    "order": "auto",
    "across_documents": True,
    "cache": None,
    "cache_bytes": None,
    "chat_template": None,
}


class MixPart(Section):
    """One dataset of a mixture."""

    dataset: Text = Field(description="As `data.dataset`.")
    weight: Positive = Field(description="Share of the samples, relative to the other parts.")


class DataSection(Section):
    """The data that the model reads."""

    dataset: Text = Field(
        "stdlib",
        description="A built dataset `name` or `name@version` (its first digits are enough), a "
        "recipe, a file, a folder, a glob, a URL or `hf:org/name`.",
    )
    sequence: Tokens | None = Field(
        None,
        description="Length of a sample, tokens; of a pair, of each answer with its prompt. If not "
        "given, that of a packed dataset, else the "
        "model's context, at most 2048.",
    )
    order: Literal["auto", "shuffle", "window"] = Field(
        "auto",
        description="Order of the samples: `shuffle` jumps over the whole set, `window` reads it "
        "in shuffled pieces of 16 MiB and shuffles the samples of 16 of them; `auto` is shuffle up "
        "to 1 GiB of tokens.",
    )
    across_documents: Flag = Field(
        True,
        description="Whether a token sees the documents before its own in the same sample; false: "
        "attention stays inside a document and positions restart with it.",
    )
    chat_template: Text | None = Field(
        None,
        description="File with the template (Jinja) of conversations, for raw files of them; "
        "`default`: a plain one of Penstock. If not given, that of the model's tokenizer.",
    )
    on_bad_shard: Literal["stop", "skip"] = Field(
        "stop",
        description="What to do with data that fails its checksum; skip: samples that need it keep "
        "their place and count nothing, and the journal says which.",
    )
    cache: Text | None = Field(
        None,
        description="Folder that keeps what was read from a remote dataset; if not given, "
        "`PENSTOCK_CACHE`, else `cache` in Penstock's home.",
    )
    cache_bytes: Size | None = Field(
        None,
        description="Most bytes of that folder; if not given, a tenth of the disk's free space, at "
        "most 64 GiB.",
    )
    mix: tuple[MixPart, ...] = Field(
        (), description="Several datasets with weights, instead of `dataset`."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.mix and "dataset" in self.model_fields_set:
            raise InvalidFields(("dataset", "[[data.mix]] is given too; remove one of the two"))
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        given: dict[str, Any] = dump(self)
        return {
            name: value
            for name, value in given.items()
            if name not in _CAME_LATER or value != _CAME_LATER[name]
        }

    @property
    def parts(self) -> list[tuple[str, float]]:
        """Datasets with weights: the one of `dataset`, or those of the mixture."""
        return [(part.dataset, part.weight) for part in self.mix] or [(self.dataset, 1.0)]
