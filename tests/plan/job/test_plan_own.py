"""The planner's picture of our own trainer: its bytes by the layout, and measured steps of it."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

import made_plans as made
from penstock.catalog.models import preset
from penstock.model.loss import CHUNK_ELEMENTS
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job import own
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.memory import memory, state
from penstock.plan.search.choose import choose_layout
from penstock.plan.step import step
from penstock.run.schema.run import Run

FACTS = Path(__file__).parents[3] / "benchmarks" / "facts" / "steps_own.csv"
SHAPE = preset("llama-8b")


def per_param(layout: Layout, batch: int = 64, **train: str) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer for each parameter of a rank."""
    run = made.run(train={"tokens": "1B", "batch_tokens": batch * 8192, **train})
    job = choose_layout(run, made.machine(layout.ranks), None, layout).job
    held = state.state_bytes(job, 0)
    each = SHAPE.params() / (layout.shard * layout.context)
    found = (held.weights, held.gradients, held.optimizer)
    return tuple(round(size / each, 2) for size in found)  # type: ignore[return-value]


def test_whole_weights_are_narrow_and_their_full_precision_is_the_optimizer_s() -> None:
    once = Layout(microbatch=64)
    assert per_param(once) == (2, 2, 12)
    assert per_param(Layout(microbatch=1)) == (2, 4, 12)  # sums of passes are wide
    assert per_param(Layout(replicate=2, microbatch=32)) == (2, 4, 12)  # and those of replicas
    assert per_param(once, precision="fp32") == (4, 4, 8)
    assert per_param(once, weights="bf16") == (2, 2, 8)
    assert per_param(once, weights="bf16", states="bf16") == (2, 2, 4)


def test_sharded_weights_are_kept_in_full_precision() -> None:
    for layout in (Layout(shard=8), Layout(shard=4, context=2), Layout(context=8)):
        assert per_param(layout) == (4, 4, 8)
    assert per_param(Layout(shard=8), states="bf16") == (4, 4, 4)


def test_muon_has_one_moment_for_the_matrices_of_layers() -> None:
    _, _, adamw = per_param(Layout(shard=8))
    _, _, muon = per_param(Layout(shard=8), optimizer="muon")
    tables = 2 * SHAPE.embedding_params() / SHAPE.params()
    assert muon == pytest.approx(adamw - 4 * (1 - tables), abs=0.02)


def test_replicas_hold_their_sum_beside_their_gradients() -> None:
    run = made.run(train={"tokens": "1B", "batch_tokens": 64 * 8192})
    one, two = (
        choose_layout(run, made.machine(n), None, Layout(replicate=n, microbatch=1)).job
        for n in (1, 2)
    )
    wide = 4 * SHAPE.params()
    assert memory.predict(two).peak_bytes >= state.state_bytes(two, 0).gradients + 2 * wide
    assert memory.predict(two).peak_bytes > memory.predict(one).peak_bytes


def test_the_loss_never_holds_more_than_a_chunk_of_logits() -> None:
    run = made.run(train={"tokens": "1B", "batch_tokens": 64 * 8192})
    jobs = (choose_layout(run, made.machine(1), None, Layout(microbatch=n)).job for n in (2, 4))
    small, large = (memory.predict(job).parts["logits"] for job in jobs)
    assert own.CHUNK_LOGITS == CHUNK_ELEMENTS
    head = 4 * SHAPE.embedding_params()
    assert small == own.CHUNK_LOGITS * 2 + head + 2 * 8192 * SHAPE.hidden * 2
    assert large - small == 2 * 8192 * SHAPE.hidden * 2  # what goes into the head


def test_a_program_s_own_constants_replace_the_fitted_ones_for_it_alone() -> None:
    job = made.job(8)
    slow = replace(job, software=replace(job.software, measured=(("attention_portable", 0.1),)))
    assert step.predict(slow).parts["attention"] > 2 * step.predict(job).parts["attention"]
    assert step.predict(slow).parts["matmul"] == step.predict(job).parts["matmul"]
    assert not job.software.measured


def test_layers_that_wait_for_other_ranks_are_not_compiled() -> None:
    run = made.run()
    job = choose_layout(run, made.machine(8), None, Layout(shard=8)).job
    assert job.software.fused
    assert not job.with_layout(Layout(shard=4, tensor=2)).software.fused
    assert not job.with_layout(Layout(shard=4, context=2)).software.fused
    assert job.with_layout(Layout(pipeline=8)).software.fused
    off = made.run(train={"tokens": "1B", "compile": "off"})
    assert not own.training_program(off, "cuda", False, True).fused
    assert not own.training_program(run, "cuda", True, True).fused
    assert not own.training_program(run, "cpu", False, True).fused


def test_a_context_that_is_gathered_works_on_the_whole_square_under_a_mask() -> None:
    job = choose_layout(made.run(), made.machine(8), None, Layout(shard=4, context=2)).job
    ring = replace(job, software=replace(job.software, gathers_context=False))
    ours, theirs = step.predict(job).parts, step.predict(ring).parts
    assert ours["attention"] == pytest.approx(2 * theirs["attention"])
    assert ours["context"] > theirs["context"]
    mask = memory.predict(job).parts["buffers"] - memory.predict(ring).parts["buffers"]
    assert mask == 3 * 8192 * 8192 / 2


def measured() -> list[dict[str, str]]:
    with FACTS.open() as file:
        return list(csv.DictReader(file))


def planned(row: dict[str, str]) -> Job:
    size = {n: int(row[n]) for n in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
    batch, sequence = int(row["batch"]), int(row["sequence"])
    run = Run.model_validate(
        {
            "name": "measured",
            "model": size | {"context": sequence},
            "data": {"sequence": sequence},
            "train": {
                "steps": 20,
                "batch_tokens": batch * sequence,
                **{name: row[name] for name in ("precision", "weights", "states")},
            },
            "layout": {"microbatch": batch},
            "cluster": {"use": row["accelerator"], "accelerators": 1},
        }
    )
    return choose_layout(run, of_catalog(row["accelerator"], 1, 1)).job


@pytest.mark.parametrize("row", measured(), ids=lambda row: f"{row['model']} {row['precision']}")
def test_measured_steps_are_within_a_tenth_and_their_memory_within_eight_per_cent(
    row: dict[str, str],
) -> None:
    job = planned(row)
    assert 1000 * step.predict(job).step_s == pytest.approx(float(row["step_ms"]), rel=0.10)
    if row["peak_gib"]:
        held = memory.as_metric(memory.predict(job), "torch max_memory_allocated") / 2**30
        assert held == pytest.approx(float(row["peak_gib"]), rel=0.08)
