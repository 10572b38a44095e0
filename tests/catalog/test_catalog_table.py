"""The one table mechanism: cells by type, records by name, and where each value came from."""

import csv
import io
from dataclasses import dataclass, fields
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog import accelerators, models, sites
from penstock.catalog.fact import Fact
from penstock.catalog.table import Table, read_csv
from penstock.errors import PenstockError


@dataclass(frozen=True, kw_only=True)
class Thing(Fact):
    count: int
    size_w: float | None
    kind: Literal["a", "b"]
    tags: tuple[str, ...] = ()


HEADER = "name,source,count,size_w,kind"
WORD = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=8)
THINGS = st.lists(
    st.builds(
        Thing,
        name=WORD,
        source=WORD,
        note=WORD,
        aliases=st.lists(WORD, max_size=3).map(tuple),
        count=st.integers(-(10**12), 10**12),
        size_w=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        kind=st.sampled_from(["a", "b"]),
        tags=st.lists(WORD, max_size=3).map(tuple),
    ),
    max_size=5,
)


def _cell(value) -> str:
    return "" if value is None else "|".join(value) if isinstance(value, tuple) else str(value)


@given(THINGS)
@settings(max_examples=50)
def test_csv_gives_back_the_very_records(things):
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    names = [f.name for f in fields(Thing)]
    writer.writerow(names)
    writer.writerows([_cell(getattr(t, n)) for n in names] for t in things)
    assert read_csv(buffer.getvalue(), Thing, "here") == things


def test_blank_is_none_and_zero_is_zero():
    blank, zero = read_csv(f"{HEADER}\nx,s,1,,a\ny,s,1,0,a", Thing, "here")
    assert blank.size_w is None
    assert zero.size_w == 0.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{HEADER}\nx,s,one,,a", "here:2: count: expected int, found 'one'"),
        (f"{HEADER}\nx,s,1,,a\ny,s,1,,c", "here:3: kind: 'c' is none of a, b"),
        (f"{HEADER}\nx,s,,1,a", "here:2: count: expected int"),
        (f"{HEADER}\nx,s,1", "here:2: not as many cells"),
        (f"{HEADER}\nx,s,1,,a,more", "here:2: not as many cells"),
        ("name,source,cuont\nx,s,1", "unknown column 'cuont'. Did you mean 'count'?"),
        ("name,source\nx,s", "here:2: .*count"),
    ],
)
def test_a_bad_file_says_where(text, says):
    with pytest.raises(PenstockError, match=says):
        read_csv(text, Thing, "here")


def test_a_missing_file_is_a_plain_error(tmp_path):
    with pytest.raises(PenstockError, match=r"cannot read things from .*none\.csv"):
        Table.of_csv("things", Thing, tmp_path / "none.csv").all()


@given(st.sampled_from(accelerators.all() + models.all()), st.data())
@settings(max_examples=60)
def test_case_spaces_and_dashes_are_free(record, data):
    table = accelerators.TABLE if isinstance(record, accelerators.Accelerator) else models.TABLE
    key = data.draw(st.sampled_from(record.known_as()))
    other = "".join(
        data.draw(st.sampled_from(["", " ", "-", "_"])) if c in " -" else c for c in key
    )
    other = data.draw(st.sampled_from([other.upper(), other.lower(), f" {other} "]))
    assert table.find(other) is record


def test_the_strictest_reading_wins():
    # Folded they are the same word, so only the exact spelling can tell AWS from GCP.
    assert sites.find("us-east-1").provider == "aws"
    assert sites.find("us-east1").provider == "gcp"
    with pytest.raises(PenstockError, match="'us-east-1', 'us-east1'"):
        sites.find("us east 1".replace(" ", ""))


@pytest.mark.parametrize(
    ("name", "found"),
    [("H100", "H100 SXM5"), ("h200", "H200 SXM"), ("rtx4090", "RTX 4090"), ("4090", "RTX 4090")],
)
def test_short_names_lead_to_one(name, found):
    assert accelerators.find(name).name == found


def test_an_ambiguous_name_says_which_there_are():
    with pytest.raises(PenstockError) as error:
        accelerators.find("A100")
    for name in ("A100 SXM4 40GB", "A100 SXM4 80GB", "A100 PCIe 80GB"):
        assert name in str(error.value)


@pytest.mark.parametrize("name", ["H20O", "lama-8b", "", "  ", "-"])
def test_an_unknown_name_says_how_to_list(name):
    with pytest.raises(PenstockError, match="`penstock catalog models` lists all"):
        models.find(name)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(PenstockError, match="Did you mean 'llama-8b'"):
        models.find("lama-8b")
    with pytest.raises(PenstockError, match="Did you mean 'H200"):
        accelerators.find("H20O SXM")


def test_every_value_can_say_its_source():
    fact = Thing(
        name="x",
        source="a datasheet; size_w, tags = measured by us; kind = estimated, recalled",
        count=1,
        size_w=2.0,
        kind="a",
    )
    assert fact.source_of("count") == "a datasheet"
    assert fact.source_of("size_w") == fact.source_of("tags") == "measured by us"
    assert [fact.basis_of(f) for f in ("count", "size_w", "kind")] == [
        "published",
        "measured",
        "estimated",
    ]
    with pytest.raises(PenstockError, match="no field 'colour'"):
        fact.source_of("colour")


def test_basis_of_shipped_values():
    h100 = accelerators.find("H100")
    assert h100.basis_of("bf16_tflops") == "published"
    assert h100.basis_of("matmul_bf16_tflops") == "measured"
    assert h100.basis_of("price_usd_low") == "estimated"
    assert accelerators.find("V100 SXM2 16GB").basis_of("tdp_w") == "estimated"


def test_a_site_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(PenstockError, match=r"no 'us-east-9'\. Nearest are 'us-east-1', 'us-east"):
        sites.find("us-east-9")
    with pytest.raises(PenstockError, match=r"no 'qqqqqqqq'\. `penstock"):
        sites.find("qqqqqqqq")
