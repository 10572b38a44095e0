"""`[evaluate]`: how often, and on what, the model is judged."""

from pydantic import Field

from penstock.run.quantity import Every
from penstock.run.section import EveryOrNever, Section, ShareBelowOne, Tokens


class EvaluateSection(Section):
    """How often, and on what, the model is judged."""

    every: EveryOrNever = Field(
        Every(steps=250), description='Steps or time between evaluations, or "never".'
    )
    holdout: ShareBelowOne = Field(
        0.005, description="Share of the dataset that is kept out of training; 0 is none."
    )
    tokens: Tokens = Field(256 * 2**10, description="Most tokens read by one evaluation.")
