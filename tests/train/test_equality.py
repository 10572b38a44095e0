"""Principle 3: every layout computes the same thing. Losses, norms and gradients in float64."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ATTEMPT = itertools.count()
STEPS = 5


def train_a_little(path: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """On one rank: for each case a fresh world, five steps, and the first step's gradients."""
    import torch
    import torch.distributed as dist

    from penstock.ledger.journal import Journal
    from penstock.meter.clock import StepClock
    from penstock.plan.layout import Layout
    from penstock.run.folder import RunFolder
    from penstock.run.load import load
    from penstock.train.job import build
    from penstock.train.world import join

    answers = []
    for case in cases:
        layout = Layout(**case["layout"])
        run = load(path, case["overrides"])
        folder = RunFolder(Path(path).parent / "equality")
        os.environ["PENSTOCK_ATTEMPT"] = str(case["attempt"])  # a rendezvous of its own
        world = join(layout, "cpu", 60.0)
        journal = Journal(folder.journal, case["attempt"], range(world.rank, world.rank + 1))
        job = build(folder, run, layout, world, journal)
        feed = job.feed(after_step=0)
        losses, norms, grads = [], [], {}
        for step in range(STEPS):
            batch = job.micros(feed.next())
            if step == 0:
                job.stepper.backward(batch, run.batch_tokens)
                for param, summed in zip(
                    job.stepper.replicas.params, job.stepper.replicas.reduce(), strict=True
                ):
                    name = next(n for n, p in job.model.named_parameters() if p is param)
                    whole = torch.distributed.tensor.DTensor.from_local(
                        summed,
                        param.device_mesh,
                        param.placements,
                        shape=param.shape,
                        stride=param.stride(),
                    ).full_tensor()
                    grads[name] = whole.flatten().tolist()
                job.stepper.optimizer.zero_grad()
            clock = StepClock(cuda=False)
            vote = job.stepper.step(batch, run.batch_tokens, 1e-2, {}, clock)
            losses.append(vote.loss)
            norms.append(vote.grad_norm)
        feed.close()
        dist.destroy_process_group()
        answers.append({"losses": losses, "norms": norms, "grads": grads})
    return answers


def case(replicate: int, shard: int, microbatch: int, *overrides: str) -> dict[str, Any]:
    layout = {"replicate": replicate, "shard": shard, "microbatch": microbatch}
    return {"layout": layout, "overrides": list(overrides), "attempt": next(ATTEMPT)}


VARIANTS = {
    "tied": [],
    "untied, qk-norm, no clipping": ["model.tied=false", "model.qk_norm=true", "train.clip=0"],
    # 5 sequences do not divide by 2 or 4 ranks: some get less and add zero-weight microbatches.
    "uneven": ["train.batch_tokens=80"],
    # 3 sequences on 4 ranks: one has nothing at all.
    "idle rank": ["train.batch_tokens=48"],
}
LAYOUTS = {
    2: [(2, 1, 1), (1, 2, 2), (2, 1, 3)],
    4: [(4, 1, 1), (1, 4, 1), (2, 2, 2)],
}


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> Path:
    folder = tmp_path_factory.mktemp("equality")
    path = folder / "run.toml"
    path.write_text(
        f'name = "equality"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 16\nheads = 4\n'
        f'kv_heads = 2\nffn = 24\ntied = true\n[data]\ndataset = "{tiny}"\nsequence = 16\n'
        '[train]\nsteps = 5\nbatch_tokens = 128\nprecision = "fp64"\nlearning_rate = 1e-2\n'
    )
    (folder / "equality").mkdir()
    (folder / "equality" / "plan.json").write_text(json.dumps({"dataset": tiny}))
    return path


@pytest.fixture(scope="module")
def alone(where: Path, ranks: Callable[..., list[Any]]) -> dict[str, Any]:
    cases = [case(1, 1, 8, *overrides) for overrides in VARIANTS.values()]
    return dict(zip(VARIANTS, ranks(1, train_a_little, str(where), cases)[0], strict=True))


@pytest.mark.parametrize("count", LAYOUTS)
def test_every_layout_equals_one_process(
    count: int, where: Path, alone: dict[str, Any], ranks: Callable[..., list[Any]]
) -> None:
    named = [(name, layout) for name in VARIANTS for layout in LAYOUTS[count]]
    cases = [case(*layout, *VARIANTS[name]) for name, layout in named]
    answers = ranks(count, train_a_little, str(where), cases)
    for i, (name, layout) in enumerate(named):
        for rank, answer in enumerate(answers):
            what = f"{name}, layout {layout}, rank {rank}"
            expected = alone[name]
            assert answer[i]["losses"] == pytest.approx(expected["losses"], rel=1e-10), what
            assert answer[i]["norms"] == pytest.approx(expected["norms"], rel=1e-9), what
            assert answer[i]["grads"].keys() == expected["grads"].keys()
            for param, grad in answer[i]["grads"].items():
                assert grad == pytest.approx(expected["grads"][param], rel=1e-9, abs=1e-13), (
                    f"{what}: {param}"
                )


def test_losses_fall_and_variants_differ(alone: dict[str, Any]) -> None:
    """What the test above compares is real training, not a constant."""
    for answer in alone.values():
        assert answer["losses"][-1] < answer["losses"][0]
        assert max(map(abs, answer["grads"]["embed.weight"])) > 0
    assert len({a["losses"][0] for a in alone.values()}) == len(VARIANTS)


def timeouts(layout: dict[str, int]) -> list[float]:
    """The bound of every group that a step waits in, in seconds."""
    from penstock.plan.layout import Layout
    from penstock.train.world import join

    os.environ["PENSTOCK_ATTEMPT"] = "timeouts"
    world = join(Layout(**layout), "cpu", 7.0)
    groups = [world.group("replicate"), world.group("shard")]
    return [g._get_backend(world.device).options._timeout.total_seconds() for g in groups]


def test_every_group_of_a_step_is_bounded(ranks: Callable[..., list[Any]]) -> None:
    for found in ranks(4, timeouts, {"replicate": 2, "shard": 2, "microbatch": 1}):
        assert found == [7.0, 7.0]
