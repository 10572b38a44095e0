"""The reference of the recipe, generated from its schema: the text of docs/recipe.md."""

from typing import Any

from penstock.data.recipe.load import RECIPE
from penstock.run import describe

_HEAD = """\
# The recipe

<!-- Made by `penstock schema --recipe --markdown` from src/penstock/data/. Do not edit. -->

One TOML file says how a dataset is made from raw files. The shortest one that works:

```toml
[[source]]
path = "corpus/*.jsonl.zst"
```

`penstock data build web.toml` reads, repairs, labels, deduplicates, tokenizes and stores it as
`NAME@VERSION`. [data.md](data.md) shows the way from a folder of files to a training run, and
[examples/web.toml](../examples/web.toml) is a recipe with comments.

Every field is here, with its type, its default and its unit; a field without a default may be left
out. Where a section can be switched on and off, `true` or `false` may stand for it: `near = false`
under `[dedup]`. A bound takes `false` where its rule should not hold. Paths are relative to the
recipe file. Any field except those of sources can be set on the command line too, and beats the
file: `penstock data build web.toml tokens.vocab=65536`.

The version of a dataset depends on the documents and on what is said here, never on where files
lie, on the number of workers, on the machine or on the time. Writing a default out changes nothing.

For completion and checks while you type, `penstock schema --recipe > recipe.schema.json` and put
`#:schema ./recipe.schema.json` on the first line of the recipe (Even Better TOML, taplo).

## Quantities

| kind | written as |
|---|---|
| count | `32768`, `"32Ki"`, `"0.5M"`: K M B T are decimal, Ki Mi Gi Ti binary |
| size | `"128 MiB"`, `"1 GB"`, or a number of bytes |
"""


def markdown() -> str:
    return describe.markdown(RECIPE, _HEAD) + "\n"


def json_schema() -> dict[str, Any]:
    return describe.json_schema(RECIPE)
