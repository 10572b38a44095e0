"""After memory ran out: what is tried next needs clearly less, and is the fastest that does."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_plans as made
from penstock.plan.job import legal
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.memory import memory
from penstock.plan.search import oom
from penstock.plan.search.search import SearchSpace
from penstock.plan.step import step
from planned_jobs import jobs, machine


@given(jobs(adapter=None), st.sampled_from([2.0, 8.0, 80.0]))
@settings(max_examples=12, deadline=None)
def test_every_way_out_is_legal_smaller_and_keeps_the_ranks(of: Job, gib: float) -> None:
    of = replace(of, machine=machine(of.layout.ranks, memory_bytes=int(gib * 2**30)))
    held = memory.predict(of)
    ways = oom.smaller_layouts(of, SearchSpace())
    for way in ways:
        tried = of.with_layout(way.layout)
        assert way.layout.ranks == of.layout.ranks
        assert legal.shape_problems(of.shape, way.layout, of.sequence) == []
        assert way.memory_bytes == pytest.approx(memory.predict(tried).peak_bytes)
        assert way.memory_bytes <= 0.9 * held.peak_bytes
        assert way.memory_bytes <= held.capacity_bytes
        assert way.slower == pytest.approx(
            step.predict(tried).step_s / step.predict(of).step_s - 1, abs=1e-9
        )
    assert [way.slower for way in ways] == sorted(way.slower or 0 for way in ways)


def test_it_comes_to_an_end() -> None:
    """However often it fails, there is a next one that needs less, until there is none."""
    of, seen = made.job(8, Layout(replicate=1, shard=8, microbatch=16)), []
    while ways := oom.smaller_layouts(of, SearchSpace()):
        of = of.with_layout(ways[0].layout)
        seen.append(ways[0].memory_bytes or 0.0)
        assert len(seen) < 60
    assert len(seen) > 2
    assert all(b < a for a, b in pairwise(seen))


def test_what_is_not_trained_is_not_proposed() -> None:
    of = replace(made.job(8, Layout(replicate=8, shard=1, microbatch=4)), sequence=4096)
    plain = SearchSpace(tensor=(1,), pipeline=(1,), context=(1,), expert=(1,), recompute=("none",))
    ways = oom.smaller_layouts(of, plain)
    assert ways
    assert all(way.layout.model_ways == 1 for way in ways)
    assert all(way.layout.recompute == "none" for way in ways)


def test_the_words_are_those_of_the_run_file() -> None:
    old = Layout(replicate=2, shard=4, microbatch=4)
    new = Layout(replicate=1, shard=8, microbatch=2, recompute="selective")
    given_ = made.run(layout={"shard": 4, "microbatch": 4})
    way = oom.SmallerLayout(replace(old, microbatch=2), 40 * 2**30, 0.034)
    assert way.words(given_, old) == "layout.microbatch = 2 (40.0 GiB predicted, 3% slower)"
    assert oom.fields_to_write(given_, old, new) == (
        "layout.replicate = 1 and layout.shard = 8 and layout.microbatch = 2 and "
        'layout.recompute = "selective"'
    )
    # Without [layout] the planner chose all of it: one field alone would mean another layout.
    assert oom.fields_to_write(made.run(), old, replace(old, microbatch=2)) == (
        "layout.replicate = 2 and layout.shard = 4 and layout.microbatch = 2"
    )


def test_without_a_model_of_the_job_the_rows_are_halved_and_then_spread() -> None:
    run, lay, seen = made.run(), Layout(replicate=4, microbatch=9), []
    while ways := oom.halved_microbatch(run, lay):
        (way,) = ways
        lay = way.layout
        seen.append((lay.microbatch, lay.replicate, lay.shard))
        assert way.memory_bytes is None
    assert seen == [(4, 4, 1), (2, 4, 1), (1, 4, 1), (1, 2, 2), (1, 1, 4)]
