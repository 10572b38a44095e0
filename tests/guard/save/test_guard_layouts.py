"""A checkpoint of any layout goes on in any other: same weights to the bit, same next steps."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import real_ranks
from penstock.guard import checkpoints
from penstock.guard.detect.fingerprints import weights_hash
from penstock.guard.format.published import StoredCheckpoint
from penstock.plan.job.layout import Layout

VOCAB, SEQUENCE, SAMPLES = 41, 8, 6  # an odd number of words: their parts are unequal
ATTEMPT = itertools.count()
WAYS = ("replicate", "shard", "pipeline", "tensor", "context")  # of a layout's name; 1 if left out
RUN = """
name = "layouts"
[model]
layers = 2
hidden = 16
heads = 4
kv_heads = 2
ffn = 24
tied = true
qk_norm = true
[data]
sequence = 8
[train]
steps = 4
batch_tokens = 48
precision = "fp64"
learning_rate = 1e-2
"""


class Training:
    """A model on the ranks of a world, with data of its own; `step` is as in the loop."""

    def __init__(self, path: str, world: Any, layout: Layout, seed: int) -> None:
        from penstock.run.load import load
        from penstock.train.engine import build_engine

        run = load(path, [f"train.seed={seed}"])
        self.world, self.layout = world, layout
        self.engine = build_engine(run, layout, VOCAB, world)

    def losses(self, *steps: int) -> list[float]:
        import numpy as np

        from penstock.data.read.batch import Batch
        from penstock.meter.clock import StepClock
        from penstock.train.parallel.microbatch import RankShare, send_to_device
        from penstock.train.step import unguarded_step

        out = []
        for step in steps:
            whole = np.random.default_rng(step).integers(VOCAB, size=(SAMPLES, SEQUENCE + 1))
            place, of = self.world.data_rank, self.world.data_ranks
            share = RankShare.of(0, SAMPLES, place, of, self.layout.microbatch)
            mine = send_to_device(Batch(whole[share.start : share.stop]), self.world.device)
            own = mine.micros(share.micros, self.layout.microbatch)
            clock = StepClock(cuda=False)
            tokens = SAMPLES * SEQUENCE
            out.append(unguarded_step(self.engine.stepper, own, tokens, 1e-2, clock).loss)
        return out

    def save(self, folder: Path) -> None:
        from penstock.train.state import state_tensors

        held = state_tensors(self.engine.parts, self.engine.optimizer)
        checkpoints.save(folder, 2, held, {}, {"layout": self.layout.to_json()}, self.world)

    def load(self, saved: StoredCheckpoint) -> None:
        from penstock.train.state import state_tensors

        held = state_tensors(self.engine.parts, self.engine.optimizer, copies=True)
        checkpoints.load(saved, held, self.world)
        self.engine.optimizer.updates = 2
        self.engine.optimizer.copy_masters()

    def hash(self) -> str:
        from penstock.train.state import weight_tensors

        held = weight_tensors(self.engine.parts, self.engine.optimizer)
        return weights_hash(held, self.world)


def work(path: str, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """On one rank: in the layout of each task, save a training and go on with those of others."""
    from penstock.train.world.world import join

    answers = []
    for task in tasks:
        layout = Layout(**dict(zip(WAYS, task["layout"], strict=True)), microbatch=2)
        os.environ["PENSTOCK_ATTEMPT"] = str(task["attempt"])  # a rendezvous of its own
        world = join(layout, "cpu", 60.0)
        answer: dict[str, Any] = {}
        if task["save"]:
            own = Training(path, world, layout, seed=0)
            own.losses(1, 2)
            own.save(Path(task["save"]))
            answer["saved"] = (own.hash(), own.losses(3, 4))
        for folder in task["load"]:
            other = Training(path, world, layout, seed=1)
            saved = StoredCheckpoint(Path(folder) / "step-00000002")
            other.load(saved)
            answer[folder] = (other.hash(), other.losses(3, 4))
        real_ranks.leave()
        answers.append(answer)
    return answers


# Who goes on with what: within and across replicas, shards and stages, up and down in ranks.
LAUNCHES: list[tuple[int, dict[str, list[str]], bool]] = [
    (1, {"1x1": ["1x1"]}, True),
    (
        2,
        {
            "1x2": ["1x1", "1x2"],
            "1x1x2": ["1x1", "1x2", "1x1x2"],
            "1x1x1x2": ["1x1", "1x2", "1x1x1x2"],
            "1x1x1x1x2": ["1x1x1x2", "1x1x1x1x2"],
        },
        True,
    ),
    (
        4,
        {
            "4x1": ["1x1", "4x1"],
            "2x2": ["1x2", "4x1", "2x2"],
            "1x4": ["1x1", "2x2", "1x4"],
            "1x2x2": ["1x4", "1x1x2", "1x2x2"],
            "1x2x1x2": ["2x2", "1x1x1x2", "1x1x1x1x2", "1x2x1x2"],
            "1x1x1x2x2": ["1x2x1x2", "1x1x1x2x2"],
        },
        True,
    ),
    (
        2,
        {
            "1x2": ["4x1", "2x2", "1x4", "1x2x2", "1x2x1x2"],
            "1x1x2": ["1x2x2"],
            "1x1x1x2": ["1x4", "1x1x2", "1x1x1x2x2"],
        },
        False,
    ),
    (
        1,
        {
            "1x1": [
                *("1x2", "4x1", "2x2", "1x4", "1x1x2", "1x2x2"),
                *("1x1x1x2", "1x1x1x1x2", "1x2x1x2", "1x1x1x2x2"),
            ]
        },
        False,
    ),
]
# In `make test`: each parallelism once, and two of them together.
FEW = ("1x1", "1x2", "1x1x2", "1x1x1x2", "1x1x1x1x2", "2x2", "1x2x1x2")
Launch = tuple[int, dict[str, list[str]], bool]


def launches(every: bool) -> list[Launch]:
    """Return the launches of all layouts, or of a few."""
    if every:
        return LAUNCHES
    return [
        (
            count,
            {to: [by for by in loads if by in FEW] for to, loads in of.items() if to in FEW},
            save,
        )
        for count, of, save in LAUNCHES
    ]


Result = tuple[str, list[float]]  # hash of the weights, losses of the next two steps


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "all"]
)
def history(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    ranks: Callable[..., list[Any]],
) -> dict[tuple[str, str], list[Result]]:
    """{(saver or "saved", layout): what it had, on every rank}."""
    home = tmp_path_factory.mktemp("layouts")
    path = home / "run.toml"
    path.write_text(RUN)
    made: dict[tuple[str, str], list[Result]] = {}
    for count, loads, save in launches(request.param):
        tasks = [
            {
                "layout": [int(ways) for ways in f"{layout}x1x1x1".split("x")[: len(WAYS)]],
                "save": str(home / layout) if save else None,
                "load": [str(home / saver) for saver in savers],
                "attempt": next(ATTEMPT),
            }
            for layout, savers in loads.items()
        ]
        for answers in ranks(count, work, str(path), tasks):
            for layout, answer in zip(loads, answers, strict=True):
                for folder, result in answer.items():
                    made.setdefault((Path(folder).name, layout), []).append(result)
    return made


def test_what_one_layout_saved_others_go_on_with(
    history: dict[tuple[str, str], list[Result]],
) -> None:
    savers = [layout for by, layout in history if by == "saved"]
    assert len(savers) >= len(FEW)
    for saver in savers:
        (weights, losses), *others = history["saved", saver]
        assert all(other == (weights, losses) for other in others)  # the ranks agree
        loaders = [loader for by, loader in history if by == saver]
        assert len(loaders) >= 2
        for loader in loaders:
            for found, went_on in history[saver, loader]:
                assert found == weights, f"{saver} → {loader}"
                assert went_on == pytest.approx(losses, rel=1e-10), f"{saver} → {loader}"
                if loader == saver:
                    assert went_on == losses  # bit for bit on the same layout


def test_what_is_compared_is_one_and_the_same_training(
    history: dict[tuple[str, str], list[Result]],
) -> None:
    expected = history["saved", "1x1"][0][1]
    for (by, _), found in history.items():
        if by == "saved":
            assert found[0][1] == pytest.approx(expected, rel=1e-10)
    assert expected[0] != pytest.approx(expected[1], rel=1e-6)
