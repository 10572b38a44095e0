"""TOML within bounds: what is ordinary is read as Python reads it, and bombs are told at once."""

import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.run import toml
from penstock.run.clusters.load import load_cluster
from penstock.run.load import load

AT_ONCE_S = 5.0
NAMES = st.text(min_size=1, max_size=6)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)
LINES = st.sampled_from(
    ["[a]", "[[a.b]]", "a = 1", '"a.b".c = "#"', "a = '''", 'a = """x', '"""', "# 'x", "a.b.c = {",
     "x = [1.5,", "2.5]", "}", "d = 1979-05-27T07:32:00.999", 'q = "\\""', "s = ''''''", ""]
)  # fmt: skip


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_ordinary_files_are_read_as_python_reads_them(table: dict[str, Any]) -> None:
    text = "\n".join(toml.format_document(table))
    assert toml.parse(text) == tomllib.loads(text) == table


@given(st.lists(LINES | st.text(max_size=10), max_size=12))
def test_any_text_is_a_table_or_a_value_error(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        expected = tomllib.loads(text)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 (the words are Python's)
            toml.parse(text)
    else:
        assert toml.parse(text) == expected


def test_dots_in_strings_and_comments_are_no_keys() -> None:
    dots = ".".join("x" * 100)
    text = f'# {dots}\na = "{dots}"\nb = \'{dots}\'\nc = """\n{dots}"""\n'
    assert toml.parse(text)["a"] == dots
    assert toml.parse(f"{'.'.join('a' * toml.MAX_PARTS)} = 1")


@pytest.mark.parametrize("read", [load, load_cluster])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (".".join("a" * 50_000) + " = 1", "more than 16 parts"),
        ("a = " + "{a = " * 50_000, "nested too deeply"),
        ("\n".join(f"k{i} = 1" for i in range(9_000)), "mistakes; the first 100 are told"),
        ("\n".join(f"k{i} = 1" for i in range(200_000)), "keys|over 1 MiB"),
    ],
)
def test_a_huge_file_is_refused_at_once(
    tmp_path: Path, read: Callable[[Path], object], text: str, words: str
) -> None:
    (tmp_path / "bomb.toml").write_text(text)
    began = time.monotonic()
    with pytest.raises(PenstockError, match=words):
        read(tmp_path / "bomb.toml")
    assert time.monotonic() - began < AT_ONCE_S


def test_a_model_that_no_machine_can_hold_is_refused(tmp_path: Path) -> None:
    own = '[model]\nhidden = 64\nheads = 2\n{}\n[data]\ndataset = "x"\n[train]\nsteps = 1\n'
    many = "layers = 10000\nexperts = 60000\nexperts_active = 1\nexpert_ffn = 4"
    for shape, words in (
        ("layers = 1000000\nffn = 4", "model.layers = 1000000: more than 10,000"),
        (many, "model.experts = 60000: more than 1,048,576 over 10,000 layers"),
    ):
        (tmp_path / "run.toml").write_text(own.format(shape))
        with pytest.raises(PenstockError, match=words):
            load(tmp_path / "run.toml")
