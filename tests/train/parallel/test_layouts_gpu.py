"""The layouts' way over a GPU: several ranks share one, over gloo, and train as one rank does.

python -m pytest -m gpu tests/train/parallel/test_layouts_gpu.py
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import sends_by_host
from equality_cases import (
    Answer,
    Case,
    Ranks,
    assert_equal,
    case,
    prepared,
    train_a_little,
)
from made_sets import made_set

pytestmark = pytest.mark.gpu
# Heads of 32 and pieces of 128 tokens: what the kernels of CUDA want.
SHAPE = [
    *("model.hidden=128", "model.ffn=256", "data.sequence=512", "train.batch_tokens=4096"),
    "train.compile=off",
]
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "fp32": ("plain", ["train.precision=fp32", "model.qk_norm=true", "model.layers=4"]),
    "bf16, untied": ("plain", ["train.precision=bf16", "model.tied=false"]),
    "fp32, packed": ("masked", ["train.precision=fp32", "data.across_documents=false"]),
    "bf16, compiled": ("plain", ["train.precision=bf16", "train.compile=on"]),
}
NEAR = {"fp32": 2e-3, "bf16": 0.15}  # of gradients and norms; losses are ten times nearer
TIMEOUT_S = 120.0  # compilers may be at work
LAYOUTS: dict[int, list[Mapping[str, int]]] = {
    2: [
        {"replicate": 2, "microbatch": 2},
        {"shard": 2, "microbatch": 2},
        {"tensor": 2, "microbatch": 4},
        {"context": 2, "microbatch": 4},
        {"pipeline": 2, "microbatch": 1},
        {"pipeline": 2, "interleave": 2, "microbatch": 3},
    ],
    4: [
        {"replicate": 2, "shard": 2, "microbatch": 2},
        {"shard": 2, "tensor": 2, "microbatch": 2},
        {"context": 2, "tensor": 2, "microbatch": 4},
        {"pipeline": 4, "microbatch": 2},
        {"pipeline": 2, "shard": 2, "microbatch": 2},
        {"pipeline": 2, "tensor": 2, "microbatch": 2},
    ],
}


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, home: Path, tiny: str) -> str:
    draw = np.random.default_rng(0)
    tokens, starts = draw.integers(0, 60, 60_000), list(range(0, 60_000, 111))
    mask = draw.random(60_000) < 0.3
    masked = made_set(home / "datasets", tokens, starts, mask, name="gpu-masked")
    folder = tmp_path_factory.mktemp("layouts-gpu")
    return prepared(folder, {"plain": tiny, "masked": masked.id})


@pytest.fixture(scope="module")
def alone(where: str, ranks: Ranks) -> Callable[[str], Answer]:
    """What one rank finds; each variant when it is first asked for."""

    @cache
    def of(name: str) -> Answer:
        data, more = VARIANTS[name]
        one = case({"microbatch": 4}, *SHAPE, *more, data=data)
        ((found,),) = ranks(1, train_a_little, where, [one], "cuda", timeout_s=TIMEOUT_S)
        return found

    return of


def over_gloo(path: str, cases: list[Case]) -> list[Answer]:
    sends_by_host.install()
    return train_a_little(path, cases, "cuda", "gloo")


@pytest.mark.parametrize(
    ("count", "layout"),
    [(count, layout) for count, layouts in LAYOUTS.items() for layout in layouts],
    ids=lambda value: str(value) if isinstance(value, int) else "-".join(map(str, value)),
)
def test_layouts_on_one_gpu_train_as_one_rank_does(
    count: int,
    layout: Mapping[str, int],
    where: str,
    alone: Callable[[str], Answer],
    ranks: Ranks,
) -> None:
    pieces = layout.get("pipeline", 1) * layout.get("interleave", 1)
    # The others have too few layers for four pieces.
    names = ["fp32", "bf16, untied"] if pieces < 4 else ["fp32"]
    hold_to(alone, names, count, layout, where, ranks)


@pytest.mark.parametrize("dimension", ["shard", "tensor", "context", "pipeline"])
def test_packed_documents_do_too(
    dimension: str, where: str, alone: Callable[[str], Answer], ranks: Ranks
) -> None:
    hold_to(alone, ["fp32, packed"], 2, {dimension: 2, "microbatch": 2}, where, ranks)


@pytest.mark.parametrize("dimension", ["replicate", "shard", "pipeline"])
def test_compiled_layers_do_too(
    dimension: str, where: str, alone: Callable[[str], Answer], ranks: Ranks
) -> None:
    """Where a layer waits for other ranks in its middle (tensor, context) none is compiled."""
    hold_to(alone, ["bf16, compiled"], 2, {dimension: 2, "microbatch": 2}, where, ranks)


def hold_to(
    alone: Callable[[str], Answer],
    names: Sequence[str],
    count: int,
    layout: Mapping[str, int],
    where: str,
    ranks: Ranks,
) -> None:
    chosen = [VARIANTS[name] for name in names]
    cases = [case(layout, *SHAPE, *more, data=data) for data, more in chosen]
    answers = ranks(count, over_gloo, where, cases, timeout_s=TIMEOUT_S)
    for name, *found in zip(names, *answers, strict=True):
        rel = NEAR[name.partition(",")[0]]
        assert_equal(alone(name), found, f"{name}, layout {layout}", rel, least=None)
