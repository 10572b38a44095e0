"""`[dedup]` and `[decontaminate]`: copies, and texts that a model will be judged by."""

from typing import Literal, Self

from pydantic import Field, model_validator

from penstock.data.dedup.contamination import Overlap
from penstock.data.dedup.exact import ExactDocuments, ExactLines
from penstock.data.dedup.signatures import MinHash
from penstock.data.recipe.fields import Part, Positive
from penstock.run.schema.section import Flag, InvalidFields, Section, Seed, Switch, Text


class LinesSection(Switch):
    """Removes lines that stand in an earlier document too: menus, footers, licences."""

    on: Flag = Field(False, description="Whether it is done; `true` may stand for the table.")
    characters: Positive = Field(
        ExactLines.characters,
        description="Shorter lines stay, characters without blanks at the ends.",
    )

    @model_validator(mode="before")
    @classmethod
    def _given(cls, found: object) -> object:
        """Switch the step on if its table has fields."""
        return {"on": True} | found if isinstance(found, dict) and found else found


class NearSection(Switch):
    """Removes near copies: of texts that share most runs of words, the best one stays (MinHash)."""

    words: Positive = Field(MinHash.words, description="Words in a run.")
    bands: Positive = Field(MinHash.bands, description="Keys of a document; more find more pairs.")
    rows: Positive = Field(MinHash.rows, description="Places in a key; more find fewer pairs.")
    agree: Part = Field(
        MinHash.agree, description="Least share of equal places of two texts that share a key."
    )
    seed: Seed = Field(MinHash.seed, description="Seed of the hashes.")
    engine: Literal["numpy", "rensa"] = Field(
        MinHash.engine, description="Implementation of the signatures."
    )

    def config(self) -> MinHash:
        return MinHash(**self.model_dump(exclude={"on"}))


class DedupSection(Section):
    """Removal of copies. The copy with the best score stays."""

    documents: Flag = Field(True, description="Remove documents that are equal, blanks aside.")
    lines: LinesSection = Field(LinesSection(), description="Equal lines.")
    near: NearSection = Field(NearSection(), description="Near copies.")

    def documents_config(self) -> ExactDocuments | None:
        return ExactDocuments() if self.documents else None

    def lines_config(self) -> ExactLines | None:
        return ExactLines(self.lines.characters) if self.lines.on else None

    def near_config(self) -> MinHash | None:
        return self.near.config() if self.near.on else None


class DecontaminateSection(Section):
    """Removes documents that hold texts of an evaluation."""

    against: tuple[Text, ...] = Field(
        (), description="Evaluation files, folders, globs or URLs; relative to the recipe file."
    )
    text: tuple[Text, ...] = Field(
        ("text", "question", "prompt", "answer", "response"),
        description="Fields of the evaluation files whose texts are searched for.",
    )
    words: Positive = Field(
        Overlap.words, description="A run of so many equal words makes a document contaminated."
    )
    shortest: Positive = Field(
        Overlap.shortest,
        description="Evaluation texts shorter than `words` are searched for whole from so many "
        "words on.",
    )

    def config(self) -> Overlap | None:
        return Overlap(self.words, self.shortest) if self.against else None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.shortest > self.words:
            raise InvalidFields(
                ("shortest", f"more than `words` = {self.words}; write {self.words} or less")
            )
        return self
