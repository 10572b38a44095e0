"""The locator: every key of a TOML text is found on its line."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.run import toml
from penstock.run.toml_lines import KeyLines

TEXT = """\
# a comment with [brackets] and = signs
name = "x # not a comment"
dir.inner = 'a'

[model]  # [train]
"quoted key" = 1
long = ""\"
[not.a.table]
key = 1
"\\"quotes"\""" # ends with a quote
literal = \'\'\'
also = "not"
\'\'\'
[ train . sync ]
compress = "none"
[[data.mix]]
dataset = "a"
weight = [
  1, # one
  [2, "]"],
  {deep = 3, b = 1},
  4]
[data.mix.more]
x = 1
[[data.mix]]
dataset = {a = {b = 1, "c d" = "}"}, e.f = 2}
when = 2026-01-01 10:00:00
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 2),
        (("dir", "inner"), 3),
        (("dir",), 3),
        (("model",), 5),
        (("model", "quoted key"), 6),
        (("model", "long"), 7),
        (("model", "literal"), 11),
        (("train",), 14),
        (("train", "sync", "compress"), 15),
        (("train", "sync", "absent"), 14),
        (("data", "mix", 0), 16),
        (("data", "mix", 0, "dataset"), 17),
        (("data", "mix", 0, "weight", 0), 19),
        (("data", "mix", 0, "weight", 1, 1), 20),
        (("data", "mix", 0, "weight", 2, "deep"), 21),
        (("data", "mix", 0, "weight", 3), 22),
        (("data", "mix", 0, "more", "x"), 24),
        (("data", "mix", 1), 25),
        (("data", "mix", 1, "dataset", "a", "c d"), 26),
        (("data", "mix", 1, "dataset", "e", "f"), 26),
        (("data", "mix", 1, "when"), 27),
        (("nowhere",), None),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines(path, line, newline):
    tomllib.loads(TEXT)  # the text is what it seems to be
    assert KeyLines(TEXT.replace("\n", newline)).of(path) == line


keys = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
values = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | keys,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)
tables = st.recursive(
    st.dictionaries(keys, values, max_size=4),
    lambda inner: st.dictionaries(keys, values | inner | st.lists(inner, min_size=1), max_size=4),
    max_leaves=8,
)


def leaves(table, path=()):
    for name, item in table.items():
        here = (*path, name)
        if isinstance(item, dict):
            yield from leaves(item, here)
        elif isinstance(item, list) and item and all(isinstance(part, dict) for part in item):
            for index, part in enumerate(item):
                yield from leaves(part, (*here, index))
        else:
            yield here


@given(tables)
def test_any_document_reads_back_and_every_key_is_found(table):
    text = "\n".join(toml.format_document(table))
    assert tomllib.loads(text) == table
    found = KeyLines(text)
    lines = text.split("\n")
    for path in leaves(table):
        assert lines[found.of(path) - 1].startswith(f"{toml.format_key(path[-1])} = ")
