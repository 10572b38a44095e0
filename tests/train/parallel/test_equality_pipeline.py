"""Principle 3 for pipelines: every schedule and cut computes what one process does, in float64."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import real_ranks
from equality_cases import (
    Answer,
    assert_equal,
    masked_set,
    on_one_rank,
    on_ranks,
    prepared,
)
from penstock.plan.job.layout import Layout
from penstock.train.parallel.microbatch import Microbatch
from penstock.train.parallel.pipeline import stack_microbatches
from penstock.train.parallel.pipeline_schedule import padded_micro_count

VARIANTS: dict[str, tuple[str, list[str]]] = {
    # 5 layers on 2 or 4 stages, or in 4 pieces: none divides.
    "tied": ("plain", ["model.layers=5"]),
    "untied": ("plain", ["model.layers=4", "model.tied=false", "model.qk_norm=true"]),
    "unclipped": ("plain", ["model.layers=3", "train.clip=0", "train.batch_tokens=144"]),
    # One sequence: of two data ranks one has nothing at all.
    "idle rank": ("plain", ["model.layers=4", "train.batch_tokens=16"]),
    "packed": ("masked", ["model.layers=4", "data.across_documents=false"]),
}
# Layouts, and the variants that each of them is tried on. A batch is 8 sequences, or 9.
LAYOUTS: dict[int, list[tuple[dict[str, int], list[str]]]] = {
    2: [
        ({"pipeline": 2}, ["tied", "unclipped", "packed"]),
        # The last microbatch is smaller: 3, 3, 2 sequences.
        ({"pipeline": 2, "microbatch": 3}, ["tied", "untied", "packed"]),
        # Fewer microbatches than stages.
        ({"pipeline": 2, "microbatch": 8}, ["untied", "idle rank"]),
        ({"pipeline": 2, "interleave": 2, "microbatch": 2}, ["tied", "packed"]),
        # Three microbatches on two stages of two pieces: a filler makes it even rounds.
        ({"pipeline": 2, "interleave": 2, "microbatch": 3}, ["untied", "packed"]),
        ({"pipeline": 2, "interleave": 2, "microbatch": 8}, ["tied", "idle rank"]),
    ],
    4: [
        ({"pipeline": 4}, ["tied"]),
        ({"pipeline": 4, "microbatch": 3}, ["untied", "packed"]),
        ({"pipeline": 2, "replicate": 2, "microbatch": 2}, ["unclipped", "idle rank"]),
        ({"pipeline": 2, "shard": 2}, ["tied", "packed", "idle rank"]),
        ({"pipeline": 2, "interleave": 2, "shard": 2, "microbatch": 2}, ["tied", "packed"]),
        ({"pipeline": 2, "tensor": 2, "microbatch": 3}, ["tied", "packed"]),
        ({"pipeline": 2, "context": 2, "microbatch": 3}, ["tied", "packed"]),
    ],
    8: [({"pipeline": 2, "shard": 2, "tensor": 2, "microbatch": 2}, ["tied", "packed"])],
}


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, home: Path, tiny: str) -> str:
    datasets = {"plain": tiny, "masked": masked_set(home, "equality-pipeline-masked")}
    return prepared(tmp_path_factory.mktemp("equality-pipeline"), datasets)


@pytest.fixture(scope="module")
def alone(where: str, ranks: Callable[..., list[Any]]) -> dict[str, Answer]:
    return on_one_rank(ranks, where, VARIANTS)


@pytest.mark.parametrize(
    ("count", "variants"),
    [
        (2, slice(None)),
        (4, slice(-1, None)),
        pytest.param(4, slice(0, -1), marks=pytest.mark.slow),
        pytest.param(8, slice(None), marks=pytest.mark.slow),
    ],
    ids=["2", "4", "4, all others", "8"],
)
def test_every_pipeline_equals_one_process(
    count: int,
    variants: slice,
    where: str,
    alone: dict[str, Answer],
    ranks: Callable[..., list[Any]],
) -> None:
    named = [(name, layout) for layout, names in LAYOUTS[count] for name in names[variants]]
    answers = on_ranks(ranks, count, where, VARIANTS, named)
    for i, (name, layout) in enumerate(named):
        assert_equal(alone[name], [answer[i] for answer in answers], f"{name}, {layout}")
        # It is a pipeline: what the first and the last stage both hold is a tied embedding.
        both = answers[0][i]["grads"].keys() & answers[-1][i]["grads"].keys()
        assert both == (set() if name == "untied" else {"embed.weight"})


def buffers(path: str, layouts: list[dict[str, int]]) -> list[int]:
    """On one rank: how many hidden states it has room to receive, in a step of 8 microbatches."""

    from penstock.run.load import load
    from penstock.train.engine import build_engine
    from penstock.train.world.world import join

    found = []
    for number, lay in enumerate(layouts):
        os.environ["PENSTOCK_ATTEMPT"] = f"buffers {number}"
        world = join(Layout(**lay), "cpu", 60.0)
        runner: Any = build_engine(load(path, ["model.layers=4"]), Layout(**lay), 300, world).runner
        tokens = torch.arange(17).view(1, -1)
        runner.backward([Microbatch(tokens[:, :-1], tokens[:, 1:], 1.0)] * 8, 128)
        (made,) = runner._schedules.values()
        rooms = [
            id(buffer)
            for stage in (made._stages if lay["interleave"] > 1 else [made._stage])
            for infos in [*stage.args_recv_info.values(), *stage.grad_recv_info.values()]
            for info in infos
            if (buffer := getattr(info, "buffer", None)) is not None
        ]
        found.append(len(set(rooms)))
        real_ranks.leave()
    return found


def test_buffers_are_as_many_as_are_under_way_not_as_a_step_has_microbatches(
    where: str, ranks: Callable[..., list[Any]]
) -> None:
    layouts = [{"pipeline": 2, "interleave": pieces} for pieces in (1, 2)]
    (first, firsts), (last, lasts) = ranks(2, buffers, where, layouts)
    assert (first, last) == (2, 1)
    # torch has 8 for each of three ways in which hidden states come to two pieces.
    assert firsts <= 12
    assert lasts <= 12


def without_room(path: str) -> str:
    """On one rank: what the runner raises when a layer of the last stage is out of memory."""
    from penstock.run.load import load
    from penstock.train.engine import build_engine
    from penstock.train.world.world import join

    def forward(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    layout = Layout(pipeline=2)
    runner: Any = build_engine(load(path), layout, 300, join(layout, "cpu", 60.0)).runner
    if runner.last:
        runner.pieces[0].layers["1"].forward = forward
    tokens = torch.arange(17).view(1, -1)
    try:
        runner.backward([Microbatch(tokens[:, :-1], tokens[:, 1:], 1.0)] * 2, 32)
    except Exception as error:
        return type(error).__name__
    return "nothing"


def test_a_stage_that_is_out_of_memory_says_so(where: str, ranks: Callable[..., list[Any]]) -> None:
    first, last = ranks(2, without_room, where)
    assert last == "OutOfMemoryError"
    assert first == "RuntimeError"  # its neighbour is gone


@given(pipeline=st.integers(2, 9), micros=st.integers(1, 70), interleave=st.integers(1, 3))
def test_no_more_fillers_than_torch_needs(pipeline: int, micros: int, interleave: int) -> None:
    layout = Layout(pipeline=pipeline, interleave=interleave)

    def taken(number: int) -> bool:
        return interleave == 1 or number % max(1, number // pipeline) == 0

    found = padded_micro_count(layout, micros)
    assert taken(found)
    assert not any(taken(fewer) for fewer in range(micros, found))


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4), more=st.integers(0, 2))
@settings(max_examples=30)
def test_a_pile_has_every_row_where_it_belongs_and_nothing_else_counts(
    sizes: list[int], more: int
) -> None:
    batch = []
    for number, size in enumerate(sizes, start=1):
        tokens = torch.full((size, 4), number)
        marks = tokens > 0
        weight = float(number % 2)
        batch.append(
            Microbatch(tokens, tokens + 9, weight, marks if number % 3 == 0 else None, marks)
        )
    made = stack_microbatches(batch, len(batch) + more)
    assert made.rows == max(sizes)
    assert made.weights_n.tolist() == [m.weight for m in batch] + [0.0] * more
    inputs_nrs = made.inputs_bs.view(-1, made.rows, 4)
    assert made.starts_bs is not None
    for i, micro in enumerate(batch):
        own = inputs_nrs[i, : sizes[i]]
        assert torch.equal(own, micro.inputs_bs)
    real_bs = made.inputs_bs > 0
    assert torch.equal(made.targets_bs[real_bs], made.inputs_bs[real_bs] + 9)
    assert torch.equal(made.starts_bs, real_bs)
    if made.counted_bs is None:
        assert all(size == made.rows for size in sizes)
    else:
        assert torch.equal(made.counted_bs, real_bs)
