"""The worked example of docs/compare.md: its files run, and the page says what the tool says."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from penstock.simulate.compare.compare import ClusterComparison

ROOT = Path(__file__).parents[2]
DRIFT = 0.15  # of days and USD: the planner is refitted more often than the page is made again


def script() -> ModuleType:
    spec = spec_from_file_location("compare_page", ROOT / "scripts" / "compare_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found() -> ClusterComparison:
    compared: ClusterComparison = script().compared()
    return compared


def page_rows() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "compare.md").read_text()
    block = text.partition("<!-- compare: 7b-1t -->")[2].partition("<!-- end -->")[0]
    rows = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| ")]
    return {row[0]: row for row in rows[2:]}


def test_the_five_choices_are_on_the_page_with_the_tool_s_numbers(
    found: ClusterComparison,
) -> None:
    rows = page_rows()
    assert found.left_out == ()
    assert rows.keys() == {one.label for one in found.outcomes}
    assert next(iter(rows)) == found.outcomes[0].label
    for one in found.outcomes:
        row = one.to_json(found.asked.start)
        days, usd = (
            float(re.sub(r"[$,]", "", cell.split(" ")[0]))
            for cell in (
                rows[one.label][1],
                rows[one.label][3],
            )
        )
        assert days == pytest.approx(row["days"]["p50"], rel=DRIFT)
        assert usd == pytest.approx(row["usd"]["p50"], rel=DRIFT)


def test_the_picture_is_beside_it() -> None:
    picture = script().PICTURE
    assert f"pictures/{picture.name}" in (ROOT / "docs" / "compare.md").read_text()
    for name in page_rows():
        assert name in picture.read_text()
