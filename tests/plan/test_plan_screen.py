"""The screen: ten lines that read like a person wrote them."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_plans as made
from penstock.plan import screen
from penstock.plan.job.layout import Layout
from penstock.plan.search.sensitivity import LayoutOption
from penstock.style import (
    ENERGIES,
    TIMES,
    format_predicted,
    format_predicted_range,
    round_to_two_figures,
)

NAMES = [
    "fits", "layout", "speed", "MFU", "time", "cost", "energy", "effective", "bottleneck", "next",
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (2.134, "2.1"), (1.234, "1.23"), (154.4, "154"), (0.0861, "0.086"),
        (4567, "4,600"), (1234567, "1,230,000"), (10, "10"), (0.7, "0.7"), (9.97, "10"),
    ],
)  # fmt: skip
def test_numbers_are_rounded_as_a_person_would(value: float, text: str) -> None:
    assert round_to_two_figures(value) == text


@given(st.floats(1e-6, 1e12))
@settings(max_examples=100)
def test_rounding_stays_within_five_per_cent(value: float) -> None:
    assert abs(float(round_to_two_figures(value).replace(",", "")) / value - 1) <= 0.05


def test_a_span_has_one_unit() -> None:
    day = 86400.0
    assert format_predicted_range(2.1 * day, 1.9 * day, 2.4 * day, TIMES) == "1.9–2.4 days"
    assert format_predicted_range(20.1 * day, 19.4 * day, 24.8 * day, TIMES) == "19–25 days"
    assert format_predicted_range(50.0, 49.9, 50.1, TIMES) == "49.9–50.1 s"
    assert format_predicted_range(3000, 2500, 3600, ENERGIES) == "2.5–3.6 MWh"
    assert format_predicted(0.0123, TIMES) == "12.3 ms"
    assert format_predicted(90, TIMES) == "90 s"
    assert format_predicted(600, TIMES) == "10 min"


def test_ten_lines_in_order() -> None:
    lines = screen.lines(made.plan(made.job(on=made.machine(pue=1.1, gco2e_per_kwh=300.0))))
    assert [line.split()[0] for line in lines] == NAMES
    text = "\n".join(lines)
    assert re.search(
        r"fits +yes, 46\.0 of 80\.0 GiB on the fullest accelerator, 4[23] % left", text
    )
    assert re.search(r"speed +[\d.]+K tokens/s \([\d.]+K–[\d.]+K\)", text)
    assert re.search(r"MFU +\d+ % of the bf16 peak of H100 SXM5", text)
    assert re.search(r"time +[\d.]+–[\d.]+ (min|h) for 1B tokens", text)
    assert re.search(r"cost +\d+–\d+ USD: [\d.]+ USD per accelerator-hour \(catalog", text)
    assert re.search(r"energy +[\d.]+–[\d.]+ kWh, [\d.]+–[\d.]+ kg CO2e", text)
    assert re.search(r"effective +\d+ % of the time is training", text)


def test_what_is_unknown_or_wrong_is_said_in_its_line_and_how_to_tell_it_below() -> None:
    run = made.run(cluster={"use": "ours.toml"})
    job = made.job(on=made.machine(tdp_w=None, peak_flops={}, name="ours"))
    lines = screen.lines(made.plan(job, run, memory=made.memory(100)))
    text = "\n".join(lines)
    assert "fits        no: the fullest accelerator would need 100.0 of 80.0 GiB" in text
    assert "MFU         not known: no published bf16 peak" in text
    assert "cost        not known" in text
    assert "energy      not known" in text
    assert "next        it does not fit" in text
    assert "microbatch 1, on 8 × H100 SXM5 (ours)" in text
    assert [line.split()[0] for line in lines[10:]] == ["note"] * 2


def test_what_the_error_of_the_model_could_use_up_does_not_fit() -> None:
    tight = replace(made.memory(76), high=1.1)
    told = screen.lines(made.plan(memory=tight))[0]
    assert "no: the fullest accelerator would need 76.0 of 80.0 GiB" in told
    assert told.endswith("and with the model's error 83.6")
    assert "yes, 60.0 of 80.0" in screen.lines(made.plan(memory=made.memory(60)))[0]


def test_detail_shows_the_parts_the_causes_the_gains_and_the_layouts() -> None:
    tried = LayoutOption(Layout(shard=8, microbatch=16), 1e5, made.memory(120), "40 GiB too much")
    fast = LayoutOption(Layout(shard=8, microbatch=2), 9e4, made.memory(62))
    plan = made.plan(options=(fast,), rejected=(tried,))
    text = "\n".join(screen.detail(plan))
    for words in (
        *plan.memory.parts,
        "matmul",
        "compute",
        "bandwidth inside the node",
        "1 replicate × 8 shard, microbatch 2: 90K tokens/s",
        "microbatch 16: at most 100K tokens/s, 120.0 GiB: 40 GiB too much",
    ):
        assert words in text


def test_detail_names_the_stage_of_a_pipeline() -> None:
    staged = made.plan(made.job(16, Layout(shard=8, pipeline=2)))
    assert screen.detail(staged)[0] == "memory of the fullest accelerator, on stage 1 of 2"
    assert screen.detail(made.plan())[0] == "memory of the fullest accelerator"
