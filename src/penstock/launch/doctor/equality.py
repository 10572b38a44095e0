"""The check that layouts compute the same: a tiny model on these accelerators, against one process.

Each layout that a run may use trains a few steps of one small problem. Losses and gradient norms
must be those of one process: in float64 to rounding on CPUs, in float32 within a tolerance on GPUs.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.data.format.writer import DatasetWriter
from penstock.plan.job import legal
from penstock.plan.job.layout import Layout
from penstock.run.schema.run import Run

STEPS = 3  # the second and third depend on what the optimizer remembers
RATE = 1e-2
TIMEOUT_S = 30.0
NEAR = {"cpu": 1e-9, "cuda": 2e-3}
LAYERS, HEADS, KV_HEADS, VOCAB, TOKENS = 4, 4, 2, 60, 40_000
# Heads of 32 and pieces of 128 tokens: what the kernels of CUDA want.
SIZES = {
    "cpu": {"hidden": 16, "ffn": 24, "sequence": 16, "batch": 8, "precision": "fp64"},
    "cuda": {"hidden": 128, "ffn": 256, "sequence": 512, "batch": 8, "precision": "fp32"},
}
_DIMENSIONS = ("replicate", "shard", "tensor", "pipeline", "context")


def layouts_to_try(ranks: int, run: Run | None, kind: str) -> list[dict[str, Any]]:
    """Return the layouts that a run may use on so many ranks, smallest ways first.

    A run file that names its ways is held to those; a model's own limits hold too.
    """
    asked = legal.asked_layout(run) if run is not None and run.layout is not None else None
    found = []
    for layout in _candidates(ranks):
        if _allowed(Layout(**layout), run, asked, kind) and layout not in found:
            found.append(layout)
    return found


def _candidates(ranks: int) -> Iterator[dict[str, Any]]:
    """Yield every kind of split alone, and each with sharding, over all ranks."""
    if ranks < 2:
        return
    microbatch = 2
    yield {"replicate": ranks, "microbatch": microbatch}
    yield {"shard": ranks, "microbatch": microbatch}
    if ranks % 2:
        return
    half = ranks // 2
    if half > 1:
        yield {"replicate": 2, "shard": half, "microbatch": microbatch}
    for way in ("tensor", "pipeline", "context"):
        rest = {"shard": half} if half > 1 else {}
        yield {way: 2, **rest, "microbatch": microbatch}
    if half > 1 and half % 2 == 0:
        rest = {"shard": half // 2} if half > 2 else {}
        yield {"tensor": 2, "pipeline": 2, **rest, "microbatch": microbatch}


def _allowed(layout: Layout, run: Run | None, asked: Layout | None, kind: str) -> bool:
    if asked is not None and any(
        getattr(layout, name) > 1 and getattr(asked, name) == 1 for name in _DIMENSIONS
    ):
        return False
    if run is None:
        return True
    shape = None if run.model.module else run.model.base()
    if shape is None:
        return layout.model_ways == 1
    return not legal.problems(run, shape, layout, "cpu" if kind == "cpu" else "")


def prepare(folder: Path, kind: str) -> str:
    """Write the small problem: a dataset, a run file and a run's folder; return the file's path."""
    sizes = SIZES[kind]
    draw = np.random.default_rng(0)
    with DatasetWriter(folder / "datasets", "doctor", VOCAB, b"{}") as writer:
        for _ in range(TOKENS // 400):
            # A walk of small steps: something that can be learned.
            steps = draw.integers(-2, 3, 400).cumsum() % VOCAB
            writer.add(steps.astype(np.uint16))
        dataset = writer.finish({"kind": "doctor"}, {}, {})
    path = folder / "run.toml"
    path.write_text(
        f'name = "doctor"\ndir = "{folder}"\n'
        f"[model]\nlayers = {LAYERS}\nhidden = {sizes['hidden']}\nheads = {HEADS}\n"
        f"kv_heads = {KV_HEADS}\nffn = {sizes['ffn']}\nvocab = {VOCAB}\ntied = false\n"
        f"[data]\nsequence = {sizes['sequence']}\n"
        f"[train]\nsteps = 5\nbatch_tokens = {int(sizes['sequence']) * int(sizes['batch'])}\n"  # type: ignore[call-overload]
        f'precision = "{sizes["precision"]}"\nlearning_rate = {RATE}\ncompile = "off"\n'
    )
    where = {"id": dataset.name, "at": str(dataset.absolute())}
    (folder / "doctor").mkdir()
    (folder / "doctor" / "plan.json").write_text(json.dumps({"dataset": where}))
    return str(path)


def train_a_little(path: str, layout: Layout, kind: str, attempt: int) -> dict[str, list[float]]:
    """Train some steps in a world of this layout; return losses and gradient norms.

    Ranks meet under the number of the attempt, which is used once.
    """
    from penstock.guard.detect.pulse import Pulse
    from penstock.ledger.journal.writer import Journal
    from penstock.meter.clock import StepClock
    from penstock.run.folder import RunFolder
    from penstock.run.load import load
    from penstock.train.loop import build
    from penstock.train.rank_context import RankContext
    from penstock.train.step import unguarded_step
    from penstock.train.world.world import join

    run, folder = load(path), RunFolder(Path(path).parent / "doctor")
    os.environ["PENSTOCK_ATTEMPT"] = f"layout-{attempt}"
    world = join(layout, kind, TIMEOUT_S)
    journal = Journal(folder.journal, attempt, range(world.rank, world.rank + 1))
    pulse = Pulse(folder.make_scratch(), world.rank, 0)
    trainer = build(RankContext(folder, run, layout, world, journal, pulse))
    feed = trainer.batches.feed(after_step=0)
    votes = []
    for _ in range(STEPS):
        samples = feed.next()
        batch, counted = trainer.batches.micros(samples), trainer.batches.count(samples)
        batch, tokens = counted.weigh(batch), counted.tokens
        clock = StepClock(world.cuda)
        votes.append(unguarded_step(trainer.engine.stepper, batch, tokens, RATE, clock))
    feed.close()
    journal.close()
    return {
        "losses": [float(vote.loss) for vote in votes],
        "norms": [float(vote.grad_norm) for vote in votes],
    }


def differences(
    alone: dict[str, Sequence[float]], found: dict[str, Sequence[float]], kind: str
) -> str:
    """Return where a layout's numbers leave those of one process; "" where they do not."""
    near = NEAR[kind]
    for what, bound in (("losses", near / 10), ("norms", near)):
        for step, (one, other) in enumerate(zip(alone[what], found[what], strict=True), 1):
            if not math.isclose(one, other, rel_tol=bound):
                return f"{what[:-1]} {other:.9g} at step {step}, and {one:.9g} in one process"
    return ""


def leave(ranks: int) -> None:
    """Leave the world together with all its ranks, so that they can join another."""
    import torch.distributed as dist
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    dist.barrier()
    _clear_sharding_prop_cache()  # torch would take meshes of the next world for those of this one
    dist.destroy_process_group()


def describe(layout: dict[str, Any]) -> str:
    """Return a layout in few words: "tensor 2, shard 2"."""
    return ", ".join(f"{k} {v}" for k, v in layout.items() if k != "microbatch" and v > 1)
