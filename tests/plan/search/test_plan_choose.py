"""The layout that is chosen: replicas while they fit, else the fewest shards that do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog.models import preset
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job.layout import Layout
from penstock.plan.job.outcome import PeakMemory
from penstock.plan.memory import memory
from penstock.plan.search.choose import (
    MICROBATCH_TOKENS,
    STATE_BYTES_PER_PARAM,
    STATE_SHARE,
    choose_layout,
    complete_layout,
)
from penstock.plan.step import step
from penstock.run.schema.run import Run

SHAPE = preset("llama-3m")
STATE = SHAPE.params() * STATE_BYTES_PER_PARAM
AMPLE = 100 * STATE


def run(batch_tokens: int = 2**20, sequence: int = 512, **layout: int) -> Run:
    table: dict[str, object] = {
        "name": "test",
        "model": {"preset": "llama-3m", "context": 8192},
        "data": {"sequence": sequence},
        "train": {"batch_tokens": batch_tokens},
    }
    return Run.model_validate(table | ({"layout": layout} if layout else {}))


def chosen(
    asked: Run,
    ranks: int,
    memory_bytes: float = AMPLE,
    kind: str = "cuda",
    shape: ModelShape | None = SHAPE,
) -> Layout:
    return complete_layout(asked, shape, ranks, kind, int(memory_bytes))


@given(st.integers(1, 64), st.integers(0, 9), st.floats(0.01, 0.99))
@settings(deadline=None)
def test_the_fewest_shards_whose_state_fits(ranks: int, devices: int, more: float) -> None:
    """The state of one replica fills `devices` accelerators and a bit `more`."""
    memory = STATE / (devices + more) / STATE_SHARE
    if memory * ranks < STATE:
        with pytest.raises(PenstockError, match="Choose a smaller model"):
            chosen(run(), ranks, memory)
        return
    layout = chosen(run(), ranks, memory)
    assert layout.ranks == ranks
    assert ranks % layout.shard == 0
    fits = [n for n in range(1, ranks + 1) if ranks % n == 0 and n > devices]
    assert layout.shard == (fits[0] if fits else ranks)


def test_replicas_when_they_fit() -> None:
    assert chosen(run(), 8) == Layout(replicate=8, shard=1, microbatch=32)


def test_a_model_too_large_for_any_split_is_refused_with_the_sizes() -> None:
    with pytest.raises(PenstockError, match=r"B parameters need .* GB for weights"):
        chosen(run(), 8, memory_bytes=STATE / 100)


def test_ranks_on_a_cpu_share_one_memory() -> None:
    """Four replicas hold the state four times, in the memory of the one machine."""
    room = STATE / STATE_SHARE * 1.01
    assert chosen(run(), 4, 4 * room, "cpu").shard == 1
    assert chosen(run(), 4, 2 * room, "cpu").shard == 2
    assert chosen(run(), 4, room, "cpu").shard == 4
    assert chosen(run(), 4, room, "cuda").shard == 1


def test_a_module_of_unknown_size_is_replicated() -> None:
    assert chosen(run(), 4, memory_bytes=1, shape=None).shard == 1


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"shard": 2}, (4, 2)),
        ({"replicate": 8}, (8, 1)),
        ({"replicate": 2, "shard": 4}, (2, 4)),
        ({"microbatch": 3}, (1, 8)),  # a microbatch alone leaves the sharding to be chosen
    ],
)
def test_the_file_is_obeyed_and_completed(asked: dict[str, int], found: tuple[int, int]) -> None:
    layout = chosen(run(**asked), 8, memory_bytes=STATE / 8)
    assert (layout.replicate, layout.shard) == found
    if "microbatch" in asked:
        assert layout.microbatch == 3


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 16))
@settings(deadline=None)
def test_a_product_that_is_not_the_ranks_is_refused(replicate: int, shard: int, ranks: int) -> None:
    asked = run(replicate=replicate, shard=shard)
    if replicate * shard == ranks:
        assert chosen(asked, ranks).ranks == ranks
        return
    with pytest.raises(PenstockError) as caught:
        chosen(asked, ranks)
    message = str(caught.value)
    assert f"replicate {replicate} × shard {shard} = {replicate * shard}" in message
    assert f"the run has {ranks} rank{'s' if ranks > 1 else ''};" in message
    assert f"set cluster.accelerators = {replicate * shard}" in message


def test_shards_that_do_not_divide_the_ranks_are_refused() -> None:
    for shard in (3, 9):
        with pytest.raises(PenstockError, match="the run has 8 ranks"):
            chosen(run(shard=shard), 8)


@given(
    st.sampled_from(["cpu", "cuda"]),
    st.sampled_from([64, 512, 4096, 8192]),
    st.integers(1, 300),
    st.integers(1, 16),
)
@settings(deadline=None)
def test_a_microbatch_is_within_the_share_of_a_rank_and_the_tokens_of_its_device(
    kind: str, sequence: int, samples: int, ranks: int
) -> None:
    layout = chosen(run(samples * sequence, sequence), ranks, kind=kind)
    assert 1 <= layout.microbatch <= max(1, samples // ranks)
    most = max(1, MICROBATCH_TOKENS[kind] // sequence)
    assert layout.microbatch == min(most, max(1, samples // ranks))


def test_a_layout_in_words_and_in_json() -> None:
    layout = Layout(2, 4, 8)
    assert str(layout) == "2 replicate × 4 shard, microbatch 8"
    assert Layout(**layout.to_json()) == layout


# On accelerators, what a file leaves open is searched.

LARGE = {
    "name": "large",
    "model": {"preset": "llama-70b"},
    "data": {"sequence": 8192},
    "train": {"batch_tokens": 2048 * 8192, "precision": "bf16"},
    "cluster": {"use": "H100"},
}


def planned(ranks: int, **changes: object) -> tuple[Layout, PeakMemory]:
    asked = Run.model_validate(LARGE | changes)
    job = choose_layout(asked, of_catalog("H100 SXM", ranks)).job
    return job.layout, memory.predict(job)


def test_a_partial_layout_is_completed_so_that_it_fits() -> None:
    """The fewest shards that hold the state left no room for activations."""
    layout, held = planned(2048, layout={"tensor": 2})
    assert (layout.tensor, layout.pipeline, layout.context) == (2, 1, 1)
    assert held.fits


def test_what_the_file_says_stays() -> None:
    said = {"tensor": 8, "pipeline": 4, "interleave": 2, "recompute": "full", "microbatch": 1}
    layout, _ = planned(256, layout=said | {"shard": 4})
    assert {name: getattr(layout, name) for name in said} == said
    assert (layout.shard, layout.replicate) == (4, 2)


@pytest.mark.parametrize(("word", "zero"), [("layer", 3), ("backward", 2), ("step", 1)])
def test_reshard_is_the_zero_stage_inside_a_step(word: str, zero: int) -> None:
    layout, _ = planned(256, layout={"reshard": word, "recompute": "full"})
    assert (layout.zero, layout.reshard) == (zero, word)


def test_the_published_layout_of_a_405b_model_fits_and_is_about_as_fast() -> None:
    """Llama 3 405B: tensor 8, pipeline 16 on 16,384 H100, at 41 % of the peak."""
    asked = Run.model_validate(
        LARGE | {"model": {"preset": "llama-405b"}, "layout": {"tensor": 8, "pipeline": 16}}
    )
    job = choose_layout(asked, of_catalog("H100 SXM", 16384)).job
    assert memory.predict(job).fits
    took = step.predict(job)
    assert 0.31 < took.model_flops / took.step_s / (16384 * 989e12) < 0.51


def test_a_whole_layout_that_does_not_fit_is_planned_as_it_is() -> None:
    said = {"replicate": 1, "shard": 8, "tensor": 1, "microbatch": 4, "recompute": "none"}
    layout, held = planned(8, layout=said | {"interleave": 1, "reshard": "layer"})
    assert {name: getattr(layout, name) for name in said} == said
    assert not held.fits
