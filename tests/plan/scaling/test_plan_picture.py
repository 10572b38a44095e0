"""The picture of a sweep: valid, self-contained, and no word on top of another."""

import re
from functools import cache
from itertools import combinations
from xml.etree import ElementTree

import pytest

import made_plans as made
from penstock.errors import PenstockError
from penstock.plan.hardware.scale import counts
from penstock.plan.scaling.picture import CHARACTER, HEIGHT, WIDTH, svg
from penstock.plan.scaling.sweep import ScalePoint, ScalingSweep, sweep

SVG = "{http://www.w3.org/2000/svg}"


@cache
def swept(text: str = "1..1024", name: str = "a <b> & 'c'") -> ScalingSweep:
    run = made.run(train={"tokens": "100B", "batch_tokens": 64 * 8192})
    found = sweep(run, made.machine(8), counts(text))
    return ScalingSweep(name, found.accelerator, found.points, found.perfect_each)


def tree(found: ScalingSweep) -> ElementTree.Element:
    return ElementTree.fromstring(svg(found))


def words(found: ScalingSweep) -> list[str]:
    return [text.text or "" for text in tree(found).iter(f"{SVG}text")]


def test_it_is_xml_and_names_are_escaped() -> None:
    root = tree(swept())
    assert root.attrib["viewBox"] == f"0 0 {WIDTH} {HEIGHT}" == "0 0 900 640"
    assert any("a <b> & 'c' on H100" in text for text in words(swept()))


def test_it_needs_nothing_from_outside() -> None:
    text = svg(swept())
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"<script|<image|href=|url\(|@import|onload", text)
    assert text.count("http") == 1  # the namespace


def test_ends_takeovers_and_causes_are_named() -> None:
    found = words(swept())
    assert {"1,024", "tokens per second", "accelerators", "memory: nothing fits"} <= set(found)
    assert {turn.limit for turn in swept().takeovers} <= set(found)
    assert "matmuls" in words(swept("64"))  # the first limit, which takes over from none
    last = swept().points[-1]
    assert f"communicate {100 * last.shares['communicate']:.0f} %" in found
    assert not any(text.startswith("unexplained") for text in found)


@pytest.mark.parametrize("text", ["1..1024", "8..131072", "64", "8,16,24,32,40,48,56,64"])
def test_no_word_lies_on_another_and_none_leaves_the_sheet(text: str) -> None:
    boxes = []
    for node in tree(swept(text)).iter(f"{SVG}text"):
        if "transform" in node.attrib:
            continue
        x, y, width = float(node.attrib["x"]), float(node.attrib["y"]), 0.0
        bold = CHARACTER if node.attrib["class"] == "head" else 0.87 * CHARACTER
        width = len(node.text or "") * bold * (1.4 if node.attrib["class"] == "title" else 1.0)
        x -= {"start": 0.0, "middle": width / 2, "end": width}[node.attrib["text-anchor"]]
        assert x >= 0
        assert x + width <= WIDTH
        assert 12 <= y <= HEIGHT - 4
        boxes.append((x, y, width, node.text))
    for (x1, y1, w1, one), (x2, y2, w2, other) in combinations(boxes, 2):
        assert abs(y1 - y2) >= 12 or x1 + w1 <= x2 or x2 + w2 <= x1, f"{one!r} on {other!r}"


def test_the_layers_fill_the_panel_at_every_count() -> None:
    layers = [
        p for p in tree(swept()).iter(f"{SVG}polygon") if p.attrib["class"].startswith("layer ")
    ]
    bottom = layers[0].attrib["points"].split()[-1]
    top = layers[-1].attrib["points"].split()[0]
    assert bottom.endswith(",576.0")
    assert float(top.split(",")[1]) == pytest.approx(364.0, abs=0.6)


def test_without_any_plan_there_is_no_picture() -> None:
    empty = ScalingSweep(
        "x", "H100", (ScalePoint(8, 1, "memory: nothing fits", reason="by 3 GiB"),), 1.0
    )
    with pytest.raises(PenstockError, match="by 3 GiB"):
        svg(empty)
