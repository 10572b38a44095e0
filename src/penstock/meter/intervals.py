"""Sets of time: what is covered, by what, and what is left over.

A set is an array of (start, end) pairs, in order and apart from each other; `union` makes one of
any pairs. Whole numbers (nanoseconds) stay whole, so that what is cut apart adds up again.
"""

import numpy as np

Spans = np.ndarray  # [n, 2]: starts and ends


def union(spans: Spans, gap: float = 0) -> Spans:
    """Return the union of some pairs; holes of up to `gap` count as covered."""
    spans = np.asarray(spans).reshape(-1, 2)
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.append(True, spans[1:, 0] > reach[:-1] + gap)
    last = np.append(first[1:], True)
    return np.stack([spans[first, 0], reach[last]], axis=1)


def within(a: Spans, b: Spans) -> Spans:
    """Return the intersection of two sets."""
    if not len(a) or not len(b):
        return np.empty((0, 2), np.result_type(a, b))
    # For each span of `a`, the spans of `b` that it meets stand side by side.
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    stop = np.searchsorted(b[:, 0], a[:, 1], side="left")
    count = np.maximum(stop - first, 0)
    mine = np.repeat(np.arange(len(a)), count)
    place = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count)
    theirs = np.repeat(first, count) + place
    starts = np.maximum(a[mine, 0], b[theirs, 0])
    return np.stack([starts, np.minimum(a[mine, 1], b[theirs, 1])], axis=1)


def without(a: Spans, b: Spans) -> Spans:
    """Return `a` without the parts that `b` covers."""
    if not len(a) or not len(b):
        return a
    low, high = min(a[0, 0], b[0, 0]), max(a[-1, 1], b[-1, 1])
    edges = np.concatenate([[low], b.ravel(), [high]]).astype(np.result_type(a, b))
    holes = edges.reshape(-1, 2)
    return within(a, holes[holes[:, 1] > holes[:, 0]])


def measure(spans: Spans) -> float:
    """Return the length that a set covers."""
    return (spans[:, 1] - spans[:, 0]).sum().item() if len(spans) else 0.0


def each(spans: Spans, inside: Spans) -> np.ndarray:
    """Return the length of a set that each pair covers; an overlap counts for the first pair only.

    The pairs need not be a set; their order is by start.
    """
    if not len(spans):
        return np.zeros(0)
    reach = np.concatenate([[spans[0, 0]], np.maximum.accumulate(spans[:, 1])[:-1]])
    own = np.stack([np.maximum(spans[:, 0], np.minimum(reach, spans[:, 1])), spans[:, 1]], axis=1)
    return covered_until(inside, own[:, 1]) - covered_until(inside, own[:, 0])


def covered_until(spans: Spans, times: np.ndarray) -> np.ndarray:
    """Return the length of a set before each time."""
    if not len(spans):
        return np.zeros(len(times))
    lengths = spans[:, 1] - spans[:, 0]
    before = np.concatenate([[0], np.cumsum(lengths)])
    place = np.searchsorted(spans[:, 0], times, side="right")
    last = np.maximum(place - 1, 0)
    part = np.clip(times - spans[last, 0], 0, lengths[last])
    return np.where(place > 0, before[last] + part, 0)


def own(spans: Spans) -> Spans:
    """Return the times at which each of some nested spans was the innermost.

    The spans are in order of their starts; the result has rows of (start, end, index).
    """
    rows: list[tuple[int, int, int]] = []
    open_: list[tuple[int, int]] = []  # (end, index), the innermost last
    at = 0
    for index, (start, end) in enumerate(spans.tolist()):
        while open_ and open_[-1][0] <= start:
            done, owner = open_.pop()
            rows.append((at, done, owner))
            at = max(at, done)
        if open_:
            rows.append((at, start, open_[-1][1]))
            end = min(end, open_[-1][0])  # clocks round: a child never outlives its parent
        at = start
        open_.append((end, index))
    while open_:
        done, owner = open_.pop()
        rows.append((at, done, owner))
        at = max(at, done)
    found = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return found[found[:, 1] > found[:, 0]]
