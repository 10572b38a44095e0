"""`Recipe`: how a dataset is made from raw files. One TOML file, one section per idea.

`Recipe.identity()` is everything in the recipe that decides the content, and nothing else, so that
equal sources give an equal version on any machine and from any path.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from penstock.data.dedup.contamination import Overlap
from penstock.data.dedup.exact import ExactDocuments, ExactLines
from penstock.data.dedup.signatures import MinHash
from penstock.data.format.locate import KINDS, PACKINGS, STDLIB
from penstock.data.format.manifest import Json
from penstock.data.recipe.clean import Cleaning, CleanSection, Preset
from penstock.data.recipe.dedup import DecontaminateSection, DedupSection
from penstock.data.recipe.label import LabelSection
from penstock.data.recipe.source import SourceSection, is_remote, rooted
from penstock.data.recipe.tokens import LEAST_PACK, PLAIN, ShardsSection, TokensSection
from penstock.run.schema.run import Name, read_name
from penstock.run.schema.section import InvalidFields, Section

PAIR_PACK = 1024  # tokens of a sequence of a pair, where nobody says how many


class Recipe(Section):
    """A recipe."""

    name: Name = Field(description="Name of the dataset; the file's name if not given.")
    source: tuple[SourceSection, ...] = Field(description="Sources of documents.")
    clean: CleanSection = Field(CleanSection(), description="Cleaning steps.")
    label: LabelSection = Field(LabelSection(), description="Quality scores.")
    dedup: DedupSection = Field(DedupSection(), description="Copies.")
    decontaminate: DecontaminateSection = Field(
        DecontaminateSection(), description="Texts of evaluations."
    )
    tokens: TokensSection = Field(TokensSection(), description="Tokens.")
    shards: ShardsSection = Field(ShardsSection(), description="Shards.")

    @classmethod
    def default(
        cls,
        what: str,
        tokenizer: str | None = None,
        vocab: int | None = None,
        rows: Mapping[str, str] | None = None,
        pack: int = 0,
        chat_template: str | None = None,
    ) -> Self:
        """Return the recipe for raw files that a run names without a recipe.

        The user wants to train on all of them: text is repaired, scrubbed and deduplicated, but
        not filtered. Conversations, whose fields are `rows`, are used unchanged, all of them, and
        packed. `what` is a path (from the current folder), a URL or `hf:org/name`.
        """
        tokens: dict[str, Any] = {"tokenizer": tokenizer or "train"}
        tokens |= {"vocab": vocab} if vocab else {}
        source = SourceSection(path=rooted(what, Path.cwd()), **(rows or {}))
        table: dict[str, Any] = {
            "name": _name_of(source.label),
            "source": [{"path": source.path, **(rows or {})}],
            "clean": {"preset": "none" if source.is_chat else "code"},
            "tokens": tokens,
        }
        if source.is_chat:
            table["dedup"] = {"documents": False, "near": False}
            tokens |= {"pack": pack if pack >= LEAST_PACK else 0, "chat_template": chat_template}
        if source.is_pairs:
            tokens["pack"] = tokens["pack"] or PAIR_PACK
        return cls.model_validate(table)

    def rooted(self, folder: Path) -> Self:
        """Return the recipe with absolute paths; relative ones start at `folder`."""
        label, against = self.label, self.decontaminate.against
        place = {
            "source": tuple(
                one.model_copy(update={"path": rooted(one.path, folder)}) for one in self.source
            ),
            "clean": self.clean.model_copy(
                update={
                    "step": tuple(
                        one.model_copy(update={"module": rooted(one.module, folder)})
                        for one in self.clean.step
                    )
                }
            ),
            "label": label.model_copy(
                update={
                    "good": tuple(rooted(path, folder) for path in label.good),
                    "bad": tuple(rooted(path, folder) for path in label.bad),
                }
            ),
            "decontaminate": self.decontaminate.model_copy(
                update={"against": tuple(rooted(path, folder) for path in against)}
            ),
            "tokens": self.tokens.model_copy(update=self._rooted_tokens(folder)),
        }
        return self.model_copy(update=place)

    def _rooted_tokens(self, folder: Path) -> dict[str, str]:
        # A tokenizer may also be the name of a dataset: it is a path only if that path exists.
        given, template = self.tokens.tokenizer, self.tokens.chat_template
        is_path = given != "train" and not is_remote(given) and Path(rooted(given, folder)).exists()
        found = {"tokenizer": rooted(given, folder)} if is_path else {}
        if template and template != PLAIN:
            found["chat_template"] = rooted(template, folder)
        return found

    def to_table(self) -> dict[str, Any]:
        """Return the recipe as a table without default values; paths are absolute."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)

    def cleaning(self) -> Cleaning:
        otherwise: Preset = "code" if any(one.is_chat for one in self.source) else "web"
        return self.clean.cleaning(otherwise)

    def default_filters(self) -> tuple[str, ...]:
        """Name the filters that apply because the recipe names no preset."""
        if self.clean.preset is not None or any(one.is_chat for one in self.source):
            return ()
        cleaning = self.cleaning()
        applied = {"boilerplate": cleaning.boilerplate, "language": cleaning.language}
        applied |= vars(cleaning.filters)
        return tuple(name for name, filter_ in applied.items() if filter_ is not None)

    def identity(self) -> dict[str, Json]:
        """Return everything in the recipe that decides content. Files count by content alone."""
        dedup, overlap = self.dedup, self.decontaminate.config()
        stored = {
            "source": [one.identity() for one in self.source],
            "clean": self.cleaning().identity(),
            "label": self.label.identity(),
            "dedup": {
                "documents": _identity(dedup.documents_config()),
                "lines": _identity(dedup.lines_config()),
                "near": _identity(dedup.near_config()),
            },
            "decontaminate": _identity(overlap),
            "evaluations": list(self.decontaminate.text) if overlap else None,
            "tokens": self.tokens.identity(),
            "shards": {"bytes": self.shards.size},
        }
        return {name: _canonical(part) for name, part in stored.items()}

    @property
    def pairs(self) -> bool:
        """Whether the dataset holds pairs of answers."""
        return self.source[0].is_pairs

    @model_validator(mode="after")
    def _pairs_fit(self) -> Self:
        kinds = {one.is_pairs for one in self.source}
        if len(kinds) > 1:
            raise InvalidFields(
                ("source", "some hold pairs of answers and some do not; build two datasets")
            )
        if kinds == {True} and not self.tokens.pack:
            what = "pairs are laid out for sequences of one length, the longest prompt and answer"
            raise InvalidFields(("tokens.pack", f"{what}; write pack = 1024"))
        if kinds == {True} and self.tokens.loss != "assistant":
            raise InvalidFields(("tokens.loss", "of a pair the two answers are learned; remove it"))
        return self

    @model_validator(mode="after")
    def _name_is_free(self) -> Self:
        if self.name == STDLIB:
            raise InvalidFields(("name", f"{STDLIB} is built in; write another name"))
        return self

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if not self.source:
            raise InvalidFields(("source", 'none; write [[source]] with path = "corpus/*.jsonl"'))
        return self


def _identity(config: ExactDocuments | ExactLines | MinHash | Overlap | None) -> Json:
    return config.identity() if config else None


def _canonical(value: object) -> Json:
    """Return a value as JSON would; 3.0 becomes 3, so that the spelling does not matter."""
    if isinstance(value, dict):
        return {str(name): _canonical(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(part) for part in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    assert value is None or isinstance(value, str | int)
    return value


def _name_of(label: str) -> str:
    endings = "|".join(re.escape(ending) for ending in (*KINDS, *PACKINGS))
    stem = re.sub(f"({endings})+$", "", label)
    return read_name(re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-")[:90] or "dataset")
