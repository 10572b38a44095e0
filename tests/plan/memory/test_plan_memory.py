"""Memory: what must hold for every job, and a few counts done by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog import models
from penstock.catalog.shapes import ModelShape
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job import partition
from penstock.plan.job.constants import StrandedMemory
from penstock.plan.job.job import Adapter, Job, Software
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import MEMORY_PARTS
from penstock.plan.memory import memory, moments, state

GIB = 2**30
H100 = of_catalog("H100 SXM", 8)
MEGATRON = Software(
    name="megatron",
    fused=True,
    torch_checkpoints=False,
    torch_layers=False,
    grad_buffers=True,
    weight_bytes=2.0,
    optimizer_bytes=12.0,
    logit_bytes=6.0,
)
PRESETS = ("llama-1b", "llama-8b", "qwen3-4b", "mixtral-8x7b", "deepseek-v2-lite", "deepseek-v3")
ways = st.sampled_from((1, 2, 4, 8))


def job(preset: str = "llama-8b", **changes: object) -> Job:
    made = Job(models.preset(preset), 4096, 512, Layout(), H100)
    return replace(made, **changes)  # type: ignore[arg-type]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    shape = models.preset(draw(st.sampled_from(PRESETS)))
    pipeline = draw(ways)
    layout = Layout(
        replicate=draw(ways),
        shard=draw(ways),
        microbatch=draw(ways),
        tensor=draw(ways),
        pipeline=pipeline,
        context=draw(st.sampled_from((1, 2))),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        interleave=draw(st.sampled_from((1, 2))) if pipeline > 1 else 1,
        zero=draw(st.sampled_from((0, 1, 2, 3))),
        sequence_parallel=draw(st.booleans()),
        zero_bubble=draw(st.booleans()),
    )
    software = draw(st.sampled_from((Software(), MEGATRON, replace(MEGATRON, flash=False))))
    return Job(
        shape,
        draw(st.sampled_from((1024, 8192))),
        512,
        layout,
        H100,
        precision=draw(st.sampled_from(("bf16", "fp32", "fp8"))),
        software=software,
        adapter=draw(st.sampled_from((None, Adapter(), Adapter(bits=4)))),
    )


def held_bytes(made: Job) -> float:
    """Weights, gradients and optimizer of the rank that holds most."""
    states = (state.state_bytes(made, stage) for stage in range(made.layout.pipeline))
    return max(s.weights + s.gradients + s.optimizer for s in states)


def kept(made: Job) -> float:
    have = moments.layer_bytes(made)
    return max(moments.kept_bytes(made, s, have) for s in range(made.layout.pipeline))


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_parts_are_whole_and_never_negative(made):
    found = memory.predict(made)
    assert set(found.parts) == set(MEMORY_PARTS)
    assert min(found.parts.values()) >= 0
    assert found.peak_bytes == pytest.approx(sum(found.parts.values()))


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_no_stage_is_fuller_than_the_prediction(made):
    stages = [memory.of_stage(made, stage).peak_bytes for stage in range(made.layout.pipeline)]
    assert memory.predict(made).peak_bytes == pytest.approx(max(stages))


@settings(max_examples=60, deadline=None)
@given(jobs(), st.sampled_from(("tensor", "pipeline", "shard", "expert")))
def test_more_ways_never_hold_more_state(made, way):
    if way == "expert":
        made = replace(made, layout=replace(made.layout, shard=8))
        if not made.shape.moe:
            return
    more = replace(made.layout, **{way: 2 * getattr(made.layout, way)})
    assert held_bytes(made.with_layout(more)) <= held_bytes(made) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_no_stage_is_fuller_than_the_fullest(made):
    fullest = memory.predict(made).peak_bytes
    for stage in range(made.layout.pipeline):
        assert memory.of_stage(made, stage).peak_bytes <= fullest


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_a_larger_microbatch_never_needs_less(made):
    more = made.with_layout(replace(made.layout, microbatch=2 * made.layout.microbatch))
    more = replace(more, batch=2 * made.batch)
    assert kept(more) >= kept(made)
    assert memory.predict(more).peak_bytes >= memory.predict(made).peak_bytes


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_recomputing_more_never_needs_more(made):
    kinds = ("none", "selective", "full")
    peaks, keeps = (
        [of(made.with_layout(replace(made.layout, recompute=kind))) for kind in kinds]
        for of in (lambda m: memory.predict(m).peak_bytes, kept)
    )
    assert peaks[0] * (1 + 1e-9) >= peaks[2]
    assert keeps[0] >= keeps[1] >= keeps[2]


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_a_frozen_model_never_needs_more_than_a_trained_one(made):
    trained = memory.predict(replace(made, adapter=None))
    frozen = memory.predict(replace(made, adapter=Adapter(rank=8, bits=4)))
    assert frozen.peak_bytes <= trained.peak_bytes


def test_params_are_those_of_the_shape():
    for name in PRESETS:
        made = job(name)
        have = partition.rank_params(made.shape, made.layout, 0)
        assert have.common + have.routed == made.shape.params()


def test_stages_hold_every_layer_once():
    shape = models.preset("deepseek-v3")
    for pipeline, pieces in ((1, 1), (4, 1), (8, 2), (7, 3)):
        counts = partition.stage_layers(shape, pipeline, pieces)
        assert sum(dense for dense, _ in counts) == shape.dense_layers
        assert sum(sum(both) for both in counts) == shape.layers


def test_state_bytes_by_zero_stage():
    params = models.preset("llama-8b").params()
    for zero, per_param in ((0, 18), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 18 / 8)):
        made = job(layout=Layout(shard=8, zero=zero), software=MEGATRON)
        assert held_bytes(made) == pytest.approx(params * per_param, rel=1e-4)


@pytest.mark.parametrize(("bits", "per_param"), [(16, 2), (8, 1), (4, 4.14 / 8)])
def test_frozen_weights_have_the_width_of_the_adapter(bits, per_param):
    made = job(adapter=Adapter(rank=0, bits=bits))
    tables = partition.rank_params(made.shape, made.layout, 0).tables
    expected = (made.shape.params() - tables) * per_param + tables * 2
    assert state.state_bytes(made, 0).weights == pytest.approx(expected, rel=1e-3)


def test_the_optimizer_on_the_host_takes_no_room():
    there = memory.predict(job(software=Software(offload=True))).parts
    here = memory.predict(job()).parts
    assert there["optimizer"] == 0 < here["optimizer"]


def test_activations_are_those_of_the_paper():
    """Korthikanti et al. 2022, table 2: bytes of one layer, 22B, four sequences, eight ways."""
    shape = ModelShape(48, 6144, 64, 64, 24576, 51200, gated=False)
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    scores = 5 * a * s / h / t
    paper = {
        (False, "none"): 10 + 24 / t + scores,
        (True, "none"): 34 / t + scores,
        (False, "selective"): 10 + 24 / t,
        (True, "selective"): 34 / t,
        (True, "full"): 2 / t,
    }
    software = replace(MEGATRON, flash=False, dropout=True)
    for (split, recompute), per in paper.items():
        layout = Layout(microbatch=b, tensor=t, recompute=recompute, sequence_parallel=split)
        made = Job(shape, s, b, layout, H100, software=software)
        assert kept(made) == pytest.approx(48 * s * b * h * per), (split, recompute)


def test_flash_attention_keeps_no_scores():
    long = job(sequence=65536)
    stored = replace(long, software=Software(flash=False))
    assert kept(stored) > 10 * kept(long)


def test_microbatches_under_way():
    """1F1B holds as many as stages follow; interleaving more; a short step no more than it has."""
    made = job(layout=Layout(pipeline=4))
    assert [moments.passes_under_way(made, s) for s in range(4)] == [4, 3, 2, 1]
    interleaved = job(layout=Layout(pipeline=4, interleave=2))
    assert [moments.passes_under_way(interleaved, s) for s in range(4)] == [
        11 / 2,
        9 / 2,
        7 / 2,
        5 / 2,
    ]
    assert moments.passes_under_way(replace(made, batch=2), 0) == 2
    delayed = job(layout=Layout(pipeline=4, zero_bubble=True))
    assert moments.passes_under_way(delayed, 3) == 4


def test_routed_copies_follow_top_k():
    two = models.preset("mixtral-8x7b")
    four = replace(two, experts_active=4)
    made = job("mixtral-8x7b", layout=Layout(shard=8, expert=8))
    extra = kept(replace(made, shape=four)) - kept(made)
    # Two more copies of a token, and in each expert gate, activated gate, what is gated, product.
    copies = 2 * 2 * (two.hidden + 4 * two.expert_ffn)
    assert extra == pytest.approx(copies * two.layers * made.rank_tokens)


def test_the_loss_is_split_and_chunked():
    whole = moments.layer_bytes(job(software=MEGATRON)).logits
    assert whole == 4096 * 128256 * 6
    split = job(software=MEGATRON, layout=Layout(tensor=8))
    assert moments.layer_bytes(split).logits == whole / 8
    chunked = job(software=replace(MEGATRON, chunked_loss=True))
    assert moments.layer_bytes(chunked).logits == 4096 * 4096 * 6


def test_the_only_microbatch_makes_its_gradients_late():
    """Gradients of a step of one microbatch come as activations go, but not into their blocks."""
    layout = Layout(microbatch=8)
    one, two = (memory.predict(job("llama-1b", layout=layout, batch=n)) for n in (8, 16))
    assert one.parts["gradients"] == 0 < two.parts["gradients"]
    assert two.allocated_bytes > one.allocated_bytes
    assert two.reserved_bytes == pytest.approx(one.reserved_bytes)


def test_predicting_ahead_costs_a_layer_a_table_and_a_loss():
    layout = Layout(pipeline=4, tensor=2, zero=1)
    software = replace(MEGATRON, ahead_layers=1)
    plain = memory.of_stage(job("deepseek-v3", layout=layout, software=MEGATRON), 3)
    ahead = memory.of_stage(job("deepseek-v3", layout=layout, software=software), 3)
    assert ahead.parts["logits"] == 2 * plain.parts["logits"]
    shape = models.preset("deepseek-v3")
    table = shape.vocab * shape.hidden
    layer = partition.largest_layer_params(shape, layout)
    more = ahead.parts["weights"] - plain.parts["weights"]
    assert more == pytest.approx(2 * (table / 2 + layer))


def test_metrics_are_in_order():
    found = memory.predict(job())
    alloc, reserved, smi = (
        memory.as_metric(found, m)
        for m in ("torch max_memory_allocated", "max_memory_reserved GiB", "nvidia-smi")
    )
    assert alloc < reserved < smi == found.peak_bytes
    assert (alloc, reserved) == (found.allocated_bytes, found.reserved_bytes)
    assert smi - reserved == pytest.approx(memory.CONTEXT_BYTES)


def test_each_dimension_has_a_communicator():
    flat, split = (
        memory.predict(job(layout=layout)).parts["context"]
        for layout in (Layout(shard=8), Layout(shard=2, tensor=2, pipeline=2))
    )
    assert split - flat == pytest.approx(2 * memory.COMMUNICATOR_BYTES)


def test_holes_grow_with_what_comes_and_goes_and_level_off():
    holes = StrandedMemory(share=0.5, most_bytes=8 * GIB)
    found = [holes.of(n * GIB) / GIB for n in (0, 1, 10, 100, 1000)]
    assert found[0] == 0
    assert found == sorted(found)
    assert found[1] == pytest.approx(0.5, rel=0.1)
    assert 7 < found[-1] < 8


def test_what_fits_is_decided_on_the_upper_end_of_the_band():
    found = memory.predict(job(layout=Layout(shard=8)))
    for size, fits in ((1.001, True), (0.999, False)):
        room = replace(found, capacity_bytes=found.peak_bytes * found.high * size)
        assert room.fits is fits
        assert (room.short_bytes > 0) is not fits


def test_a_pipeline_of_fsdp_keeps_weights_and_gradients_whole():
    """torch's schedules gather and reduce once a step: 2 and 4 bytes per parameter of a stage."""
    software = Software(fsdp=True, keeps_gathered=True)
    layout = Layout(shard=8, pipeline=4)
    made = job("llama-70b", layout=layout, software=software)
    held = partition.rank_params(made.shape, layout, 0)
    state_of = state.state_bytes(made, 0)
    assert state_of.gathered == pytest.approx(2 * held.common)
    assert state_of.gradients == pytest.approx(4 * held.common)
    assert state_of.weights == pytest.approx(4 * held.common / 8)
    alone = made.with_layout(Layout(shard=32))
    assert state.state_bytes(alone, 0).gathered == 0


@pytest.mark.parametrize(("zero", "weights", "gradients"), [(3, 0, 1), (2, 8, 1), (1, 8, 8)])
def test_what_stays_whole_inside_a_step(zero, weights, gradients):
    made = job(layout=Layout(shard=8, zero=zero), software=Software(fsdp=True))
    shard = made.shape.params() / 8
    found = state.state_bytes(made, 0)
    assert found.gathered == pytest.approx(2 * weights * shard, rel=1e-4)
    assert found.gradients == pytest.approx(4 * gradients * shard, rel=1e-4)
    assert found.weights == pytest.approx(4 * shard, rel=1e-4)


def test_flat_buffers_of_an_update_get_blocks_of_their_own():
    software = replace(MEGATRON, flat_bytes=6.0)
    layout = Layout(shard=8, zero=1, microbatch=4)
    plain, flat = (memory.predict(job(layout=layout, software=one)) for one in (MEGATRON, software))
    more = 6.0 * job().shape.params() / 8
    assert flat.reserved_bytes - plain.reserved_bytes == pytest.approx(more, rel=1e-3)


def test_what_fits():
    assert not memory.predict(job()).fits  # 8B: 16 bytes per parameter on 80 GiB
    assert memory.predict(job(layout=Layout(shard=8))).fits
    assert memory.predict(job()).capacity_bytes < 80 * GIB


def test_loading_before_sharding_can_be_the_peak():
    software = Software(weight_bytes=2.0, shards_late=True)
    made = job(layout=Layout(shard=8, recompute="full"), software=software, adapter=Adapter())
    early = memory.predict(made)
    late = memory.predict(replace(made, software=replace(software, shards_late=False)))
    assert early.parts["weights"] == pytest.approx(2 * made.shape.params(), rel=1e-3)
    assert late.peak_bytes < early.peak_bytes
