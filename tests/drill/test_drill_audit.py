"""The audit: a run that was killed and rolled back anywhere is whole; any slip is counted."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.read.stream import rank_slice
from penstock.drill.audit import (
    SampleCounts,
    UsedSamples,
    add_voted_parts,
    count_samples,
    final_uses,
    read,
)


def line(rank: int, attempt: int, step: int, batch: int, ranks: int) -> UsedSamples:
    first, stop = rank_slice((step - 1) * batch, step * batch, rank, ranks)
    return UsedSamples(rank, attempt, step, rank, first, stop)


def went(attempt: int, ranks: int, batch: int, after: int, upto: int) -> list[UsedSamples]:
    steps = range(after + 1, upto + 1)
    return [line(rank, attempt, step, batch, ranks) for step in steps for rank in range(ranks)]


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[UsedSamples], int, int]:
    """Lines of a run that was killed, restarted on other ranks and rolled back; steps, batch."""
    steps, batch, kills = (draw(st.integers(*span)) for span in ((1, 12), (1, 7), (0, 3)))
    lines: list[UsedSamples] = []
    done = 0
    for attempt in range(kills + 1):
        ranks = draw(st.integers(1, 4))
        resumed = done = draw(st.integers(0, done))  # from some checkpoint
        for _ in range(draw(st.integers(0, 2))):  # rollbacks in this attempt
            upto = draw(st.integers(done, steps))
            lines += went(attempt, ranks, batch, done, upto)
            done = draw(st.integers(resumed, upto))
        upto = steps if attempt == kills else draw(st.integers(done, steps))
        lines += went(attempt, ranks, batch, done, upto)
        done = upto
        if done < steps:  # one more, that only some ranks could write down
            told = range(draw(st.integers(0, ranks - 1)))
            lines += [line(rank, attempt, done + 1, batch, ranks) for rank in told]
    return sorted(lines, key=lambda one: one.rank), steps, batch


@given(stories())
@settings(max_examples=150, deadline=None)
def test_a_run_that_went_back_and_forth_used_each_sample_once(
    story: tuple[list[UsedSamples], int, int],
) -> None:
    lines, steps, batch = story
    final = final_uses(lines)
    assert sorted(final) == list(range(1, steps + 1))
    assert count_samples(final, steps, batch) == SampleCounts(0, 0)


@given(stories(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_slice_that_is_left_out_or_moved_is_counted(
    story: tuple[list[UsedSamples], int, int], data: st.DataObject
) -> None:
    lines, steps, batch = story
    final = final_uses(lines)
    held = [one for own in final.values() for one in own if one.stop > one.first]
    gone = data.draw(st.sampled_from(held))
    size = gone.stop - gone.first
    without = {step: [one for one in own if one != gone] for step, own in final.items()}
    assert count_samples(without, steps, batch) == SampleCounts(size, 0)
    moved = UsedSamples(99, 0, gone.step, 99, gone.first, gone.stop)
    doubled = {step: [*own, moved] if step == gone.step else own for step, own in final.items()}
    assert count_samples(doubled, steps, batch) == SampleCounts(0, size)


def test_ranks_that_read_the_same_samples_count_once() -> None:
    lines = [
        UsedSamples(rank, 0, 1, rank // 2, (rank // 2) * 4, (rank // 2) * 4 + 4)
        for rank in range(4)
    ]
    assert count_samples(final_uses(lines), 1, 8) == SampleCounts(0, 0)


def test_samples_beyond_the_run_are_too_many() -> None:
    assert count_samples({1: [UsedSamples(0, 0, 1, 0, 0, 6)]}, 1, 4) == SampleCounts(0, 2)


def test_a_replaced_rank_belongs_to_the_life_of_the_others() -> None:
    """Live: rank 1 died in step 2 and came back as attempt 1 for step 4, the others went on."""
    lines = [
        UsedSamples(0, 0, 1, 0, 0, 2),
        UsedSamples(0, 0, 2, 0, 4, 8),
        UsedSamples(0, 0, 3, 0, 8, 12),
    ]
    lines += [
        UsedSamples(0, 0, 4, 0, 12, 14),
        UsedSamples(1, 0, 1, 1, 2, 4),
        UsedSamples(1, 1, 4, 1, 14, 16),
    ]
    assert count_samples(final_uses(lines, life=lambda attempt: 0), 4, 4) == SampleCounts(0, 0)
    assert count_samples(final_uses(lines), 4, 4) != SampleCounts(0, 0)


def test_a_torn_line_is_no_line(tmp_path: Path) -> None:
    row = {"attempt": 0, "step": 1, "data_rank": 0, "data_ranks": 2, "first": 0, "stop": 4}
    (tmp_path / "r00000.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row)[:20])
    assert read(tmp_path) == [UsedSamples(0, 0, 1, 0, 0, 4, 2)]
    assert read(tmp_path / "none") == []


@pytest.mark.parametrize("steps", [1, 5])
def test_a_run_without_lines_lost_everything(steps: int) -> None:
    assert count_samples({}, steps, 4) == SampleCounts(4 * steps, 0)


def test_a_part_that_was_voted_on_counts_where_the_others_go_on() -> None:
    lines = [
        UsedSamples(0, 0, 1, 0, 0, 2, 2),
        UsedSamples(1, 0, 1, 1, 2, 4, 2),
        UsedSamples(0, 0, 2, 0, 4, 6, 2),
    ]
    lines += [UsedSamples(0, 0, 3, 0, 8, 12, 1)]
    final = final_uses(sorted(lines, key=lambda one: one.rank))
    assert count_samples(final, 3, 4) == SampleCounts(2, 0)
    assert count_samples(add_voted_parts(final, 4), 3, 4) == SampleCounts(0, 0)
