"""Operators one by one against paper, and all of them together against the model's FLOPs."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog.models import preset
from penstock.catalog.shapes import ModelShape
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job.constants import Constants
from penstock.plan.job.job import Adapter, Job, Software
from penstock.plan.job.layout import Layout
from penstock.plan.step import operators, step
from penstock.plan.step.operators import DeviceRates, PassSeconds
from planned_jobs import DENSE, INF, LATENT, SPARSE, job, jobs, machine

PRIOR = Constants()
# One FLOP takes one second and bytes take none: seconds are FLOPs.
COUNTING = replace(PRIOR, attention=1.0, attention_portable=1.0, matmul_fp8=1.0)
COUNTER = machine(1, matmul_flops={"bf16": 1.0}, memory_bytes_per_s=INF, tiers=machine(1).tiers)
RATES = DeviceRates(
    flops=500e12, wide_flops=500e12, attention_flops=300e12, bytes_per_s=2e12, operand_bytes=2.0,
    reuse=1.0,
)  # fmt: skip


def counted(shape: ModelShape, **changed: Any) -> Job:
    fields: dict[str, Any] = {"batch": 2, "sequence": 1024, "on": COUNTER, "imbalance": 1.0}
    layout = changed.pop("layout", Layout(microbatch=2))
    assert isinstance(layout, Layout)
    return job(layout, shape, **(fields | changed))


def parts(of: Job) -> dict[str, float]:
    """FLOPs of one rank for one microbatch, by part."""
    c = COUNTING
    r = operators.device_rates(of, c)
    found = {"matmul": 0.0, "attention": 0.0, "experts": 0.0, "elementwise": 0.0}
    for number in range(of.shape.layers):
        moe = of.shape.moe and number >= of.shape.dense_layers
        one = operators.layer_seconds(of, c, r, moe)
        for name in found:
            cost: PassSeconds = getattr(one, name)
            found[name] += cost.forward + cost.backward
    head = operators.head_seconds(of, r)
    return found | {"head": head.forward + head.backward}


def test_a_matmul_by_hand() -> None:
    """4096 × 1024 by 1024 × 2048, three products; each operand read once, each result written."""
    m, k, n = 4096, 1024, 2048
    work = 2 * m * k * n / 500e12
    x, w, y = 2 * m * k, 2 * k * n, 2 * m * n
    found = operators.matmul_seconds(RATES, m, k, n, frozen=False, accumulate=8.0)
    assert found.forward == pytest.approx(work + (x + w + y) / 2e12)
    # The gradient of x; then that of W, which is added to one of 32 bits: read and written.
    backward = 2 * work + (y + w + x) / 2e12 + (x + y + 8 * k * n) / 2e12
    assert found.backward == pytest.approx(backward)


def test_a_frozen_matmul_has_no_weight_gradient() -> None:
    m, k, n = 4096, 1024, 2048
    trained = operators.matmul_seconds(RATES, m, k, n, False, 8.0)
    frozen = operators.matmul_seconds(RATES, m, k, n, True, 8.0)
    assert frozen.forward == trained.forward
    assert frozen.backward == pytest.approx(frozen.forward)  # the same three matrices
    assert trained.backward > 2 * frozen.backward


def test_narrow_operands_move_less_and_results_stay_wide() -> None:
    m, k, n = 4096, 1024, 2048
    narrow = replace(RATES, operand_bytes=1.0, reuse=2.0)
    work = 2 * m * k * n / 500e12
    found = operators.matmul_seconds(narrow, m, k, n, True, 8.0)
    assert found.forward == pytest.approx(work + 2 * (m * k + k * n + 2 * m * n) / 2e12)
    assert found.backward == pytest.approx(work + 2 * (m * n + k * n + 2 * m * k) / 2e12)


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(1, 1e5), st.booleans())
def test_a_matmul_is_above_both_of_its_roofs(m: float, k: float, n: float, frozen: bool) -> None:
    found = operators.matmul_seconds(RATES, m, k, n, frozen, 8.0)
    for seconds, products in ((found.forward, 1), (found.backward, 1 if frozen else 2)):
        assert seconds >= products * 2 * m * k * n / RATES.flops
        assert seconds >= 2 * (k * n + m * min(k, n)) / RATES.bytes_per_s
    assert operators.matmul_seconds(RATES, 2 * m, k, n, frozen, 8.0).forward <= 2 * found.forward


@pytest.mark.parametrize("name", ["llama-1b", "llama-8b", "qwen3-8b", "smollm2-135m"])
def test_operators_add_up_to_the_flops_of_the_model(name: str) -> None:
    """6 N for the matmuls. A fused kernel does half of the square, and five products backward."""
    shape = preset(name)
    of = counted(shape)
    found, tokens = parts(of), 2 * 1024
    square = 12.0 * shape.layers * shape.heads * shape.head_width * 1024
    matmuls = shape.flops_per_token(1024) - square
    assert found["matmul"] + found["head"] == pytest.approx(matmuls * tokens, rel=0.01)
    assert found["attention"] == pytest.approx(square / 2 * tokens * 7 / 6, rel=1e-9)
    assert found["elementwise"] == found["experts"] == 0


def test_stored_scores_do_the_whole_square() -> None:
    shape = preset("llama-1b")
    found = parts(counted(shape, software=Software(flash=False)))
    square = 12.0 * shape.layers * shape.heads * shape.head_width * 1024
    assert found["attention"] == pytest.approx(square * 2 * 1024, rel=1e-9)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2", "deepseek-v3"])
def test_experts_count_as_many_as_a_token_visits(name: str) -> None:
    shape = preset(name)
    found, tokens = parts(counted(shape)), 2 * 1024
    sparse_layers = shape.layers - shape.dense_layers
    each = 3 * shape.hidden * shape.expert_ffn
    routed = 6.0 * sparse_layers * each * shape.experts_active * tokens
    assert found["experts"] == pytest.approx(routed)
    square = shape.flops_per_token(1024) - shape.flops_per_token(0)
    every = shape.flops_per_token(0) * tokens  # the router is in it, and in no operator
    assert found["matmul"] + found["head"] + routed == pytest.approx(every, rel=0.01)
    assert found["attention"] == pytest.approx(square / 2 * tokens * 7 / 6)


def test_the_fullest_expert_sets_the_pace() -> None:
    even = parts(counted(SPARSE))["experts"]
    assert parts(counted(SPARSE, imbalance=1.5))["experts"] == pytest.approx(1.5 * even)
    assert parts(counted(SPARSE, imbalance=None))["experts"] == pytest.approx(1.1 * even)


def test_latent_attention_by_hand() -> None:
    """Down to the ranks, up to the heads, and out; keys are 96 wide and values 64."""
    h, n = 1024, 16
    products = operators.attention_products(LATENT, 1)
    assert products == (
        (h, 384), (384, n * 96), (h, 128 + 32), (128, n * (64 + 64)), (n * 64, h)
    )  # fmt: skip
    # Tensor parallelism splits the heads and leaves the ranks whole.
    split = operators.attention_products(LATENT, 4)
    assert split == ((h, 384), (384, n * 24), (h, 160), (128, n * 32), (n * 16, h))
    full = operators.attention_products(replace(LATENT, q_rank=0), 1)
    assert full[0] == (h, n * 96)
    of = counted(LATENT)
    fused = parts(of)["attention"] / LATENT.layers
    assert fused == pytest.approx(3.5 * 2 * 2048 * 1024 * n * (96 + 64) / 2)


def test_key_heads_are_copied_where_there_are_more_tensor_ranks() -> None:
    assert operators.attention_products(DENSE, 2) == ((1024, 512 + 2 * 2 * 64), (512, 1024))
    assert operators.attention_products(DENSE, 8) == ((1024, 128 + 2 * 64), (128, 1024))


@pytest.mark.parametrize("shape", [DENSE, SPARSE])
def test_ranks_share_the_work_of_a_model(shape: ModelShape) -> None:
    """Two tensor, two context or (of experts) two expert ranks do half each."""
    whole = parts(counted(shape))
    on = machine(2, matmul_flops={"bf16": 1.0}, memory_bytes_per_s=INF)
    for layout in (Layout(microbatch=2, tensor=2), Layout(microbatch=2, context=2)):
        half = parts(counted(shape, layout=layout, on=on))
        for name in whole:
            assert half[name] == pytest.approx(whole[name] / 2)
    # Expert ranks have half of the experts for the tokens of two.
    spread = parts(counted(shape, layout=Layout(shard=2, microbatch=2, expert=2), on=on))
    assert spread == pytest.approx(whole)


def test_splitting_experts_splits_their_matrices_and_gathers_their_tokens() -> None:
    on = machine(2, matmul_flops={"bf16": 1.0}, memory_bytes_per_s=INF)
    layout = Layout(microbatch=2, tensor=2)
    apart = counted(SPARSE, layout=layout, on=on)
    split = counted(SPARSE, layout=replace(layout, expert_tensor=2), on=on)
    assert operators.expert_copies(split) == 2 * operators.expert_copies(apart)
    assert parts(split)["experts"] == pytest.approx(parts(apart)["experts"])


def test_low_rank_training_skips_the_gradients_of_the_weights() -> None:
    trained = parts(counted(DENSE))
    frozen = parts(counted(DENSE, adapter=Adapter()))
    for name in ("matmul", "head"):
        assert frozen[name] == pytest.approx(trained[name] * 2 / 3)
    assert frozen["attention"] == trained["attention"]


def test_a_block_without_a_gate_has_two_matrices() -> None:
    gated, plain = parts(counted(DENSE)), parts(counted(replace(DENSE, gated=False)))
    third = 6.0 * 1024 * 4096 * 2048 * DENSE.layers
    assert gated["matmul"] - plain["matmul"] == pytest.approx(third)
    sparse, two = parts(counted(SPARSE)), parts(counted(replace(SPARSE, gated=False)))
    assert two["experts"] == pytest.approx(sparse["experts"] * 2 / 3)


def rates(precision: str = "bf16", c: Constants = PRIOR, **changed: Any) -> DeviceRates:
    return operators.device_rates(job(on=machine(**changed), precision=precision), c)


def test_rates_by_precision() -> None:
    wide, fp8, fp4 = rates(), rates("fp8"), rates("fp4")
    assert (wide.flops, wide.operand_bytes) == (500e12, 2)
    assert (fp8.flops, fp8.operand_bytes, fp8.wide_flops) == (850e12, 1, 500e12)
    assert rates("mxfp8") == fp8
    assert rates("fp8-rowwise").flops == pytest.approx(0.7 * fp8.flops)
    assert (fp4.flops, fp4.operand_bytes) == (0.85 * 2000e12, 0.56)
    assert (rates("fp32").flops, rates("fp32").operand_bytes) == (50e12, 4)
    assert rates().bytes_per_s == pytest.approx(0.85 * 2e12)
    assert rates(c=replace(PRIOR, reuse=1.3)).reuse == 1.3


def test_half_precision_has_its_own_rate_where_there_is_one() -> None:
    both = {"bf16": 100e12, "fp16": 400e12}
    assert rates("fp16", matmul_flops=both).flops == 400e12
    assert rates("bf16", matmul_flops=both).flops == 100e12
    assert rates("fp16", matmul_flops={"bf16": 100e12}).flops == 100e12
    assert rates("bf16", matmul_flops={"fp32": 10e12}).flops == 10e12
    with pytest.raises(KeyError, match="paper has no matmul rate"):
        rates(matmul_flops={})


def test_the_attention_kernel_of_an_older_chip() -> None:
    """FlashAttention 2 is at home on Ampere and carried to Hopper; "chip" is at home everywhere."""

    def share(chip: str, kernel: str) -> float:
        on = of_catalog(chip, 8)
        found = operators.device_rates(job(on=on, software=Software(attention=kernel)), PRIOR)
        return found.attention_flops / on.matmul_flops["bf16"]

    home, carried = PRIOR.attention, PRIOR.attention_portable
    assert share("A100 SXM4 80GB", "second") == pytest.approx(home)
    assert share("A100 SXM4 80GB", "first") == pytest.approx(carried)
    assert share("H100 SXM5", "second") == pytest.approx(carried)
    assert share("H100 SXM5", "chip") == pytest.approx(home)


def sustained(chip: str, flops: float, tdp_w: float | None, picojoule: float = 1.0) -> float:
    on = replace(of_catalog(chip, 8), tdp_w=tdp_w)
    return operators.sustained_flops(job(on=on), flops, picojoule)


def test_power_limits_a_rate() -> None:
    """1 pJ per FLOP and 700 W are 700 TFLOP/s; a part of 7 nm gets 70 % of that."""
    assert sustained("H100 SXM5", 100e12, 700) == pytest.approx(100e12)
    assert sustained("H100 SXM5", 7000e12, 700) == pytest.approx(700e12)
    assert sustained("H100 SXM5", 7000e12, 350) == pytest.approx(350e12)
    assert sustained("H100 SXM5", 7000e12, 700, picojoule=0.5) == pytest.approx(1400e12)
    assert sustained("A100 SXM4 80GB", 7000e12, 700) == pytest.approx(490e12)
    assert sustained("H100 SXM5", 7000e12, None) == 7000e12


@given(st.floats(1e12, 1e16), st.floats(50, 2000))
def test_a_rate_is_below_the_clock_and_below_the_power(flops: float, tdp_w: float) -> None:
    found = sustained("H100 SXM5", flops, tdp_w)
    least = min(flops, tdp_w * 1e12)
    assert 0.97 * least <= found <= least * (1 + 1e-9)


def test_each_width_has_its_own_energy() -> None:
    c = replace(PRIOR, watt_16=10.0, watt_8=5.0, watt_4=2.5)
    on = of_catalog("B200 SXM", 8)
    assert on.tdp_w
    limit = on.tdp_w / 10e-12
    for precision, times in (("bf16", 1), ("fp8", 2), ("fp4", 4)):
        found = operators.device_rates(job(on=on, precision=precision), c)
        assert found.flops == pytest.approx(times * limit)
        assert found.wide_flops == pytest.approx(limit)


def test_elementwise_passes_by_hand() -> None:
    """A fused dense layer: four hidden states and what the products make, eight times, 2 bytes."""
    of = job(Layout(), software=Software(fused=True), on=machine(1))
    r = operators.device_rates(of, PRIOR)
    one = operators.layer_seconds(of, PRIOR, r, moe=False).elementwise
    inner = (1024 + 2 * 256) + 1024 + 2 * 4096
    seconds = 2048 * (4 * 1024 + inner) * 2 * PRIOR.passes_fused / r.bytes_per_s
    assert one.forward == pytest.approx(seconds / 3)
    assert one.backward == pytest.approx(2 * seconds / 3)


def elementwise(layout: Layout | None = None, shape: ModelShape = DENSE, **changed: Any) -> float:
    of = job(layout or Layout(), shape, on=machine(8), **changed)
    one = operators.layer_seconds(
        of, PRIOR, operators.device_rates(of, PRIOR), shape.moe
    ).elementwise
    return one.forward + one.backward


def test_eager_code_passes_over_more() -> None:
    """More passes, and over 32-bit rotations and the gate; older blocks have neither."""
    fused, plain = Software(fused=True), replace(DENSE, gated=False)
    ratio = PRIOR.passes_eager / PRIOR.passes_fused
    assert elementwise() > ratio * elementwise(software=fused) * 1.1
    assert elementwise(shape=plain) == pytest.approx(
        ratio * elementwise(None, plain, software=fused)
    )


def test_a_split_stream_is_passed_over_in_parts() -> None:
    whole = elementwise(Layout(tensor=4, sequence_parallel=False))
    split = elementwise(Layout(tensor=4))
    saved = 2048 * 4 * 1024 * 3 / 4 * 2 * PRIOR.passes_eager / (0.85 * 2e12)
    assert whole - split == pytest.approx(saved)


def test_narrow_matmuls_cost_casts() -> None:
    more = elementwise(precision="fp8") - elementwise()
    ends = (1024 + 1536) + (1024 + 1024) + (1024 + 8192) + (4096 + 1024)
    assert more == pytest.approx(2048 * ends * 2 * PRIOR.cast_passes / (0.85 * 2e12))
    assert elementwise(precision="fp4") == pytest.approx(elementwise(precision="fp8"))


@pytest.mark.parametrize("ways", [1, 4])
@pytest.mark.parametrize(("precision", "cast"), [("bf16", 0.0), ("fp8", PRIOR.cast_passes)])
def test_routed_tokens_are_moved_and_cast(ways: int, precision: str, cast: float) -> None:
    """A rank's experts share the copies, the fullest has a tenth more; 8 passes over all routed."""
    of = job(Layout(1, ways, expert=ways), SPARSE, on=machine(ways), precision=precision)
    r = operators.device_rates(of, PRIOR)
    copies, local = 2048 * 2, 8 // ways
    up = operators.matmul_seconds(r, copies * 1.1 / local, 512, 2048, False, 8.0)
    bare = (up + operators.matmul_seconds(r, copies * 1.1 / local, 1024, 512, False, 8.0)).times(
        local
    )
    moved = copies * (512 * 8 + (512 + 3 * 1024) * cast) * 2 / r.bytes_per_s
    found = operators.layer_seconds(of, PRIOR, r, moe=True).experts
    assert found.forward - bare.forward == pytest.approx(moved / 2)
    assert found.backward - bare.backward == pytest.approx(moved / 2)


def test_experts_have_activations_too() -> None:
    """What each of a token's experts makes of it: its gate and what is gated."""
    fused = Software(fused=True)
    more = replace(SPARSE, experts_active=4)
    per_expert = elementwise(None, more, software=fused) - elementwise(None, SPARSE, software=fused)
    width = (4 - 2) * 1024 * 2
    assert per_expert == pytest.approx(2048 * width * 2 * PRIOR.passes_fused / (0.85 * 2e12))


def test_the_head_is_wide_in_every_precision() -> None:
    """Its matmul and the loss: 12 bytes per logit fused, 24 eager."""
    for fused, moved in ((True, 12), (False, 24)):
        for precision in ("bf16", "fp8"):
            of = job(Layout(), precision=precision, software=Software(fused=fused), on=machine(1))
            r = operators.device_rates(of, PRIOR)
            bf16 = operators.device_rates(job(on=machine(1)), PRIOR)
            wide = operators.matmul_seconds(bf16, 2048, 1024, 32000, False, 8.0)
            loss = 2048 * 32000 * moved / r.bytes_per_s
            found = operators.head_seconds(of, r)
            assert found.forward == pytest.approx(wide.forward + loss / 2)
            assert found.backward == pytest.approx(wide.backward + loss / 2)


def recomputed(kind: str, **software: Any) -> tuple[float, operators.LayerSeconds]:
    of = job(Layout(recompute=kind), software=Software(**software), on=machine(1))
    one = operators.layer_seconds(of, PRIOR, operators.device_rates(of, PRIOR), moe=False)
    return operators.recompute_s(of, one), one


def test_full_recompute_is_one_more_forward() -> None:
    again, one = recomputed("full")
    assert again == one.forward
    assert one.forward == pytest.approx(
        one.matmul.forward + one.attention.forward + one.elementwise.forward
    )
    assert recomputed("none")[0] == 0


def test_selective_recompute_goes_by_the_program() -> None:
    again, one = recomputed("selective")
    assert again == pytest.approx(0.4 * one.forward)
    again, one = recomputed("selective", torch_checkpoints=False)
    assert again == one.elementwise.forward
    again, one = recomputed("selective", flash=False)
    assert again == one.attention.forward


def test_the_optimizer_moves_34_bytes_per_parameter() -> None:
    assert operators.optimizer_s(1e9, RATES, eager=False) == pytest.approx(34e9 / 2e12)
    assert operators.optimizer_s(1e9, RATES, eager=True) == pytest.approx(1.3 * 34e9 / 2e12)


@given(jobs())
@settings(max_examples=60, deadline=None)
def test_the_step_computes_what_the_operators_do(of: Job) -> None:
    """The compute parts of a step without a pipeline are its layers and its head, by microbatch."""
    of = replace(of, layout=replace(of.layout, pipeline=1, interleave=1))
    r = operators.device_rates(of, PRIOR)
    found = step.predict(of, PRIOR).parts
    layers = [
        operators.layer_seconds(of, PRIOR, r, of.shape.moe and i >= of.shape.dense_layers)
        for i in range(of.shape.layers)
    ]
    for name in ("matmul", "attention", "elementwise", "experts"):
        once = sum(getattr(one, name).forward + getattr(one, name).backward for one in layers)
        assert found[name] == pytest.approx(once * of.microbatches)
    again = sum(operators.recompute_s(of, one) for one in layers)
    assert found["recompute"] == pytest.approx(again * of.microbatches)
    head = operators.head_seconds(of, r)
    assert found["loss"] == pytest.approx((head.forward + head.backward) * of.microbatches)
