"""`[[source]]`: where documents come from and how a file of them is read."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from penstock.data.format.manifest import Json
from penstock.data.recipe.fields import Delimiter, Encoding, Separator
from penstock.data.sources.options import ReadOptions
from penstock.run.schema.machine_fields import Size
from penstock.run.schema.section import InvalidFields, Section, Text
from penstock.secret import redact

_DEFAULT = ReadOptions()
_REMOTE = re.compile(r"(hf:|[a-z][a-z0-9+.-]*://)", re.I)


def is_remote(path: str) -> bool:
    """Return whether this is a URL or a name on the Hugging Face hub, and not a path."""
    return bool(_REMOTE.match(path))


def rooted(path: str, folder: Path) -> str:
    """Return a path of a recipe as an absolute one; relative ones start at `folder`."""
    return path if is_remote(path) else str(folder / Path(path).expanduser())


class SourceSection(Section):
    """A source of documents; sources are read in the order of the file."""

    path: Text = Field(
        description="A file, a folder, a glob, an `s3://`, `gs://`, `az://` or `https://` URL of "
        "an object or a prefix, `hf:org/name`, or a Hugging Face dataset saved to disk. Relative "
        "to the recipe file."
    )
    name: Text | None = Field(
        None,
        description="What this source is called in reports; the path's last part if not given.",
    )
    kind: Literal["text", "jsonl", "csv", "parquet", "arrow"] | None = Field(
        None,
        description="What the files are; by their names if not given. `jsonl`: an object a line, "
        "or one array of objects. `csv`: the first row names the columns.",
    )
    text: Text = Field(_DEFAULT.text, description="Field or column that holds the text.")
    messages: Text | None = Field(
        None, description="Field with a conversation (a list of role and content) instead of text."
    )
    prompt: Text | None = Field(
        None, description="Field with an instruction, answered by `response`, instead of text."
    )
    response: Text | None = Field(None, description="Field with the answer to `prompt`.")
    chosen: Text | None = Field(
        None,
        description="Field with the better of two answers to `prompt`, beside `rejected`, for "
        "a `train.objective` on pairs.",
    )
    rejected: Text | None = Field(None, description="Field with the worse answer to `prompt`.")
    columns: tuple[Text, ...] | None = Field(
        None,
        description="Fields carried along with each document; all the others if not given. "
        "`penstock data sample` shows one named `id`, `source`, `score`, `language`, `tokens` or "
        "like a label as `columns.NAME`.",
    )
    separator: Separator | None = Field(
        None,
        description="Between the documents of a text file; if not given, a file is one document.",
    )
    delimiter: Delimiter | None = Field(
        None,
        description="Between the cells of a CSV file, one character; if not given, a tab for "
        "`.tsv`, else the one of `,` `;` `|` and tab that the first row has most of.",
    )
    encodings: tuple[Encoding, ...] = Field(
        _DEFAULT.encodings, description="Tried in this order; a byte-order mark goes first."
    )
    most_bytes: Size = Field(
        _DEFAULT.most_bytes, description="Largest document; longer ones are kept aside and counted."
    )
    revision: Text | None = Field(
        None, description="For `hf:`: a branch, tag or commit; the main branch if not given."
    )
    split: Text | None = Field(None, description='For `hf:`: such as "train"; all if not given.')
    subset: Text | None = Field(None, description="For `hf:`: a configuration; all if not given.")

    @property
    def label(self) -> str:
        """Name of the source in reports."""
        path = redact(self.path)
        plain = re.split(r"[*?\[]", path)[0] or path
        return self.name or plain.rstrip("/").rsplit("/", 1)[-1].removeprefix("hf:") or path

    @property
    def is_chat(self) -> bool:
        return bool(self.messages or self.prompt)

    @property
    def is_pairs(self) -> bool:
        return bool(self.chosen)

    def options(self) -> ReadOptions:
        return ReadOptions(
            kind=self.kind or "",
            text=self.text,
            messages=self.messages or "",
            prompt=self.prompt or "",
            response=self.response or "",
            chosen=self.chosen or "",
            rejected=self.rejected or "",
            columns=self.columns,
            separator=self.separator,
            delimiter=self.delimiter or "",
            encodings=self.encodings,
            most_bytes=self.most_bytes,
        )

    def identity(self) -> dict[str, Json]:
        """Return what decides how its files are read. The files count by their content."""
        left_out = {"path", "revision", "split", "subset"}
        stored: dict[str, Json] = self.model_dump(mode="json", exclude=left_out, exclude_none=True)
        return stored | {"most_bytes": self.most_bytes}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        problems = []
        if self.chosen is not None or self.rejected is not None:
            problems += self._pair_problems()
        elif (self.prompt is None) != (self.response is None):
            lone, other = ("prompt", "response") if self.prompt else ("response", "prompt")
            problems.append((lone, f"needs `{other}` beside it; name that field too"))
        if self.prompt is not None and self.prompt == self.response:
            problems.append(
                ("response", "the same field as `prompt`; name the one with the answer")
            )
        if self.messages and self.prompt:
            problems.append(("prompt", "`messages` is given too; remove one of the two"))
        if self.is_chat and "text" in self.model_fields_set:
            what = "messages" if self.messages else "prompt"
            problems.append(("text", f"`{what}` is given too; remove one of the two"))
        if not self.path.startswith("hf:"):
            problems += [
                (name, 'only for "hf:org/name"; remove it')
                for name in ("revision", "split", "subset")
                if getattr(self, name)
            ]
        if problems:
            raise InvalidFields(*problems)
        return self

    def _pair_problems(self) -> list[tuple[str, str]]:
        names = ("prompt", "chosen", "rejected")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) < len(names):
            missing = [f"`{name}`" for name in names if name not in given]
            what = f"needs {' and '.join(missing)} beside it"
            return [(given[-1], f"{what}; name that field too")]
        if len({getattr(self, name) for name in names}) < len(names):
            return [("rejected", "a pair needs three different fields; name the right ones")]
        if self.response is not None:
            return [("response", "`chosen` and `rejected` are given too; remove it")]
        return []
