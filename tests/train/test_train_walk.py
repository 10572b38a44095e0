"""docs/design/walk.md names the files of one training step and of one checkpoint, in order."""

import json
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import penstock
from made_sets import made_set

PACKAGE = Path(penstock.__file__).parent
WALK = Path(__file__).parents[2] / "docs/design/walk.md"
STEADY = 4  # caches are warm, and nothing is due
SAVED = 5
MOST_FILES = 25


def walked(path: str) -> dict[str, dict[str, list[str]]]:
    """Train a few steps on this rank; list the files whose functions ran, by step and thread."""
    from penstock.guard.detect.pulse import Pulse
    from penstock.ledger.journal.writer import Journal
    from penstock.meter.clock import StepClock
    from penstock.plan.job.layout import Layout
    from penstock.run.folder import RunFolder
    from penstock.run.load import load
    from penstock.train.loop import build
    from penstock.train.rank_context import RankContext
    from penstock.train.world.world import join

    found: dict[str, list[str]] = {}

    def profile(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            name = str(Path(frame.f_code.co_filename).relative_to(PACKAGE))
            thread = "loop" if threading.current_thread() is threading.main_thread() else "beside"
            files = found.setdefault(thread, [])
            if name not in files:
                files.append(name)

    run, folder = load(path), RunFolder(Path(path).parent / "walk")
    layout = Layout(replicate=2, microbatch=2)
    os.environ["PENSTOCK_ATTEMPT"] = "walk"
    world = join(layout, "cpu", 60.0)
    journal = Journal(folder.journal, 0, range(world.rank, world.rank + 1))
    rank = RankContext(folder, run, layout, world, journal, Pulse(folder.scratch, world.rank, 0))
    threading.setprofile(profile)  # for the threads that are started from here on
    trainer = build(rank)
    trainer.resume()
    trainer.warm_up(0)
    feed = trainer.batches.feed(after_step=0)
    clock = StepClock(world.cuda)
    if trainer.progress.pending:
        trainer.finish_step()
    walks = {}
    for step in range(1, SAVED + 1):
        found.clear()
        sys.setprofile(profile)
        with trainer.tracer.trace_if_requested(step, clock):
            trainer.train_step(step, feed, clock)
        trainer.batches.meter.record(feed)
        trainer.finish_step()
        if step == SAVED:
            trainer.saver.finish()
        sys.setprofile(None)
        walks[str(step)] = {thread: list(files) for thread, files in found.items()}
    threading.setprofile(None)  # type: ignore[arg-type]
    feed.close()
    trainer.saver.finish()
    return walks


@pytest.fixture(scope="module")
def walks(
    tmp_path_factory: pytest.TempPathFactory, home: Path, ranks: Callable[..., list[Any]]
) -> dict[str, dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("walk")
    tokens = np.random.default_rng(0).integers(0, 60, 20_000)
    dataset = made_set(home / "datasets", tokens, list(range(0, 20_000, 11)), name="walk")
    path = folder / "run.toml"
    path.write_text(
        f'name = "walk"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 16\nheads = 4\n'
        "kv_heads = 2\nffn = 24\ntied = true\n[data]\nsequence = 16\n[train]\nsteps = 9\n"
        'batch_tokens = 128\nprecision = "fp32"\nlearning_rate = 1e-2\n'
        f'[guard]\ncheckpoint = "{SAVED} steps"\nfast = "never"\n'
    )
    (folder / "walk").mkdir()
    (folder / "walk" / "plan.json").write_text(json.dumps({"dataset": dataset.id}))
    return ranks(2, walked, str(path))[0]


def listed(heading: str) -> list[str]:
    """Return the files that a section of the walk names, in order."""
    section = WALK.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)


def test_a_steady_step_runs_the_files_that_the_walk_names(
    walks: dict[str, dict[str, list[str]]],
) -> None:
    step = walks[str(STEADY)]["loop"]
    assert step == listed("One training step")
    assert len(step) <= MOST_FILES


def test_a_checkpoint_runs_the_files_that_the_walk_names(
    walks: dict[str, dict[str, list[str]]],
) -> None:
    step_files = set(walks[str(STEADY)]["loop"])
    saved = [name for name in walks[str(SAVED)]["loop"] if name not in step_files]
    reads = {name for step in range(1, SAVED) for name in walks[str(step)].get("beside", ())}
    beside = [n for n in walks[str(SAVED)]["beside"] if n not in {*step_files, *saved, *reads}]
    named = listed("One checkpoint")
    assert sorted(named) == sorted([*saved, *beside])
