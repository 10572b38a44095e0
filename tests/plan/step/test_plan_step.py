"""The time of a step: every part by hand where paper can do it, and what must hold for any job."""

from dataclasses import replace
from math import isfinite, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan.hardware import network
from penstock.plan.hardware.machine import Machine, NetworkTier
from penstock.plan.hardware.network import Dispatch
from penstock.plan.job.constants import Constants
from penstock.plan.job.job import Adapter, Job, Software
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import STEP_CAUSES, STEP_PARTS, StepTime
from penstock.plan.job.partition import stage_contents
from penstock.plan.step import operators, step
from penstock.plan.step.step import StageWork, slowest_stages
from planned_jobs import DENSE, LATENT, SPARSE, job, jobs, machine, perfect

PRIOR = Constants()
# Nothing hides behind anything and nobody jitters: collectives show as they are.
BARE = replace(PRIOR, hidden_share=0.0, jitter=0.0)
GRAPHS = Software(graphs=True)  # no launch cost
MICRO = ("matmul", "attention", "elementwise", "experts", "recompute", "tensor", "context",
         "all-to-all", "gather", "launch")  # fmt: skip
# Parameters of a layer of DENSE: q and out, k and v, three matrices, two norms.
LAYER = 2 * 1024 * 1024 + 2 * 1024 * 256 + 3 * 1024 * 4096 + 2 * 1024
NORMS = 2 * 1024  # of them, what tensor parallel leaves whole
TABLE = 32000 * 1024
MODEL = 8 * LAYER + 2 * TABLE + 1024  # with the last norm


def timed(of: Job, c: Constants = BARE) -> StepTime:
    return step.predict(of, c)


def congested(count: int = 16) -> Machine:
    """A network so slow that nothing hides all of it."""
    on = machine(count)
    return replace(on, tiers=tuple(replace(t, bytes_per_s=t.bytes_per_s / 50) for t in on.tiers))


def gather(on: Machine, ways: int, stride: int, size_bytes: float) -> float:
    return network.gather_s(network.group(on, ways, stride), size_bytes)


@given(jobs(), st.sampled_from([None, PRIOR]))
@settings(max_examples=200, deadline=None)
def test_every_second_is_in_one_part_and_in_one_cause(of: Job, c: Constants | None) -> None:
    found = step.predict(of, c)
    assert found.step_s > 0
    assert set(found.parts) <= set(STEP_PARTS)
    assert set(found.causes) == set(STEP_CAUSES)
    assert all(isfinite(s) and s >= 0 for s in (*found.parts.values(), *found.causes.values()))
    assert sum(found.parts.values()) == pytest.approx(found.step_s)
    assert sum(found.causes.values()) == pytest.approx(found.step_s)
    assert found.tokens == of.batch * of.sequence
    assert found.model_flops == (
        of.shape.flops_per_token(of.sequence, bool(of.adapter)) * found.tokens
    )


def test_causes_by_hand() -> None:
    of = job(Layout(2, 2, tensor=2, pipeline=2, context=2), on=machine(32, read_bytes_per_s=1e4))
    found = step.predict(of, PRIOR)
    p, causes = found.parts, found.causes
    assert causes["bubble"] == p["bubble"] > 0
    assert causes["peer_wait"] == p["jitter"] > 0
    assert causes["data_wait"] == p["data"] > 0
    collectives = ("tensor", "context", "gather", "reduce", "pipeline")
    assert min(p[name] for name in collectives) > 0
    assert causes["communicate"] == pytest.approx(sum(p[name] for name in collectives))


def test_the_fitted_constants_are_the_default() -> None:
    of = job()
    assert step.predict(of) == step.predict(of, step.fitted())
    assert step.predict(of).step_s != step.predict(of, PRIOR).step_s


# Pipelines.


@pytest.mark.parametrize(
    ("layers", "pipeline", "pieces", "middle", "last"),
    [
        (8, 4, 1, 2, 2),
        (8, 4, 2, 2, 2),
        (10, 4, 1, 3, 2),  # uneven: the last stage has one less
        (16, 4, 2, 4, 4),
        (18, 4, 2, 5, 4),  # pieces of 2, two of them 3: on stages 1 and 2
        (5, 4, 1, 2, 1),
    ],
)
def test_layers_of_a_stage(layers: int, pipeline: int, pieces: int, middle: int, last: int) -> None:
    kinds = slowest_stages(replace(DENSE, layers=layers), pipeline, pieces)
    assert max(kind.layers for kind in kinds if not kind.head) == middle
    assert [kind.layers for kind in kinds if kind.head] == [last]


def test_one_stage_has_every_layer_and_the_head() -> None:
    assert slowest_stages(DENSE, 1, 1) == (StageWork(0, 8, 0, 2, True),)
    assert slowest_stages(SPARSE, 1, 1) == (StageWork(0, 1, 7, 2, True),)


def test_the_slowest_stage_may_be_the_one_without_dense_layers() -> None:
    assert slowest_stages(SPARSE, 4, 1) == (
        StageWork(0, 1, 1, 1, False),  # it has the embedding
        StageWork(1, 0, 2, 0, False),
        StageWork(3, 0, 2, 1, True),
    )


@given(jobs())
def test_every_stage_is_covered_by_one_that_is_looked_at(of: Job) -> None:
    lay = of.layout
    kinds = slowest_stages(of.shape, lay.pipeline, lay.interleave)
    for stage in range(lay.pipeline):
        held = stage_contents(of.shape, lay.pipeline, lay.interleave, stage)
        work = StageWork(stage, held.dense, held.sparse, held.tables, held.last)
        assert any(kind.covers(work) for kind in kinds)


@pytest.mark.parametrize("pieces", [1, 2, 4])
@pytest.mark.parametrize("pipeline", [2, 4])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_bubble(pieces: int, pipeline: int, rounds: int, recompute: str) -> None:
    """(p − 1) / (v m) of the work of a stage without a head."""
    shape = replace(DENSE, layers=16)
    lay = Layout(2, 2, tensor=2, pipeline=pipeline, interleave=pieces, recompute=recompute)
    m = rounds * pipeline
    p = timed(job(lay, shape, batch=4 * m, software=GRAPHS)).parts
    work = sum(p[name] for name in MICRO)
    assert p["bubble"] == pytest.approx((pipeline - 1) / (pieces * m) * work)
    third = timed(job(replace(lay, zero_bubble=True), shape, batch=4 * m, software=GRAPHS)).parts
    assert third["bubble"] == pytest.approx(p["bubble"] / 3)
    assert {**third, "bubble": 0} == {**p, "bubble": 0}


def test_the_slowest_stage_sets_the_pace_of_all_microbatches() -> None:
    """With a large vocabulary the last stage, with a small one a longer stage in the middle."""
    shape = replace(DENSE, layers=10)
    lay = Layout(pipeline=4)
    for vocab, layers in ((64, 3), (1_000_000, 2)):
        sized = replace(shape, vocab=vocab)
        of = job(lay, sized, batch=4, software=GRAPHS, on=machine(8))
        one = operators.layer_seconds(of, BARE, operators.device_rates(of, BARE), moe=False)
        found = timed(of).parts
        assert found["matmul"] == pytest.approx(
            4 * layers * (one.matmul.forward + one.matmul.backward)
        )
        assert ("loss" in found) == (layers == 2)
        work = 3 * (one.forward + one.backward)  # the stages that wait are the usual ones
        assert found["bubble"] == pytest.approx(3 * work)


def test_sending_between_stages_by_hand() -> None:
    """Activations forward and gradients back; 4 microbatches, and 3 more to fill and drain."""
    lay = Layout(4, tensor=2, pipeline=4, microbatch=2)
    of = job(lay, batch=32, on=machine(32))
    size = 2 * 2048 * 1024 * 2 / 2  # split by sequence parallelism
    once = 2 * (size / 40e9 + 10e-6)  # stages are 8 ranks apart: between nodes
    assert timed(of).parts["pipeline"] == pytest.approx(once * (4 + 3))
    whole = of.with_layout(replace(lay, sequence_parallel=False))
    twice = 2 * (2 * size / 40e9 + 10e-6)
    assert timed(whole).parts["pipeline"] == pytest.approx(twice * (4 + 3))
    pieces = of.with_layout(replace(lay, interleave=2))
    assert timed(pieces).parts["pipeline"] == pytest.approx(2 * once * (4 + 3))
    behind = replace(of, software=Software(overlap_tensor=True))
    assert timed(behind).parts["pipeline"] == pytest.approx(once * (4 * 0.35 + 3))


# Collectives.


def test_tensor_parallel_by_hand() -> None:
    """Per layer and microbatch four gathers or scatters each way; full recompute does 4 more."""
    lay = Layout(1, tensor=4, microbatch=2)
    of = job(lay, batch=6, on=machine(8))
    once = gather(of.machine, 4, 1, 2 * 2048 * 1024 * 2)
    assert timed(of).parts["tensor"] == pytest.approx(8 * once * 8 * 3)
    again = of.with_layout(replace(lay, recompute="full"))
    assert timed(again).parts["tensor"] == pytest.approx(12 * once * 8 * 3)
    behind = replace(of, software=Software(overlap_tensor=True))
    assert timed(behind).parts["tensor"] == pytest.approx(0.35 * 8 * once * 8 * 3)


def test_context_parallel_by_hand() -> None:
    """Keys and values of the whole sequence, once forward and twice backward."""
    of = job(Layout(1, context=4, microbatch=2), batch=2, on=machine(8))
    once = gather(of.machine, 4, 1, 2 * 2048 * (2 * 4 * 64) * 2)
    assert timed(of).parts["context"] == pytest.approx(3 * once * 8)
    # Two tensor ranks have half of the key heads each, eight have one each.
    for tensor, heads in ((2, 2), (8, 1)):
        split = job(Layout(1, context=4, tensor=tensor), batch=1, on=machine(64))
        once = gather(split.machine, 4, tensor, 2048 * (2 * heads * 64) * 2)
        assert timed(split).parts["context"] == pytest.approx(3 * once * 8)


def test_context_parallel_of_latent_attention_sends_what_the_heads_get() -> None:
    of = job(Layout(1, context=4, tensor=2), LATENT, batch=1, on=machine(8))
    once = gather(of.machine, 4, 2, 2048 * 8 * (32 + 64 + 64) * 2)
    assert timed(of).parts["context"] == pytest.approx(3 * once * LATENT.layers)


def test_context_parallel_hides_behind_attention() -> None:
    """What is longer than the hidden share of it shows, and the hidden part slows it."""
    c = replace(BARE, hidden_share=0.5, contention=0.1)
    of = job(Layout(1, context=4), batch=1, on=machine(8))
    once = gather(of.machine, 4, 1, 2048 * (2 * 4 * 64) * 2)
    attention = operators.layer_seconds(of, c, operators.device_rates(of, c), moe=False).attention
    assert once > attention.forward / 2  # so that some shows
    both = once - 0.9 * 0.5 * attention.forward + 2 * once - 0.9 * 0.5 * attention.backward
    assert timed(of, c).parts["context"] == pytest.approx(8 * both)
    slow = replace(of, machine=machine(8, matmul_flops={"bf16": 1e12}))
    assert timed(slow, c).parts["context"] == pytest.approx(8 * 0.1 * 3 * once)


def test_all_to_all_by_hand() -> None:
    """To the experts and back, both ways; the fullest has a tenth more than its part."""
    lay = Layout(1, 16, microbatch=2, expert=8)
    of = job(lay, SPARSE, batch=64)
    size = 2 * 2048 * 2 * 512 * 2 * 1.1
    g = network.group(of.machine, 8)
    once = network.all_to_all_s(g, size, PRIOR.all_to_all)
    assert timed(of).parts["all-to-all"] == pytest.approx(4 * once * 7 * 2)
    again = of.with_layout(replace(lay, recompute="full"))
    assert timed(again).parts["all-to-all"] == pytest.approx(6 * once * 7 * 2)
    behind = replace(of, software=Software(overlap_experts=True))
    assert timed(behind).parts["all-to-all"] == pytest.approx(0.35 * 4 * once * 7 * 2)
    alone = of.with_layout(replace(lay, expert=1))
    assert timed(alone).parts["all-to-all"] == 0


def test_all_to_all_between_nodes_sends_a_token_once_unless_the_dispatcher_cannot() -> None:
    wide = replace(SPARSE, experts=16, experts_active=4)
    of = job(Layout(1, 16, expert=16), wide, batch=16)
    size = 2048 * 4 * 512 * 2 * 1.1
    g = network.group(of.machine, 16)
    for dedupes, copies in ((True, 4), (False, 1)):
        found = timed(replace(of, software=Software(dedupes=dedupes))).parts["all-to-all"]
        once = network.all_to_all_s(g, size, PRIOR.all_to_all, Dispatch(copies))
        assert found == pytest.approx(4 * once * 7)


def test_split_experts_are_a_stride_apart() -> None:
    of = job(Layout(1, 4, tensor=4, expert=4, expert_tensor=4), SPARSE, batch=4)
    size = operators.expert_copies(of) * 512 * 2 * 1.1
    once = network.all_to_all_s(
        network.group(of.machine, 4, 4), size, PRIOR.all_to_all, Dispatch(2)
    )
    assert timed(of).parts["all-to-all"] == pytest.approx(4 * once * 7)


# Sharded weights and gradients.


def test_sharded_weights_by_hand() -> None:
    """Gathered in 16 bits before forward and before backward, and gradients scattered in 32."""
    of = job(Layout(1, 16), batch=48)  # three microbatches
    weights, grads = (gather(of.machine, 16, 1, LAYER * width) for width in (2, 4))
    parts = timed(of).parts
    assert parts["gather"] == pytest.approx(3 * 8 * (2 * weights + grads))
    assert parts["reduce"] == 0  # layer by layer is all there is
    kept = timed(of.with_layout(replace(of.layout, zero=2))).parts
    assert kept["gather"] == pytest.approx(8 * weights + 3 * 8 * grads)
    narrow = timed(replace(of, software=Software(reduce_bytes=2.0))).parts
    assert narrow["gather"] == pytest.approx(3 * 8 * 3 * weights)


def test_a_sharded_optimizer_reduces_once_a_step() -> None:
    of = job(Layout(1, 16, zero=1), batch=48)
    params = MODEL
    weights, grads = (gather(of.machine, 16, 1, params * width) for width in (2, 4))
    assert timed(of).parts["gather"] == 0
    assert timed(of).parts["reduce"] == pytest.approx(weights + grads)


def test_replicas_of_shards_reduce_their_parts_between_nodes() -> None:
    of = job(Layout(2, 8), batch=48)
    weights, grads = (gather(of.machine, 8, 1, LAYER * width) for width in (2, 4))
    parts = timed(of).parts
    assert parts["gather"] == pytest.approx(3 * 8 * (2 * weights + grads))
    part = MODEL * 4 / 8
    assert parts["reduce"] == pytest.approx(2 * gather(of.machine, 2, 8, part))


def test_tensor_and_pipeline_parts_are_what_is_gathered_and_reduced() -> None:
    of = job(Layout(1, 4, tensor=2, pipeline=2), batch=4, on=machine(16))
    layer = (LAYER + NORMS) / 2
    weights, grads = (gather(of.machine, 4, 2, layer * width) for width in (2, 4))
    assert timed(of).parts["gather"] == pytest.approx(4 * (2 * weights + grads))
    plain = of.with_layout(replace(of.layout, zero=1))
    params = 4 * layer + TABLE / 2 + 1024  # the last stage, with the last norm
    weights, grads = (gather(of.machine, 4, 2, params * width) for width in (2, 4))
    assert timed(plain).parts["reduce"] == pytest.approx(weights + grads)


def test_context_ranks_share_the_weights() -> None:
    of = job(Layout(1, 2, context=4), batch=2, on=machine(8))
    weights, grads = (gather(of.machine, 8, 1, LAYER * width) for width in (2, 4))
    assert timed(of).parts["gather"] == pytest.approx(8 * (2 * weights + grads))


EXPERT = 3 * 512 * 1024
COMMON = 4 * 512 * 512 + 2 * 512 + EXPERT + 512 * 8  # attention, norms, shared expert, router
DENSE_LAYER = 4 * 512 * 512 + 2 * 512 + 3 * 512 * 2048


def test_routed_experts_are_gathered_where_they_are_copied() -> None:
    """8 experts over 8 of 16 ranks: two ranks hold the same one, a node apart."""
    of = job(Layout(1, 16, expert=8), SPARSE, batch=16)
    on = of.machine

    def both(params: float, ways: int, stride: int) -> float:
        return 2 * gather(on, ways, stride, params * 2) + gather(on, ways, stride, params * 4)

    expected = both(DENSE_LAYER, 16, 1) + 7 * (both(COMMON, 16, 1) + both(EXPERT, 2, 8))
    assert timed(of).parts["gather"] == pytest.approx(expected)
    once = of.with_layout(replace(of.layout, zero=1))
    common = DENSE_LAYER + 7 * COMMON + 2 * 32000 * 512 + 512
    reduce = sum(
        gather(on, ways, stride, params * width)
        for params, ways, stride in ((common, 16, 1), (7 * EXPERT, 2, 8))
        for width in (2, 4)
    )
    assert timed(once).parts["reduce"] == pytest.approx(reduce)


def test_split_experts_are_gathered_among_the_ranks_of_the_same_part() -> None:
    """2 × 2 of 16 ranks hold all experts: four hold the same part, four ranks apart."""
    of = job(Layout(1, 4, tensor=4, expert=2, expert_tensor=2), SPARSE, batch=4)
    on, part = of.machine, 8 * EXPERT / 4

    def both(params: float, ways: int, stride: int) -> float:
        return 2 * gather(on, ways, stride, params * 2) + gather(on, ways, stride, params * 4)

    whole = 2 * 512  # norms of a layer; and routers, which tensor parallel leaves whole too
    dense = (DENSE_LAYER - whole) / 4 + whole
    sparse = (COMMON - whole - 512 * 8) / 4 + whole + 512 * 8
    common = both(dense, 4, 4) + 7 * both(sparse, 4, 4)
    assert timed(of).parts["gather"] == pytest.approx(common + 7 * both(part, 4, 4))
    once = of.with_layout(replace(of.layout, zero=1))
    shared = dense + 7 * sparse + 2 * 32000 * 512 / 4 + 512
    reduce = sum(gather(on, 4, 4, params * w) for params in (shared, 7 * part) for w in (2, 4))
    assert timed(once).parts["reduce"] == pytest.approx(reduce)


def test_gathers_hide_behind_the_layer_they_are_for() -> None:
    c = replace(BARE, hidden_share=0.5, contention=0.1)
    of = job(Layout(1, 16), batch=16, on=congested())
    one = operators.layer_seconds(of, c, operators.device_rates(of, c), moe=False)
    weights, grads = (gather(of.machine, 16, 1, LAYER * width) for width in (2, 4))
    assert weights > one.forward / 2
    assert weights + grads > one.backward / 2
    shown = weights - 0.45 * one.forward + weights + grads - 0.45 * one.backward
    assert timed(of, c).parts["gather"] == pytest.approx(8 * shown)
    # Work done again is more to hide behind.
    again = of.with_layout(replace(of.layout, recompute="full"))
    assert timed(again, c).parts["gather"] == pytest.approx(8 * (shown - 0.45 * one.forward))


def test_a_reduction_hides_behind_the_last_backward_and_the_next_forward() -> None:
    c = replace(BARE, hidden_share=0.5, contention=0.1)
    of = job(Layout(16), batch=32, software=GRAPHS, on=congested())
    parts = timed(of, c).parts
    params = MODEL
    weights, grads = (gather(of.machine, 16, 1, params * width) for width in (2, 4))
    compute = sum(parts[name] for name in ("matmul", "attention", "elementwise", "loss")) / 2
    assert grads > compute / 3
    assert weights > compute / 6
    assert parts["reduce"] == pytest.approx(weights + grads - 0.45 * compute)
    open_ = timed(replace(of, software=Software(graphs=True, overlap_data=False)), c).parts
    assert open_["reduce"] == pytest.approx(weights + grads)


def test_interleaved_pieces_reduce_while_the_others_work() -> None:
    c = replace(BARE, hidden_share=0.5, contention=0.1)
    shape = replace(DENSE, layers=16)

    def hidden(pieces: int, microbatches: int) -> float:
        lay = Layout(8, pipeline=2, interleave=pieces)
        of = job(lay, shape, batch=8 * microbatches, software=GRAPHS, on=congested())
        off = replace(of, software=Software(graphs=True, overlap_data=False))
        p = timed(of, c).parts
        compute = sum(p[name] for name in ("matmul", "attention", "elementwise", "loss"))
        return (timed(off, c).parts["reduce"] - p["reduce"]) / compute * microbatches

    assert hidden(1, 4) == pytest.approx(0.45)
    assert hidden(2, 4) == pytest.approx(0.9)  # the other of two stages' microbatches as well
    assert hidden(2, 1) == pytest.approx(0.45)


def test_low_rank_training_has_next_to_no_gradients() -> None:
    of = job(Layout(2, 8), adapter=Adapter())
    assert timed(of).parts["reduce"] == timed(of).parts["optimizer"] == 0


def test_the_optimizer_by_hand() -> None:
    """34 bytes per parameter that a rank keeps, a third more in eager torch."""
    params, rate = MODEL, 0.85 * 2e12
    split = (MODEL + 8 * NORMS + 1024) / 2  # norms are whole on both
    for layout, kept in (
        (Layout(16), params),
        (Layout(1, 16), params / 16),
        (Layout(2, 8), params / 8),
        (Layout(1, 8, tensor=2), split / 8),
        (Layout(1, 8, context=2), params / 16),
    ):
        found = timed(job(layout)).parts["optimizer"]
        assert found == pytest.approx(kept * 34 * 1.3 / rate)
    fused = timed(job(Layout(16), software=Software(fused=True))).parts["optimizer"]
    assert fused == pytest.approx(params * 34 / rate)
    of = job(Layout(2, 8, expert=4), SPARSE)
    common = DENSE_LAYER + 7 * COMMON + 2 * 32000 * 512 + 512
    kept = common / 8 + 7 * 8 * EXPERT / 4 / 2  # two of a replica's eight hold the same experts
    assert timed(of).parts["optimizer"] == pytest.approx(kept * 34 * 1.3 / rate)


# The host, the data and the others.


def test_the_host_by_hand() -> None:
    """Seconds per layer, more with experts, a third more with recompute; the larger of two wins."""
    fast = perfect(1, matmul_flops={"bf16": 1e30})
    of = job(Layout(), batch=3, on=fast)
    layer, experts, dropless = PRIOR.host_layer_s, PRIOR.host_expert_s, PRIOR.host_dropless_s
    assert timed(of).step_s == pytest.approx(3 * 8 * layer)
    again = of.with_layout(Layout(recompute="full"))
    assert timed(again).step_s == pytest.approx(3 * 8 * layer * 4 / 3)
    sparse = replace(of, shape=SPARSE)
    assert timed(sparse).step_s == pytest.approx(3 * (8 * layer + 7 * (experts + dropless)))
    drops = replace(sparse, software=Software(dropless=False))
    assert timed(drops).step_s == pytest.approx(3 * (8 * layer + 7 * experts))
    assert timed(replace(of, software=GRAPHS)).step_s == pytest.approx(0, abs=1e-9)
    assert timed(replace(of, machine=replace(fast, kind="cpu"))).step_s == pytest.approx(
        0, abs=1e-9
    )


def test_the_host_shows_only_where_it_is_the_slower() -> None:
    of = job(Layout(), batch=3, on=perfect(1))
    p = timed(of).parts
    device = sum(p[name] for name in MICRO if name != "launch") + p["loss"]
    host = 3 * 8 * PRIOR.host_layer_s
    assert p["launch"] == pytest.approx((device**4 + host**4) ** 0.25 - device)


def test_samples_that_are_read_too_slowly() -> None:
    """Two nodes read all blocks, of 2 bytes a token, and a 16th more; steps are not shorter."""
    tokens = 64 * 2048
    slow = job(Layout(1, 16), on=machine(16, read_bytes_per_s=1e4))
    assert slow.shape.vocab <= 1 << 16
    assert timed(slow).step_s == pytest.approx(tokens * 2 * 17 / 16 / 1e4)
    free = timed(slow).step_s - timed(slow).parts["data"]
    assert timed(job(Layout(1, 16))).step_s == pytest.approx(free)
    assert timed(job(Layout(1, 16), on=machine(16, read_bytes_per_s=1e9))).parts["data"] == 0


def test_what_a_link_can_feed() -> None:
    # 2 or 4 bytes a token; of 17 blocks that are read, one is read for its first token.
    assert step.data_tokens_per_s(125e6, vocab=32_000, sequence=2048) == pytest.approx(
        62.5e6 * 16 / 17
    )
    assert step.data_tokens_per_s(125e6, vocab=128_256, sequence=2048) == pytest.approx(
        31.25e6 * 16 / 17
    )
    # 256 samples of 2048 tokens in a block: two nodes need all blocks, 10,000 nodes 1 in 40 each.
    assert step.data_tokens_per_s(125e6, 32_000, 2048, nodes=2) == pytest.approx(62.5e6 * 16 / 17)
    many = step.data_tokens_per_s(125e6, 32_000, 2048, nodes=10_000)
    assert many == pytest.approx(62.5e6 * 16 / 17 / 0.02527, rel=1e-3)
    # A sample as large as a block is read by one node alone.
    alone = step.data_tokens_per_s(125e6, 32_000, 1 << 20, nodes=8)
    assert alone == pytest.approx(8 * 62.5e6 * 16 / 17)


def test_jitter_grows_with_every_doubling_of_nodes() -> None:
    c = replace(BARE, jitter=0.01)
    for nodes in (1, 2, 3, 64):
        of = job(Layout(1, 8 * nodes), batch=64 * nodes)
        found = timed(of, c)
        rest = found.step_s - found.parts["jitter"]
        assert found.parts["jitter"] == pytest.approx(0.01 * log2(nodes) * rest)
    half = job(Layout(1, 4), batch=4, on=machine(8))
    assert timed(half, c).parts["jitter"] == 0
    partly = job(Layout(1, 12), batch=12, on=machine(16))  # twelve are two nodes
    found = timed(partly, c)
    assert found.parts["jitter"] == pytest.approx(found.step_s * 0.01 / 1.01)


# What holds for any job.


@given(jobs())
@settings(max_examples=100, deadline=None)
def test_a_perfect_network_takes_no_time(of: Job) -> None:
    free = tuple(NetworkTier(t.name, t.size, float("inf"), 0.0) for t in of.machine.tiers)
    found = step.predict(replace(of, machine=replace(of.machine, tiers=free)), PRIOR)
    assert found.causes["communicate"] == 0


@given(jobs(), st.sampled_from(["near", "far", "latency", "storage"]), st.floats(1, 20))
@settings(max_examples=200, deadline=None)
def test_a_better_network_or_storage_is_never_slower(of: Job, what: str, factor: float) -> None:
    on = replace(of.machine, read_bytes_per_s=1e6)
    tiers = list(on.tiers)
    if what == "storage":
        better = replace(on, read_bytes_per_s=1e6 * factor)
    elif what == "latency":
        better = replace(on, tiers=tuple(replace(t, hop_s=t.hop_s / factor) for t in tiers))
    else:
        i = 0 if what == "near" else -1
        tiers[i] = replace(tiers[i], bytes_per_s=tiers[i].bytes_per_s * factor)
        better = replace(on, tiers=tuple(tiers))
    before = step.predict(replace(of, machine=on), PRIOR).step_s
    after = step.predict(replace(of, machine=better), PRIOR).step_s
    assert after <= before * (1 + 1e-9)


@given(jobs(), st.floats(1.1, 20), st.floats(1.1, 20))
@settings(max_examples=200, deadline=None)
def test_a_faster_device_is_never_slower(of: Job, compute: float, memory: float) -> None:
    on = of.machine
    rates = {kind: rate * compute for kind, rate in on.matmul_flops.items()}
    better = replace(on, matmul_flops=rates, memory_bytes_per_s=on.memory_bytes_per_s * memory)
    before = step.predict(of, PRIOR).step_s
    after = step.predict(replace(of, machine=better), PRIOR).step_s
    assert after <= before * (1 + 1e-9)


def test_a_faster_device_is_never_slower_when_another_stage_becomes_the_slowest() -> None:
    """The last stage has more to hide its reduction behind than the middle one."""
    shape = replace(DENSE, layers=4, hidden=512, heads=16, kv_heads=4)
    lay = Layout(2, 4, pipeline=4, context=4, interleave=2, zero=2)
    of = job(lay, shape, on=machine(128), software=GRAPHS, sequence=512, batch=32)
    times = []
    for factor in (1.0, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0):
        on = of.machine
        rates = {kind: rate * factor for kind, rate in on.matmul_flops.items()}
        on = replace(on, matmul_flops=rates, memory_bytes_per_s=on.memory_bytes_per_s * factor)
        times.append(step.predict(replace(of, machine=on), PRIOR).step_s)
    assert times == sorted(times, reverse=True)


@given(jobs())
@settings(max_examples=100, deadline=None)
def test_recompute_is_never_faster(of: Job) -> None:
    times = [
        step.predict(of.with_layout(replace(of.layout, recompute=kind))).step_s
        for kind in ("none", "selective", "full")
    ]
    assert times[0] <= times[1] * (1 + 1e-9)
    assert times[0] <= times[2] * (1 + 1e-9)


@given(jobs(), st.integers(2, 4))
@settings(max_examples=100, deadline=None)
def test_more_microbatches_take_longer_and_less_than_as_many_times(of: Job, times: int) -> None:
    once = step.predict(of, PRIOR).step_s
    more = step.predict(replace(of, batch=of.batch * times), PRIOR).step_s
    assert once < more <= times * once * (1 + 1e-9)
