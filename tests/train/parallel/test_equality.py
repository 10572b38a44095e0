"""Principle 3: every layout computes the same thing. Losses, norms and gradients in float64."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equality_cases import (
    Answer,
    assert_equal,
    masked_set,
    on_one_rank,
    on_ranks,
    prepared,
)

# What is trained, and on which dataset.
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "tied": ("plain", []),
    "untied, qk-norm, no clipping": (
        "plain",
        ["model.tied=false", "model.qk_norm=true", "train.clip=0"],
    ),
    # A prime number of words: whoever shares them gets unequal parts.
    "biases, odd vocabulary": ("plain", ["model.preset=qwen2.5-0.5b", "model.vocab=307"]),
    # 5 sequences do not divide by 2 or 4 ranks: some get less and add zero-weight microbatches.
    "uneven": ("plain", ["train.batch_tokens=80"]),
    # 3 sequences on 4 ranks: one has nothing at all.
    "idle rank": ("plain", ["train.batch_tokens=48"]),
    # Each document as if alone, and only some targets count.
    "packed": ("masked", ["data.across_documents=false", "model.tied=false"]),
}
# What replicas and shards must cope with, and what those must that share a layer.
DATA = ("packed", "idle rank", "uneven", "tied")
MODEL = ("packed", "biases, odd vocabulary", "untied, qk-norm, no clipping", "tied")
# Ranks: layouts and the variants that are trained in them, the hardest first.
LAYOUTS: dict[int, list[tuple[dict[str, Any], tuple[str, ...]]]] = {
    2: [
        ({"replicate": 2}, tuple(VARIANTS)),
        ({"replicate": 2, "microbatch": 3}, DATA),
        ({"shard": 2, "microbatch": 2}, tuple(VARIANTS)),
        ({"tensor": 2, "microbatch": 3}, MODEL),
        ({"tensor": 2, "microbatch": 4, "recompute": "selective"}, ("tied",)),
        ({"context": 2, "microbatch": 3}, MODEL),
        ({"context": 2, "microbatch": 4, "recompute": "full"}, ("packed",)),
    ],
    4: [
        ({"replicate": 4}, DATA),
        ({"shard": 4}, DATA),
        ({"replicate": 2, "shard": 2, "microbatch": 2}, DATA),
        ({"replicate": 2, "tensor": 2, "microbatch": 2}, ("uneven", "packed")),
        ({"shard": 2, "tensor": 2, "microbatch": 2}, ("uneven", *MODEL)),
        ({"replicate": 2, "context": 2, "microbatch": 2}, ("uneven", "packed")),
        ({"shard": 2, "context": 2, "microbatch": 2}, ("packed", "uneven", "tied")),
        ({"context": 2, "tensor": 2, "microbatch": 4}, MODEL),
        ({"context": 4, "microbatch": 4}, ("packed",)),
    ],
    8: [({"shard": 2, "context": 2, "tensor": 2, "microbatch": 4}, ("tied", "packed"))],
}


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, home: Path, tiny: str) -> str:
    datasets = {"plain": tiny, "masked": masked_set(home, "equality-masked")}
    return prepared(tmp_path_factory.mktemp("equality"), datasets)


@pytest.fixture(scope="module")
def alone(where: str, ranks: Callable[..., list[Any]]) -> dict[str, Answer]:
    return on_one_rank(ranks, where, VARIANTS)


@pytest.mark.parametrize(
    ("count", "variants"),
    [
        (2, slice(None)),
        (4, slice(0, 1)),
        pytest.param(4, slice(1, None), marks=pytest.mark.slow),
        pytest.param(8, slice(None), marks=pytest.mark.slow),
    ],
    ids=["2", "4", "4, all others", "8"],
)
def test_every_layout_equals_one_process(
    count: int,
    variants: slice,
    where: str,
    alone: dict[str, Answer],
    ranks: Callable[..., list[Any]],
) -> None:
    named = [(name, layout) for layout, names in LAYOUTS[count] for name in names[variants]]
    answers = on_ranks(ranks, count, where, VARIANTS, named)
    for (name, layout), *found in zip(named, *answers, strict=True):
        assert_equal(alone[name], found, f"{name}, layout {layout}")


def test_losses_fall_and_variants_differ(alone: dict[str, Answer]) -> None:
    """What the test above compares is real training, not a constant."""
    for name, answer in alone.items():
        assert answer["losses"][-1] < answer["losses"][0], name
        assert abs(answer["grads"]["embed.weight"]).max() > 0
    assert len({answer["losses"][0] for answer in alone.values()}) == len(VARIANTS)


def timeouts(layout: dict[str, Any]) -> list[float]:
    """The bound of every group that a step waits in, in seconds."""
    from penstock.plan.job.layout import Layout
    from penstock.train.world.world import DIMENSIONS, join

    os.environ["PENSTOCK_ATTEMPT"] = "timeouts"
    world = join(Layout(**layout), "cpu", 7.0)
    world.gather(None)  # a rank that is gone already would break the others' joining
    groups = [world.group(name) for name in (*DIMENSIONS, "fsdp")]
    return [g._get_backend(world.device).options._timeout.total_seconds() for g in groups]


def test_every_group_of_a_step_is_bounded(ranks: Callable[..., list[Any]]) -> None:
    for found in ranks(4, timeouts, {"replicate": 2, "shard": 2, "microbatch": 1}):
        assert found == [7.0] * 6
