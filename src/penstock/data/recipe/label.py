"""`[label]`: the scores of documents, which are left out, and how often each is read."""

from dataclasses import asdict
from typing import Self

from pydantic import Field, model_validator

from penstock.data.format.manifest import Json
from penstock.data.label import classifier, features, heuristic
from penstock.data.label.scores import CLASSIFIER, HEURISTIC, LabelConfig
from penstock.data.recipe.fields import Copies, Score
from penstock.run.schema.section import InvalidFields, Section, Text


class LabelSection(Section):
    """Quality scores of documents. The score decides which copy stays and how often it is read."""

    good: tuple[Text, ...] = Field(
        (), description="Files with examples of good documents: they train the classifier."
    )
    bad: tuple[Text, ...] = Field((), description="Files with examples of bad documents.")
    use: Text | None = Field(
        None,
        description="The score: `classifier`, `heuristic`, or the name of a column with numbers. "
        "If not given, the classifier where there are examples, else the heuristic.",
    )
    least: Score | None = Field(None, description="Documents with a lower score are dropped.")
    copies: Copies | None = Field(
        None,
        description="From this score on, so many copies: `[[0.0, 1], [0.8, 2]]` reads the best "
        "twice; 0.5 keeps every second document. One of each if not given.",
    )

    @property
    def score(self) -> str:
        """`classifier`, `heuristic`, or the name of a column."""
        return self.use or (CLASSIFIER if self.good else HEURISTIC)

    def config(self) -> LabelConfig:
        once = LabelConfig().copies
        return LabelConfig(self.score, self.least, self.copies or once)

    def identity(self) -> dict[str, Json]:
        """Return what decides the labels; the content of examples is added where they are read."""
        revisions: dict[str, Json] = {
            "heuristic": heuristic.REVISION,
            "classifier": [classifier.REVISION, features.REVISION],
        }
        return {"revisions": revisions, **asdict(self.config())}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.good) != bool(self.bad):
            lone, other = ("good", "bad") if self.good else ("bad", "good")
            raise InvalidFields(
                (lone, f"the classifier needs `{other}` examples too; name such files")
            )
        if self.score == CLASSIFIER and not self.good:
            raise InvalidFields(
                ("use", "no examples to learn from; name files in `good` and `bad`")
            )
        return self
