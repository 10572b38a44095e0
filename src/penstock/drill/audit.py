"""The audit of samples: each must be used exactly once, by the lines that ranks wrote.

A rank writes a line for every update that it made. Some of those updates were lost later, with a
killed attempt or a rollback, so only the last pass of the run through a step counts.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from penstock.data.read.stream import rank_slice


@dataclass(frozen=True)
class UsedSamples:
    """The samples [first, stop) that one rank put into one step."""

    rank: int
    attempt: int
    step: int
    data_rank: int  # ranks that share one read the same samples, as in tensor parallel
    first: int
    stop: int
    data_ranks: int = 1


@dataclass(frozen=True)
class SampleCounts:
    """Counts for the final weights: samples that no step used, and uses beyond the first."""

    lost: int
    doubled: int


def read(folder: Path) -> list[UsedSamples]:
    """Return all lines of an audit folder, rank by rank, in the order they were written."""
    found = []
    for path in sorted(folder.glob("r*.jsonl")):
        rank = int(path.stem[1:])
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # a killed rank may leave half of one
                row = json.loads(line)
                names = ("attempt", "step", "data_rank", "first", "stop", "data_ranks")
                found.append(UsedSamples(rank, *(row[name] for name in names)))
    return found


def final_uses(
    used: Iterable[UsedSamples], life: Callable[[int], int] = lambda attempt: attempt
) -> dict[int, list[UsedSamples]]:
    """Return the lines that made the final weights, by step.

    `life` says which attempts ran together: all ranks of one attempt, or, where one rank was
    replaced while the others went on, several attempts.
    """
    rounds: dict[tuple[int, int], dict[int, list[UsedSamples]]] = {}
    for (_, number), lines in groupby(used, lambda line: (line.rank, life(line.attempt))):
        back, before = 0, 0
        for line in lines:
            back += line.step <= before  # it went back, as all ranks do together
            before = line.step
            rounds.setdefault((number, back), {}).setdefault(line.step, []).append(line)
    final: dict[int, list[UsedSamples]] = {}
    for _, steps in sorted(rounds.items()):
        lowest = min(steps)
        final = {step: lines for step, lines in final.items() if step < lowest} | steps
    return final


def add_voted_parts(
    final: dict[int, list[UsedSamples]], batch: int
) -> dict[int, list[UsedSamples]]:
    """Add the parts of ranks that died after the vote on a step and before they wrote it down.

    In live mode the others go on and the step stands, because the vote has accepted every part.
    """
    whole = {}
    for step, lines in final.items():
        one = lines[0]
        recorded = {line.data_rank for line in lines}
        start = (step - 1) * batch
        whole[step] = list(lines)
        for data_rank in set(range(one.data_ranks)) - recorded:
            part = rank_slice(start, start + batch, data_rank, one.data_ranks)
            whole[step].append(
                replace(one, rank=-1, data_rank=data_rank, first=part[0], stop=part[1])
            )
    return whole


def count_samples(final: dict[int, list[UsedSamples]], steps: int, batch: int) -> SampleCounts:
    """Compare with a run of `steps` steps of `batch` samples that begins at sample 0."""
    uses = np.zeros(steps * batch, np.int64)
    outside = 0
    for lines in final.values():
        for first, stop in {(line.data_rank, line.first): line.stop for line in lines}.items():
            low, high = min(first[1], len(uses)), min(stop, len(uses))
            uses[low:high] += 1
            outside += stop - first[1] - (high - low)
    return SampleCounts(int((uses == 0).sum()), int(np.maximum(uses - 1, 0).sum()) + outside)
