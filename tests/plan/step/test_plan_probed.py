"""A step from the readings of a probe: what it counts, how it grows, what hides behind what."""

from dataclasses import replace

import pytest

from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.plan.hardware.machine import Machine, MatmulPoint, NetworkTier
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.step.probed import all_reduce_s, exchange_s, is_probed, step_compute_s

RATE = 1e11  # FLOP/s of every product
SHAPE = ModelShape(layers=2, hidden=256, heads=4, kv_heads=2, ffn=512, vocab=4096)
PARTS = {
    "matmul", "attention", "elementwise", "loss", "shard", "optimizer", "memory", "overhead"
}  # fmt: skip


def line(per_size: float) -> tuple[tuple[float, float], ...]:
    return tuple((size, size * per_size) for size in (1e3, 1e6, 1e9))


def machine(kind: str = "cpu", floor_s: float = 0.0, faster: float = 1.0) -> Machine:
    sides = (64, 1024)
    products = tuple(
        MatmulPoint(m, k, n, 2 * m * k * n / (2 * m * k * n / RATE / faster + floor_s))
        for m in sides
        for k in sides
        for n in sides
    )
    curves = {
        f"{name}.{precision}": tuple((x, t + floor_s) for x, t in line(1e-9 / faster))
        for name in ("norm_s", "rotary_s", "gate_s", "add_s", "loss_s", "shard_s")
        for precision in ("fp32", "bf16")
    }
    heads = ((128.0, 64.0, 1e-3 / faster), (256.0, 64.0, 4e-3 / faster))
    return Machine(
        name="here",
        accelerator="Some CPU",
        kind=kind,
        per_node=2,
        nodes=1,
        memory_bytes=4 << 30,
        memory_bytes_per_s=1e10,
        peak_flops={},
        matmul_flops={"bf16": RATE},
        tiers=(NetworkTier("node", 2, 1e9, 1e-4),),
        matmuls={"bf16": products},
        curves=curves
        | {
            "attention_s.bf16": heads,
            "update_s": line(1e-9 / faster),
            "all_reduce_s": ((4096.0, 1e-4), (1e6, 1e-3), (64e6, 64e-3)),
        },
        probed={"ranks": 2.0, "op_s": 1e-6} | ({"fresh_bytes_per_s": 2e9} if kind == "cpu" else {}),
    )


def job(**changes: object) -> Job:
    usual = Job(SHAPE, 256, 8, Layout(replicate=2, microbatch=4), machine(), "bf16")
    return replace(usual, **changes)  # type: ignore[arg-type]


def test_every_part_is_there_and_matmuls_are_the_flops_of_the_shape() -> None:
    parts = step_compute_s(job())
    assert set(parts) == PARTS
    tokens, attention = 4 * 256, 12.0 * SHAPE.layers * SHAPE.hidden * 256
    norms = (2 * SHAPE.layers + 1) * SHAPE.hidden  # parameters that no product has
    flops = tokens * (SHAPE.flops_per_token(256) - attention - 6 * norms)
    assert parts["matmul"] == pytest.approx(flops / RATE)
    assert parts["attention"] == pytest.approx(SHAPE.layers * 4 * 4 * 4e-3)
    assert parts["optimizer"] == pytest.approx(SHAPE.params() * 1e-9)
    assert parts["loss"] == pytest.approx(tokens * 4096 * 1e-9)


def test_twice_the_batch_is_twice_the_passes() -> None:
    once, twice = step_compute_s(job()), step_compute_s(job(batch=16))
    for part in PARTS - {"optimizer"}:
        assert twice[part] == pytest.approx(2 * once[part]), part
    assert twice["optimizer"] == once["optimizer"]


def test_full_recompute_pays_for_the_forward_of_layers_again() -> None:
    layout = Layout(replicate=2, microbatch=4, recompute="full")
    plain, again = step_compute_s(job()), step_compute_s(job(layout=layout))
    assert again["matmul"] == pytest.approx(plain["matmul"] * 4 / 3)
    assert again["loss"] == plain["loss"]


def test_small_logits_cost_no_fresh_memory_and_large_ones_do() -> None:
    assert step_compute_s(job())["memory"] > 0
    small = Layout(replicate=2, microbatch=1)
    assert step_compute_s(job(layout=small))["memory"] == 0
    kept = replace(machine(), probed={"ranks": 2.0, "op_s": 1e-6})
    assert step_compute_s(job(machine=kept))["memory"] == 0


def test_on_cuda_a_small_step_waits_for_its_host_and_a_large_one_does_not() -> None:
    gpu = machine("cuda", floor_s=1e-4, faster=1e4)
    small = step_compute_s(job(machine=gpu))
    device = sum(small.values()) - small["overhead"]
    assert small["overhead"] > 5e-3 > device  # some sixty calls of 0.1 ms, most of them not hidden
    large = step_compute_s(job(machine=gpu, layout=Layout(2, 1, 4096), batch=8192))
    assert large["overhead"] == 0


def test_the_precision_chooses_the_products() -> None:
    with_fp8 = replace(
        machine(),
        matmuls={
            "bf16": machine().matmuls["bf16"],
            "fp8": tuple(replace(p, flops=2 * p.flops) for p in machine().matmuls["bf16"]),
        },
    )
    bf16, fp8 = (step_compute_s(job(machine=with_fp8, precision=p)) for p in ("bf16", "fp8"))
    assert fp8["matmul"] == pytest.approx(bf16["matmul"] / 2)
    assert fp8["elementwise"] == bf16["elementwise"]


def test_all_reduce_is_exact_at_readings_and_follows_the_ring() -> None:
    here = machine()
    assert all_reduce_s(here, 1e6, 2) == pytest.approx(1e-3)
    assert all_reduce_s(here, 128e6, 2) == pytest.approx(128e-3)
    assert all_reduce_s(here, 1e6, 4) == pytest.approx(1.5e-3)
    assert all_reduce_s(here, 1e6, 1) == 0


def test_the_exchange_holds_the_gradients_and_the_vote() -> None:
    gradients = all_reduce_s(machine(), 4 * SHAPE.params(), 2)
    assert exchange_s(job()) > gradients + all_reduce_s(machine(), 64, 2)
    assert exchange_s(job(layout=Layout(shard=2))) == 0


def test_a_machine_without_a_probe_or_without_a_reading_is_named() -> None:
    bare = replace(machine(), curves={})
    assert not is_probed(bare)
    with pytest.raises(PenstockError, match="not probed"):
        step_compute_s(job(machine=bare))
    partial = {k: v for k, v in machine().curves.items() if not k.startswith("gate_s")}
    with pytest.raises(PenstockError, match="no reading `gate_s`"):
        step_compute_s(job(machine=replace(machine(), curves=partial)))
