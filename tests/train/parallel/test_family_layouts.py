"""Principle 3 for what single families have: every layout computes it as one process does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equality_cases import Answer, assert_equal, case, prepared, train_a_little
from open_families import saved
from penstock.catalog.models import preset
from penstock.plan.job.layout import Layout
from penstock.plan.job.legal import shape_problems, tensor_divisor

# Sequences of 16 tokens: longer than the windows.
MODELS: dict[str, dict[str, Any]] = {
    "olmo3": {},
    "phi-4-mini": {"num_key_value_heads": 2},
    "gemma3": {},
    "glm-4.5": {},
    "deepseek-v3": {},
    "deepseek-v2": {},
    "gpt-oss": {},
}
LAYOUTS: dict[str, list[dict[str, Any]]] = {
    "olmo3": [
        {"shard": 2},
        {"pipeline": 2},
        {"context": 2},
        {"shard": 2, "recompute": "selective"},
    ],
    "glm-4.5": [{"tensor": 2}, {"shard": 2, "expert": 2}, {"context": 2}, {"pipeline": 2}],
    "gemma3": [{"tensor": 2}, {"context": 2}, {"pipeline": 2}, {"shard": 2}],
    "phi-4-mini": [{"tensor": 2}, {"context": 2}, {"pipeline": 2}],
    "deepseek-v3": [
        {"tensor": 2},
        {"context": 2},
        {"shard": 2, "expert": 2, "recompute": "selective"},
    ],
    "gpt-oss": [{"tensor": 2}, {"context": 2}, {"shard": 2, "expert": 2}],
}
# What another one of these shows too.
SLOW: dict[str, list[dict[str, Any]]] = {
    "deepseek-v3": [{"pipeline": 2}, {"replicate": 2}],
    "deepseek-v2": [{"tensor": 2}, {"shard": 2, "recompute": "full"}, {"pipeline": 2}],
    "gpt-oss": [{"pipeline": 2}, {"shard": 2, "recompute": "selective"}, {"replicate": 2}],
}


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> str:
    folder = tmp_path_factory.mktemp("families")
    for name, more in MODELS.items():
        saved(name, folder / name, vocab_size=320, **more)
    path = prepared(folder, {"plain": tiny})
    Path(path).write_text(
        f'name = "families"\ndir = "{folder}"\n[model]\nfrom = "{folder / next(iter(MODELS))}"\n'
        "[data]\nsequence = 16\n"
        '[train]\nsteps = 5\nbatch_tokens = 128\nprecision = "fp64"\nlearning_rate = 1e-2\n'
    )
    return path


def asked(name: str, where: str) -> str:
    return f"model.from={Path(where).parent / name}"


@pytest.fixture(scope="module")
def alone(where: str, ranks: Callable[..., list[Any]]) -> dict[str, Answer]:
    cases = [case({"microbatch": 8}, asked(name, where)) for name in MODELS]
    return dict(zip(MODELS, ranks(1, train_a_little, where, cases)[0], strict=True))


@pytest.mark.parametrize("layouts", [LAYOUTS, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_every_layout_trains_the_same_model(
    layouts: dict[str, list[dict[str, Any]]],
    where: str,
    alone: dict[str, Answer],
    ranks: Callable[..., list[Any]],
) -> None:
    named = [(name, layout) for name in layouts for layout in layouts[name]]
    cases = [case(layout, asked(name, where)) for name, layout in named]
    answers = ranks(2, train_a_little, where, cases)
    for (name, layout), *found in zip(named, *answers, strict=True):
        assert_equal(alone[name], found, f"{name}, layout {layout}")


def test_a_norm_over_all_heads_is_not_cut() -> None:
    shape = replace(preset("llama-3m"), qk_norm=True, qk_norm_whole=True)
    (said,) = shape_problems(shape, Layout(tensor=2), 256)
    assert said.startswith("layout.tensor = 2: the model normalises queries and keys over all")
    assert "layout.shard" in said
    assert tensor_divisor(shape) == 1  # the search does not propose it
    assert not shape_problems(shape, Layout(context=2, pipeline=2), 256)
