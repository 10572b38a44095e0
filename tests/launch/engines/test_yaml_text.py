"""YAML that is written without a library reads back equal by one."""

import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.launch.engines.yaml_text import to_yaml

# Halves of surrogate pairs are no text, and cannot be encoded.
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["yes", "No", "null", "~", "1e3", "0x1f", "1_000", "12:30", "2026-11-18", "- a", "a: b", "a #b",
     "", " ", "a\n", "a\nb\n", "a\n\nb\n", " a\nb\n", "a \nb\n", "a\nb", "|", "---", "a\n---\nb\n",
     "é\n…\n", "\u2028", "\x7f", "=", "<<", ".inf", "nan", "# a\nb = 1\n", "a\r\nb\n",
     "a:\n\tb\n", "\ta\nb\n", "a\t\nb\n"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_what_is_written_reads_back_equal(documents):
    assert list(yaml.safe_load_all(to_yaml(*documents))) == documents


def test_a_file_stands_as_its_own_lines():
    text = to_yaml(
        {"data": {"run.toml": '[train]\n\ntokens = "1M"\n'}, "list": [{"a": 1, "b": []}]}
    )
    assert text == (
        'data:\n  run.toml: |\n    [train]\n\n    tokens = "1M"\nlist:\n  - a: 1\n    b: []\n'
    )
