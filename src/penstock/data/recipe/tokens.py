"""`[tokens]` and `[shards]`: how text becomes tokens, and the size of shards."""

from typing import Annotated, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from penstock.data.format.manifest import Json
from penstock.data.recipe.fields import Count
from penstock.data.tokenize import train
from penstock.data.tokenize.tokenizer import END
from penstock.run.schema.machine_fields import Size
from penstock.run.schema.section import InvalidFields, Section, Text, whole_number

LEAST_PACK = 16  # tokens
LEAST_VOCAB = 300  # of a tokenizer that is trained: 256 bytes, and some pairs
PLAIN = "default"  # value of `chat_template` that means Penstock's plain template

Vocab = Annotated[
    int,
    PlainValidator(whole_number(LEAST_VOCAB, "tokens", '32768 or "32Ki"', most=1 << 20)),
    WithJsonSchema({"title": "count", "type": ["integer", "string"]}),
]


class TokensSection(Section):
    """Conversion of text to tokens."""

    tokenizer: Text = Field(
        "train",
        description="`train`: from this dataset. Or a `tokenizer.json`, a model's folder, "
        "`hf:org/name`, or a built dataset (its tokenizer).",
    )
    vocab: Vocab = Field(32768, description="Tokens of a tokenizer that is trained.")
    end: Text | None = Field(
        None, description="The token after each document; the tokenizer's own if not given."
    )
    chat_template: Text | None = Field(
        None,
        description="File with the template (Jinja) of conversations; `default`: a plain one of "
        "Penstock; the tokenizer's own if not given.",
    )
    loss: Literal["assistant", "last", "all"] = Field(
        "assistant",
        description="Which tokens of a conversation are learned: the assistant's, its last turn's, "
        "or all.",
    )
    pack: Count = Field(
        0,
        description="Length of the samples, tokens, that whole documents are packed for; 0: "
        "documents follow one another and samples may begin inside one.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if 0 < self.pack < LEAST_PACK:
            raise InvalidFields(
                ("pack", f"too short to learn from; write {LEAST_PACK} or more, or 0")
            )
        if self.end and self.tokenizer == "train":
            raise InvalidFields(
                ("end", f"a trained tokenizer ends documents with {END}; leave it out")
            )
        return self

    def identity(self) -> dict[str, Json]:
        """Return what decides the tokens; a loaded tokenizer or template counts by its content."""
        trained = self.tokenizer == "train"
        return {
            "tokenizer": "train" if trained else "given",
            "vocab": self.vocab if trained else None,
            "revision": train.REVISION if trained else None,
            "end": self.end,
            "loss": self.loss,
            "pack": self.pack,
        }


class ShardsSection(Section):
    """Size of the shards on disk."""

    size: Size = Field(
        128 << 20, description="Approximate size of a token file; a document is never cut."
    )
