"""`[[clean.step]]`: a filter of the user's own."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, PrivateAttr, WithJsonSchema

from penstock.data.clean.custom import Step
from penstock.errors import PenstockError
from penstock.run.schema.section import Section, text

_MODULE = re.compile(r".+\.py:[A-Za-z_]\w*")


def _module(found: object) -> str:
    if not _MODULE.fullmatch(text(found)):
        raise ValueError('not a file and a function; write "my_filter.py:keep"')
    return text(found)


Module = Annotated[
    str, PlainValidator(_module), WithJsonSchema({"title": "text", "type": "string"})
]


class StepSection(Section):
    """A function of your own, `keep(text, row)`, asked about each document that is left after the
    other steps: True or None keeps it, False drops it, a str replaces its text. Steps are asked in
    the order of the file."""

    module: Module = Field(
        description='File and function, "my_filter.py:keep"; relative to the recipe file. The '
        "version of the dataset depends on the file's content."
    )
    on_error: Literal["stop", "drop"] = Field(
        "stop",
        description="What to do when the function raises an error: end the build, or drop the "
        "document.",
    )
    _code: bytes | None = PrivateAttr(None)  # read once: key, work and version are of one text

    @property
    def function(self) -> str:
        return self.module.rpartition(":")[2]

    def step(self) -> Step:
        path = self.module.rpartition(":")[0]
        if self._code is None:
            try:
                self._code = Path(path).read_bytes()
            except OSError as error:
                raise PenstockError(
                    f'clean.step: module = "{self.module}": the file cannot be read: '
                    f"{error.strerror}. Write a Python file and a function in it, such as "
                    '"my_filter.py:keep"; its path is relative to the recipe.'
                ) from None
        return Step(path, self.function, self._code, self.on_error)
