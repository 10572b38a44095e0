"""The reference of the run file, generated from the schema: Markdown and JSON schema."""

from typing import Any

from penstock.run import describe
from penstock.run.fields import RUN
from penstock.run.unsupported import UNSUPPORTED_FIELDS

_HEAD = """\
# The run file

<!-- Made by `penstock schema --markdown` from src/penstock/run/. Do not edit. -->

One TOML file describes a run. Every field is here, with its type, its default and its unit; a field
without a default may be left out. *Not yet* marks what the file can say and this version cannot do:
it is refused before anything starts.

Any field can be set on the command line too, and beats the file:
`penstock train run.toml train.tokens=2B`.

Relative paths to read (`model.from`, `model.module`, `data.dataset`, `data.chat_template`,
`evaluate.tasks_dir`, `cluster.use`, `budget.hours_csv`) start at the current folder; what is not
there is looked for beside the run file. A run keeps where it found them, so that `generate`,
`export`, `report` and going on with it work from any folder. Paths to write (`dir`, `data.cache`,
`guard.durable`) start at the current folder.

For completion and checks while you type, `penstock schema > run.schema.json` and put
`#:schema ./run.schema.json` on the first line of the run file (Even Better TOML, taplo).

## Quantities

| kind | written as |
|---|---|
| count | `524288`, `"512Ki"`, `"0.5M"`, `"1.5T"`: K M B T are decimal, Ki Mi Gi Ti binary |
| duration | `"90 s"`, `"10 min"`, `"2 h"`, `"1 day"`, `"250 ms"` |
| interval | `"250 steps"` or a duration |
| share | `"0.5%"` or `0.005` |
"""


def markdown() -> str:
    """Return the text of docs/run-file.md."""
    return describe.markdown(RUN, _HEAD, _gap_mark)


def json_schema() -> dict[str, Any]:
    """Return a JSON schema (draft 7) with the names of the file."""
    return describe.json_schema(RUN, _gap_mark)


def _gap_mark(name: str) -> str:
    return "".join(f" *Not yet: {gap.what}.*" for gap in UNSUPPORTED_FIELDS if gap.field == name)
