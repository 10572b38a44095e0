"""Principle 3, for tests: train a few steps on real ranks, and compare with one process.

path = equality_cases.prepared(folder, {"plain": "tiny@…"})
alone = ranks(1, train_a_little, path, [case({}, "model.tied=true")])[0]
answers = ranks(2, train_a_little, path, [case({"tensor": 2}, "model.tied=true")])
assert_equal(alone[0], [answer[0] for answer in answers], "tensor 2")
"""

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import real_ranks
from made_sets import made_set

STEPS = 3  # the second and third have what the optimizer remembers
Case = dict[str, Any]
Answer = dict[str, Any]  # losses, norms, grads and buffers by name, evaluated, logits
Variants = Mapping[str, tuple[str, list[str]]]  # by name: the dataset, and fields of the run
Ranks = Callable[..., list[Any]]  # the fixture
_attempt = itertools.count()


def prepared(folder: Path, datasets: Mapping[str, str]) -> str:
    """A run file in `folder`, and beside it a run's folder for each dataset; the file's path."""
    path = folder / "run.toml"
    path.write_text(
        f'name = "equality"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 16\nheads = 4\n'
        "kv_heads = 2\nffn = 24\ntied = true\n[data]\nsequence = 16\n"
        '[train]\nsteps = 5\nbatch_tokens = 128\nprecision = "fp64"\nlearning_rate = 1e-2\n'
    )
    for name, dataset in datasets.items():
        (folder / name).mkdir()
        (folder / name / "plan.json").write_text(json.dumps({"dataset": dataset}))
    return str(path)


def case(layout: Mapping[str, Any], *overrides: str, data: str = "plain") -> Case:
    """Some steps in `layout` (1 × 1 with microbatches of 1 where it says nothing)."""
    return {
        "layout": dict(layout),
        "overrides": list(overrides),
        "attempt": next(_attempt),
        "data": data,
    }


def train_a_little(
    path: str, cases: Sequence[Case], kind: str = "cpu", backend: str | None = None
) -> list[Answer]:
    """On one rank: a few steps of the loop's own calls for each case.

    Cases in a row that have the same layout share a world, since making one takes its time.
    """
    import torch

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
    joined: Layout | None = None
    for one in cases:
        layout = Layout(**one["layout"])
        run = load(path, one["overrides"])
        folder = RunFolder(Path(path).parent / one["data"])
        if replace(layout, microbatch=1) != joined:
            if joined is not None:
                real_ranks.leave()
            joined = replace(layout, microbatch=1)
            os.environ["PENSTOCK_ATTEMPT"] = str(one["attempt"])  # a rendezvous of its own
            world = join(layout, kind, 60.0 if kind == "cpu" else 300.0, backend)
        journal = Journal(folder.journal, one["attempt"], range(world.rank, world.rank + 1))
        pulse = Pulse(folder.scratch, world.rank, 0)
        trainer = build(RankContext(folder, run, layout, world, journal, pulse))
        engine, batches = trainer.engine, trainer.batches
        grads = first_gradients(engine)
        feed = batches.feed(after_step=0)
        votes = []
        for _ in range(STEPS):
            samples = feed.next()
            counted = batches.count(samples)
            batch, tokens = counted.weigh(batches.micros(samples)), counted.tokens
            clock = StepClock(world.cuda)
            votes.append(unguarded_step(engine.stepper, batch, tokens, 1e-2, clock))
        feed.close()
        trained = engine.parts.trained()
        evaluated = world.sum_(engine.runner.evaluate(batch)) / tokens
        kept = engine.parts.trained()  # what would be saved now
        assert all(kept[name] is param for name, param in trained.items())
        seen_bs = torch.arange(run.sequence, device=world.device).view(1, -1) % batches.stream.vocab
        engine.parts.train(False)
        logits_bsv = engine.runner.logits(seen_bs)
        answers.append(
            {
                "losses": [vote.loss for vote in votes],
                "norms": [vote.grad_norm for vote in votes],
                "figures": list(votes[-1].figures),
                "grads": grads,
                "evaluated": evaluated.item(),
                "logits": logits_bsv[0, ::4].double().cpu().numpy(),
                "buffers": {n: b.tolist() for n, b in engine.parts.named_buffers().items()},
            }
        )
    real_ranks.leave()
    return answers


def masked_set(home: Path, name: str) -> str:
    """A dataset of short documents, a third of whose tokens count; its id."""
    draw = np.random.default_rng(0)
    tokens, mask = draw.integers(0, 60, 4000), draw.random(4000) < 0.3
    return made_set(home / "datasets", tokens, list(range(0, 4000, 11)), mask, name=name).id


def on_one_rank(ranks: Ranks, where: str, variants: Variants) -> dict[str, Answer]:
    """What every layout is held to."""
    cases = [case({"microbatch": 8}, *more, data=data) for data, more in variants.values()]
    return dict(zip(variants, ranks(1, train_a_little, where, cases)[0], strict=True))


def on_ranks(
    ranks: Ranks,
    count: int,
    where: str,
    variants: Variants,
    named: Sequence[tuple[str, Mapping[str, Any]]],
) -> list[list[Answer]]:
    """By rank, then by (variant, layout) as in `named`."""
    cases = [case(layout, *variants[name][1], data=variants[name][0]) for name, layout in named]
    return ranks(count, train_a_little, where, cases)


def first_gradients(engine: Any) -> dict[str, np.ndarray]:
    """Filled in by the first step: whole gradients as they reach the optimizer.

    A stage of a pipeline has those of its own parameters.
    """
    from penstock.train.parallel.parts import full_tensor, sharded_like

    trained, update = engine.parts.trained(), engine.stepper.update
    grads: dict[str, np.ndarray] = {}

    def watched(summed: dict[str, Any], norm: float, rate: float, clock: Any) -> None:
        if not grads:
            for name, grad in summed.items():
                held = full_tensor(sharded_like(trained[name], grad)).double().cpu()
                grads[name] = held.numpy().copy()  # the update may scale it in place
        update(summed, norm, rate, clock)

    engine.stepper.update = watched
    return grads


def assert_equal(
    expected: Answer,
    answers: Sequence[Answer],
    what: str,
    rel: float = 1e-9,
    least: float | None = 1e-13,
) -> None:
    """What each rank found is what one process found; together they have every gradient.

    `least` is the difference that counts for nothing in single gradients and logits. None, for
    narrow numbers: each tensor is compared as one vector, by the length of the difference.
    """
    held: set[str] = set()
    for rank, answer in enumerate(answers):
        where = f"{what}, rank {rank}"
        assert answer["losses"] == pytest.approx(expected["losses"], rel=rel / 10), where
        for name, grad in answer["grads"].items():
            _near(grad, expected["grads"][name], f"{where}: gradient of {name}", rel, least)
        assert answer["norms"] == pytest.approx(expected["norms"], rel=rel), where
        assert answer["evaluated"] == pytest.approx(expected["evaluated"], rel=rel / 10), where
        _near(answer["logits"], expected["logits"], f"{where}: logits", rel, least)
        held |= answer["grads"].keys()
    assert held == expected["grads"].keys(), what


def _near(
    found: np.ndarray, expected: np.ndarray, what: str, rel: float, least: float | None
) -> None:
    if least is not None:
        np.testing.assert_allclose(found, expected, rel, least, err_msg=what)
        return
    assert found.shape == expected.shape, what
    off = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert off <= rel, f"{what}: off by {off:.2g} of its length"
