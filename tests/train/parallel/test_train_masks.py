"""Masks, skipped samples and documents kept apart: any layout computes what one process does."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import real_ranks
from made_sets import made_set

ATTEMPT = itertools.count()
STEPS = 3


def train_a_little(path: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """On one rank: for each case a fresh world and a few steps of the loop's own calls."""

    from penstock.guard.detect.pulse import Pulse
    from penstock.ledger.journal.writer import Journal
    from penstock.meter.clock import StepClock
    from penstock.plan.job.layout import Layout
    from penstock.run.folder import RunFolder
    from penstock.run.load import load
    from penstock.train.loop import build
    from penstock.train.rank_context import RankContext
    from penstock.train.step import unguarded_step
    from penstock.train.world.world import join

    answers = []
    for case in cases:
        layout = Layout(**case["layout"])
        run = load(path, case["overrides"])
        folder = RunFolder(Path(path).parent / case["folder"])
        os.environ["PENSTOCK_ATTEMPT"] = str(case["attempt"])
        world = join(layout, "cpu", 60.0)
        journal = Journal(folder.journal, case["attempt"], range(world.rank, world.rank + 1))
        pulse = Pulse(folder.scratch, world.rank, 0)
        trainer = build(RankContext(folder, run, layout, world, journal, pulse))
        batches = trainer.batches
        feed = batches.feed(after_step=0)
        found: dict[str, list[float]] = {"losses": [], "norms": [], "counted": []}
        for _ in range(STEPS):
            samples = feed.next()
            tokens = batches.count(samples).tokens
            clock = StepClock(cuda=False)
            micros = batches.micros(samples)
            vote = unguarded_step(trainer.engine.stepper, micros, tokens, 1e-2, clock)
            found["losses"].append(vote.loss)
            found["norms"].append(vote.grad_norm)
            found["counted"].append(tokens)
        feed.close()
        trainer.evaluator.run(STEPS)
        real_ranks.leave()
        answers.append(found)
    return answers


def case(folder: str, replicate: int, shard: int, *overrides: str) -> dict[str, Any]:
    layout = {"replicate": replicate, "shard": shard, "microbatch": 2}
    return {
        "layout": layout,
        "overrides": list(overrides),
        "attempt": next(ATTEMPT),
        "folder": folder,
    }


# Which dataset, and how it is read.
KINDS = {
    "plain": ("plain", []),
    "masked": ("masked", []),
    "apart": ("plain", ["data.across_documents=false"]),
    "masked, apart": ("masked", ["data.across_documents=false"]),
    "damaged": ("damaged", ["data.on_bad_shard=skip"]),
}


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    folder = tmp_path_factory.mktemp("masks")
    draw = np.random.default_rng(0)
    tokens, starts = draw.integers(0, 60, 4000), list(range(0, 4000, 11))
    sets = {
        "plain": made_set(home / "datasets", tokens, starts, name="plain"),
        "masked": made_set(home / "datasets", tokens, starts, draw.random(4000) < 0.3, name="mask"),
        # Shards of 100 tokens, of which some will not be readable.
        "damaged": made_set(home / "datasets", tokens, starts, shard_tokens=100, name="damaged"),
    }
    for shard in sets["damaged"].manifest.shards[::5]:
        path = sets["damaged"].folder / "shards" / f"{shard.blake3}.bin"
        path.write_bytes(b"?" + path.read_bytes()[1:])
    path = folder / "run.toml"
    path.write_text(
        f'name = "masks"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 16\nheads = 4\n'
        "kv_heads = 2\nffn = 24\ntied = true\n[data]\nsequence = 16\n"
        '[train]\nsteps = 3\nbatch_tokens = 144\nprecision = "fp64"\nlearning_rate = 1e-2\n'
    )
    for name, dataset in sets.items():
        (folder / name).mkdir()
        (folder / name / "plan.json").write_text(json.dumps({"dataset": dataset.id}))
    return path


@pytest.fixture(scope="module")
def alone(where: Path, ranks: Callable[..., list[Any]]) -> dict[str, Any]:
    cases = [case(folder, 1, 1, *overrides) for folder, overrides in KINDS.values()]
    return dict(zip(KINDS, ranks(1, train_a_little, str(where), cases)[0], strict=True))


@pytest.mark.parametrize("count", [2, 4])
def test_every_layout_equals_one_process(
    count: int, where: Path, alone: dict[str, Any], ranks: Callable[..., list[Any]]
) -> None:
    """Nine samples do not divide by the ranks, and their counted tokens even less."""
    ways = {2: [(2, 1), (1, 2)], 4: [(2, 2)]}[count]
    named = [(kind, layout) for kind in KINDS for layout in ways]
    cases = [case(KINDS[kind][0], *layout, *KINDS[kind][1]) for kind, layout in named]
    for rank, answer in enumerate(ranks(count, train_a_little, str(where), cases)):
        for found, (kind, layout) in zip(answer, named, strict=True):
            what = f"{kind}, layout {layout}, rank {rank}"
            assert found["counted"] == alone[kind]["counted"], what
            assert found["losses"] == pytest.approx(alone[kind]["losses"], rel=1e-10), what
            assert found["norms"] == pytest.approx(alone[kind]["norms"], rel=1e-9), what


def test_what_does_not_count_is_not_divided_by(alone: dict[str, Any]) -> None:
    assert alone["plain"]["counted"] == alone["apart"]["counted"] == [144] * STEPS
    for counted in alone["masked"]["counted"]:
        assert 20 < counted < 80
    assert any(counted < 144 for counted in alone["damaged"]["counted"])
    # The first loss of fresh weights is near ln 60 whatever share of the tokens counts.
    for found in alone.values():
        assert 3 < found["losses"][0] < 8
    assert len({found["losses"][0] for found in alone.values()}) == len(KINDS)


def test_a_damaged_block_is_on_record_once(where: Path, alone: dict[str, Any]) -> None:
    from penstock.ledger.journal.read import read_events
    from penstock.ledger.journal.records import journal_files

    files = journal_files(where.parent / "damaged" / "journal", "events")
    for file in files[:1]:
        events = [e.payload for e in read_events(file.path) if e.kind == "data_skipped"]
        assert events
        assert len({(e["shard"], e["block"]) for e in events}) == len(events)
        first = events[0]
        assert first["dataset"].startswith("damaged@")
        assert first["shard"].endswith(".bin")
        low, high = first["samples"]
        assert low <= high <= low + 8
