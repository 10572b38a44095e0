"""`[train.preference]`: what the objectives on pairs of answers need beside the pairs."""

from typing import Annotated

from pydantic import Field, PlainValidator, WithJsonSchema

from penstock.run.schema.section import Positive, Section, number

NEXT_TOKEN = "next_token"
# Objectives on pairs, which compare a chosen answer with a rejected one.
ON_PAIRS = ("dpo", "ipo")
PAIR = 2  # sequences of a pair

Smoothing = Annotated[
    float,
    PlainValidator(number(least=0, below=0.5)),
    WithJsonSchema({"title": "number below 0.5", "type": "number"}),
]


class PreferenceSection(Section):
    """Strength and smoothing of an objective on pairs."""

    beta: Positive = Field(
        0.1,
        description="How strongly the model is held to the one that it began as: more changes it "
        "less. Of ipo: its regularisation, τ.",
    )
    label_smoothing: Smoothing = Field(
        0.0,
        description="Share of the pairs whose two answers may be the wrong way round, for dpo; "
        "below 0.5.",
    )
