"""Advice: the bottleneck in words, sensitivities that point the right way, one thing to change."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_plans as made
from penstock.plan.advice import WORDS, bottleneck, next_change
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import STEP_PARTS, StepTime
from penstock.plan.life.life import predict
from penstock.plan.search.sensitivity import RESOURCES, LayoutOption, sensitivities


def found(job: Job | None = None, options: tuple[LayoutOption, ...] = ()) -> dict[str, float]:
    made_job = job or made.job(64, Layout(replicate=1, shard=64))

    def wall_of(other: Job, step: StepTime) -> float:
        return predict(made.run(), other, step, 10_000).wall_s

    return sensitivities(made_job, made.roofline(made_job), made.roofline, wall_of, options)


def advised(
    job: Job, options: tuple[LayoutOption, ...] = (), steps: int = 100_000, often: str = "auto"
) -> str:
    step = made.roofline(job)
    life = predict(made.run(guard={"checkpoint": often}), job, step, steps)
    memory = made.memory_model(job)
    return next_change(job, step, memory, life, found(job), made.MODELS, options)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"matmul": 6.0, "gather": 3.1, "elementwise": 0.9}, "network between nodes: 31 % of the"),
        ({"matmul": 6.4, "gather": 1.9, "elementwise": 1.7}, "matmuls: 64 % of the step is matrix"),
        ({"matmul": 5.0, "launch": 5.0}, "host: 50 % of the step is kernel launches"),
        ({"matmul": 5.0, "bubble": 4.0, "data": 1.0}, "pipeline: 40 %"),
        ({"matmul": 5.0, "data": 4.0, "bubble": 1.0}, "data: 40 % of the step is waiting"),
        ({"matmul": 2.0, "elementwise": 5.0, "optimizer": 3.0}, "memory bandwidth: 80 % of the"),
        ({"matmul": 2.0, "loss": 3.0}, "vocabulary: 60 % of the step is the output layer"),
        ({"matmul": 6.0, "tensor": 4.0}, "network inside the node: 40 %"),
        ({"matmul": 6.0, "recompute": 4.0}, "memory: 40 % of the step is forward work done twice"),
        (
            {"experts": 5.0, "matmul": 3.0, "all_to_all": 1.0},
            "matmuls: 89 % of the step, mostly ma",
        ),
    ],
)
def test_the_bottleneck_names_the_resource_the_share_and_the_part(
    parts: dict[str, float], expected: str
) -> None:
    job = made.job(64, Layout(replicate=1, shard=8, tensor=8))
    assert bottleneck(job, made.step(**parts)).startswith(expected)


def test_the_same_traffic_inside_a_node_is_said_to_be_inside() -> None:
    step = made.step(matmul=6.0, gather=4.0)
    assert bottleneck(made.job(8), step).startswith("network inside the node")
    assert bottleneck(made.job(64, Layout(shard=64)), step).startswith("network between nodes")


@given(st.dictionaries(st.sampled_from(STEP_PARTS), st.floats(1e-6, 1e3), min_size=1))
@settings(deadline=None, max_examples=60)
def test_every_step_has_a_bottleneck(parts: dict[str, float]) -> None:
    job = made.job(64, Layout(replicate=1, shard=8, tensor=8))
    text = bottleneck(job, made.step(**parts))
    assert any(words in text for _, words in WORDS.values())
    assert "%" in text


def test_every_part_has_words() -> None:
    assert set(WORDS) == set(STEP_PARTS)


def test_ten_per_cent_more_of_what_a_step_is_made_of_gives_its_share() -> None:
    job = made.job(64, Layout(replicate=1, shard=64))
    step, gains = made.roofline(job), found(job)
    for name, part in (
        ("compute", "matmul"),
        ("memory_bandwidth", "elementwise"),
        ("scale_out_bandwidth", "gather"),
        ("host", "launch"),
    ):
        share = step.parts[part] / step.step_s
        assert gains[name] == pytest.approx(100 * (1 / (1 - share * (1 - 1 / 1.1)) - 1)), name
    assert gains["scale_up_bandwidth"] > 0
    assert gains["latency"] > 0
    assert gains["storage"] > 0
    assert set(gains) == set(RESOURCES)


def test_a_probed_curve_is_quickened_with_its_resource() -> None:
    curves = {"attention_s.bf16": ((512.0, 64.0, 2.0),), "norm_s.bf16": ((9.0, 1.0),)}
    job = made.job(on=made.machine(curves=curves))

    def step_of(other: Job) -> StepTime:
        (*sizes, attention_s), (_, norm_s) = (
            other.machine.curves[name][0] for name in ("attention_s.bf16", "norm_s.bf16")
        )
        assert sizes == [512.0, 64.0]
        return made.step(attention=attention_s, elementwise=norm_s, launch=0.5)

    gains = sensitivities(job, step_of(job), step_of, lambda *_: 1.0)
    assert gains["compute"] == pytest.approx(100 * (3.5 / (3.5 - 2 + 2 / 1.1) - 1))
    assert gains["memory_bandwidth"] == pytest.approx(100 * (3.5 / (3.5 - 1 + 1 / 1.1) - 1))
    assert gains["scale_out_bandwidth"] == 0


def test_more_memory_is_worth_the_layout_it_makes_room_for() -> None:
    """By the predicted time of that layout, whatever ceiling the search gave it."""
    job = made.job()
    near = LayoutOption(Layout(shard=8, microbatch=4), 1e9, made.memory(85))
    far = LayoutOption(Layout(shard=8, microbatch=8), 1e9, made.memory(120))
    now, then = (made.roofline(j).step_s for j in (job, job.with_layout(near.layout)))
    assert found(job)["memory_capacity"] == 0
    assert found(job, (near, far))["memory_capacity"] == pytest.approx(100 * (now / then - 1))


def test_a_change_of_one_field_that_fits_is_advised_with_its_gain() -> None:
    job = made.job()
    double = job.with_layout(replace(job.layout, microbatch=2))
    gain = made.roofline(job).step_s / made.roofline(double).step_s - 1
    assert advised(job) == f"layout.microbatch = 2: {100 * gain:.0f} % more tokens/s, and it fits"


def test_recomputation_that_is_not_needed_is_told() -> None:
    text = advised(made.job(layout=Layout(shard=8, microbatch=2, recompute="full")))
    assert text.startswith('layout.recompute = "none"')


def test_a_faster_layout_of_the_search_wins() -> None:
    job = made.job()
    speed = job.tokens / made.roofline(job).step_s
    option = LayoutOption(Layout(replicate=2, shard=4, microbatch=2), 2 * speed, made.memory(60))
    full = LayoutOption(Layout(replicate=8, microbatch=2), 3 * speed, made.memory(100))
    assert advised(job, (option, full)).startswith(f"use the layout {option.layout}: 100 % more")


def test_what_does_not_fit_is_told_first_with_a_way_out() -> None:
    job = made.job(layout=Layout(shard=8, microbatch=4))  # 94 of 80 GiB
    assert not made.memory_model(job).fits
    assert advised(job).startswith("it does not fit; layout.")
    small = replace(job, machine=replace(job.machine, memory_bytes=20 * made.GIB))
    assert "more accelerators" in advised(small)


def test_a_run_that_hardly_trains_is_told_why() -> None:
    job = made.job(layout=Layout(shard=8, microbatch=2))
    assert "of this one is its only save" in advised(job, steps=3)
    assert "of the run is saving" in advised(job, often="1 step")
    failing = replace(job, machine=made.machine(node_mtbf_s=5000.0, repair_s=60.0, stall_s=600.0))
    assert "failures" in advised(failing, steps=1000)


def test_with_nothing_to_change_the_machine_is_named() -> None:
    job = replace(made.job(layout=Layout(shard=8, microbatch=2)), batch=2**20)
    assert "10 % more compute rate would give" in advised(job)
