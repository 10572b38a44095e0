"""`[train.preference]`: what the objectives on pairs of answers need beside the pairs."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, PlainValidator, WithJsonSchema

from penstock.run.schema.section import NotNegative, Positive, Section, number

NEXT_TOKEN = "next_token"
# Objectives on pairs, which compare a chosen answer with a rejected one.
WITH_REFERENCE = ("dpo", "ipo")  # and the model with the one that it began as
ON_PAIRS = (*WITH_REFERENCE, "simpo", "orpo")
SMOOTHED = ("dpo", "simpo")  # those that know of pairs that may be the wrong way round
PAIR = 2  # sequences of a pair
# Where the authors of an objective begin (SimPO: beta 2 to 2.5, gamma half of it).
DEFAULTS: Mapping[str, Mapping[str, float]] = {"simpo": {"beta": 2.0, "gamma": 1.0}}
NOT_BUILT = {
    "kto": "not built: its loss compares each answer with the mean over a batch of answers that "
    "were put to other prompts, so it would change with the number of ranks and with "
    "layout.microbatch"
}

Smoothing = Annotated[
    float,
    PlainValidator(number(least=0, below=0.5)),
    WithJsonSchema({"title": "number below 0.5", "type": "number"}),
]


class PreferenceSection(Section):
    """Strength and smoothing of an objective on pairs."""

    beta: Positive = Field(
        0.1,
        description="dpo and ipo: how strongly the model is held to the one that it began as; more "
        "changes it less (τ of ipo). simpo: scale of the rewards; if not given, 2. orpo: weight of "
        "the odds ratio beside the cross-entropy, λ.",
    )
    gamma: NotNegative | None = Field(
        None,
        description="simpo: margin by which the reward of the chosen answer should be the higher "
        "one; if not given, 1. Others have none.",
    )
    label_smoothing: Smoothing = Field(
        0.0,
        description="Share of the pairs whose two answers may be the wrong way round, for dpo and "
        "simpo; below 0.5.",
    )

    def words(self) -> str:
        """Return the values that decide what the loss is."""
        values = {"beta": self.beta, "gamma": self.gamma}
        values |= {"label smoothing": self.label_smoothing or None}
        return ", ".join(f"{name} {value:g}" for name, value in values.items() if value is not None)


def preference_problem(objective: str, section: PreferenceSection) -> tuple[str, str] | None:
    """Return a field that an objective on pairs does not have, and what to do about it."""
    if section.gamma is not None and objective not in DEFAULTS:
        return "gamma", 'only for objective = "simpo"; remove it'
    if section.label_smoothing and objective not in SMOOTHED:
        known = " or ".join(f'"{name}"' for name in SMOOTHED)
        return "label_smoothing", f"only for objective = {known}; remove it"
    return None


def preference_note(objective: str, section: PreferenceSection) -> str | None:
    """Say of a strength that was meant for another objective what it does in this one."""
    if objective != "simpo" or section.beta >= 1:
        return None
    return (
        f"train.preference.beta = {section.beta:g} is small for simpo, whose rewards are means "
        "over tokens: it would hardly tell the answers apart. Its authors use 2 to 10, and a gamma "
        "of about half of that"
    )
