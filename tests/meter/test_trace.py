"""Traces made by hand: what counts as work, as exposed communication, as a bubble, as neither."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.meter.trace import ComputeSplit, TraceOp, split_compute, sum_neighbours

MS = 1_000_000


def op(name: str, start: float, end: float, kind: str = "op", thread: int = 1) -> TraceOp:
    return TraceOp(name, kind, round(start * MS), round(end * MS), thread)  # type: ignore[arg-type]


def note(name: str, start: float, end: float, thread: int = 1) -> TraceOp:
    return op(name, start, end, "note", thread)


def window(start: float, end: float) -> TraceOp:
    return note("penstock:compute", start, end)


def ms(split: ComputeSplit) -> dict[str, float]:
    parts = ("window", "compute", "copy", "communicate", "bubble", "idle")
    return {part: round(getattr(split, f"{part}_s") * 1e3, 6) for part in parts}


def test_a_collective_that_is_waited_for_is_exposed_and_one_behind_work_is_not() -> None:
    split = split_compute(
        [
            window(0, 100),
            op("aten::mm", 0, 40),
            note("gloo:all_reduce", 20, 60, thread=7),  # 20 behind the matmul, 20 in the open
            op("aten::mm", 60, 90),
            note("gloo:all_gather", 65, 85, thread=8),  # hidden
        ],
        pipelined=False,
    )
    assert ms(split) == {
        "window": 100, "compute": 70, "copy": 0, "communicate": 20, "bubble": 0, "idle": 10,
    }  # fmt: skip
    assert split.collectives_s == pytest.approx((0.02, 0.0))


def test_the_innermost_operation_says_what_is_done() -> None:
    """A backward function waits in the middle; the operations it wraps are work."""
    split = split_compute(
        [
            window(0, 50),
            op("autograd::engine::evaluate_function: XBackward0", 0, 50),
            op("aten::add", 0, 45),
            op("PythonSubclass", 1, 45),
            op("_c10d_functional::wait_tensor", 5, 35),
            op("aten::add", 35, 44),
            note("gloo:all_reduce", 2, 33, thread=9),
        ],
        pipelined=False,
    )
    assert split.collectives_s == pytest.approx((0.031,))
    assert split.calls_s == pytest.approx(0.002)  # to be woken up
    assert split.compute_s == pytest.approx(0.010)
    assert split.idle_s == pytest.approx(0.007)


def test_a_stage_that_waits_for_its_neighbour_has_a_bubble() -> None:
    rows = [
        window(0, 100),
        note("gloo:recv", 0, 30),
        op("aten::mm", 30, 60),
        op("aten::mm", 60.1, 80),  # the host took 0.1 ms in between
        note("gloo:recv", 55, 95),  # posted early; 15 in the open
        note("gloo:send", 80, 81),
        op("aten::copy_", 95, 100),
    ]
    found = split_compute(rows, pipelined=True)
    assert ms(found)["bubble"] == 45
    assert ms(found)["communicate"] == 0
    assert ms(found)["idle"] == pytest.approx(0.1)
    elsewhere = split_compute(rows, pipelined=False)  # rings of attention send and receive too
    assert ms(elsewhere)["bubble"] == 0
    assert ms(elsewhere)["communicate"] == pytest.approx(45.1)


def test_on_an_accelerator_its_kernels_say_what_was_done() -> None:
    split = split_compute(
        [
            window(0, 100),
            op("aten::mm", 0, 5),  # the host only launches
            op("sm90_gemm", 1, 40, "kernel", 0),
            op("ncclDevKernel_AllGather_RING_LL", 30, 60, "kernel", 2),
            op("flash_bwd", 60, 80, "kernel", 0),
            op("ncclDevKernel_SendRecv", 85, 90, "kernel", 3),
            op("Memcpy HtoD", 90, 95, "copy", 0),
        ],
        pipelined=True,
    )
    assert ms(split) == {
        "window": 100, "compute": 59, "copy": 5, "communicate": 20, "bubble": 5, "idle": 11,
    }  # fmt: skip


def test_what_lies_outside_the_parts_that_compute_does_not_count() -> None:
    split = split_compute(
        [
            window(0, 10),
            note("penstock:exchange", 10, 50),
            note("gloo:all_reduce", 11, 49, thread=4),
            window(50, 60),
            op("aten::mm", 0, 10),
            op("aten::mm", 10, 60),
            op("aten::mm", 0, 60, thread=5),  # of the thread that reads data
        ],
        pipelined=False,
    )
    assert ms(split) == {
        "window": 20, "compute": 20, "copy": 0, "communicate": 0, "bubble": 0, "idle": 0,
    }  # fmt: skip
    assert split.collectives_s == ()


spans = st.tuples(st.integers(0, 90), st.integers(1, 20)).map(lambda p: (p[0], p[0] + p[1]))
names = st.sampled_from(
    [
        ("sm90_gemm", "kernel"),
        ("ncclDevKernel_AllReduce", "kernel"),
        ("ncclDevKernel_SendRecv", "kernel"),
        ("gloo:recv", "note"),
        ("gloo:all_reduce", "note"),
        ("Memcpy DtoH", "copy"),
        ("penstock:compute", "note"),
        ("aten::mm", "op"),
        ("c10d::allreduce_", "op"),
    ]
)


@given(st.lists(st.tuples(names, spans), max_size=15), st.booleans())
def test_the_parts_of_any_trace_add_up(
    rows: list[tuple[tuple[str, str], tuple[int, int]]], pipelined: bool
) -> None:
    # Operations of one thread are nested or apart; others may lie anywhere.
    at, ops = 0, []
    for (name, kind), (start, end) in rows:
        if kind == "op":
            start, end, at = at, at + end - start, at + end - start
        ops.append(op(name, start, end, kind))
    split = split_compute(ops, pipelined)
    parts = (split.compute_s, split.copy_s, split.communicate_s, split.bubble_s, split.idle_s)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(split.window_s, abs=1e-9)


@given(st.lists(st.floats(0, 10), max_size=200), st.integers(1, 64))
def test_many_collectives_are_added_up_with_their_neighbours(
    each_s: list[float], most: int
) -> None:
    cells = sum_neighbours(each_s, most)
    assert len(cells) == min(len(each_s), most)
    assert sum(cells) == pytest.approx(sum(each_s))
