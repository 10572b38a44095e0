"""Principle 3 for adapters: every layout trains the same one, beside weights that it may split."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equality_cases import Answer, assert_equal, case, prepared, train_a_little
from open_families import saved

VARIANTS = {
    "lora": ["model.adapter.kind=lora", "train.batch_tokens=80"],
    "attention alone": ["model.adapter.targets=['q', 'v']"],
    "qlora": ["model.adapter.kind=qlora"],
    "experts": ["model.from=MOE"],
    "latent": ["model.from=LATENT", "model.adapter.targets=['attention']"],
    # Only the first layer has an ffn that is no routed experts: the second stage trains nothing.
    "one stage": ["model.from=SPARSE", "model.adapter.targets=['ffn']"],
}
LAYOUTS: dict[str, list[dict[str, Any]]] = {
    "lora": [
        {"replicate": 2, "microbatch": 2},
        {"shard": 2},
        {"tensor": 2, "microbatch": 2},
        {"pipeline": 2},
        {"context": 2},
        {"shard": 2, "recompute": "full"},
        {"replicate": 2, "recompute": "selective"},
    ],
    "attention alone": [{"shard": 2, "microbatch": 3}],
    "qlora": [{"replicate": 2}, {"shard": 2, "recompute": "full"}, {"pipeline": 2}],
    "experts": [{"shard": 2, "expert": 2}, {"tensor": 2}],
    "latent": [{"tensor": 2}],
    "one stage": [{"pipeline": 2}],
}

SLOW = (0, 1, 5, 6, 8, 10)  # of all of them in a row: what another one shows too


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> str:
    folder = tmp_path_factory.mktemp("lora")
    saved("llama-3.1", folder / "base", vocab_size=320)
    saved("dots1", folder / "moe", vocab_size=320)
    saved("qwen3-moe", folder / "sparse", vocab_size=320)
    saved("deepseek-v3", folder / "latent", vocab_size=320)
    path = prepared(folder, {"plain": tiny})
    Path(path).write_text(
        f'name = "lora"\ndir = "{folder}"\n[model]\nfrom = "{folder / "base"}"\n'
        "[model.adapter]\nrank = 4\n[data]\nsequence = 16\n"
        '[train]\nsteps = 5\nbatch_tokens = 128\nprecision = "fp64"\nlearning_rate = 1e-2\n'
    )
    return path


def asked(name: str, where: str) -> list[str]:
    folder = Path(where).parent
    models = {name.upper(): str(folder / name) for name in ("moe", "sparse", "latent")}
    return [re.sub("MOE|SPARSE|LATENT", lambda m: models[m[0]], field) for field in VARIANTS[name]]


@pytest.fixture(scope="module")
def alone(where: str, ranks: Callable[..., list[Any]]) -> dict[str, Answer]:
    cases = [case({"microbatch": 8}, *asked(name, where)) for name in VARIANTS]
    return dict(zip(VARIANTS, ranks(1, train_a_little, where, cases)[0], strict=True))


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_layout_trains_the_same_adapter(
    every: bool, where: str, alone: dict[str, Answer], ranks: Callable[..., list[Any]]
) -> None:
    named = [(name, layout) for name in VARIANTS for layout in LAYOUTS[name]]
    if not every:  # each parallelism once, each kind of adapter once
        named = [one for place, one in enumerate(named) if place not in SLOW]
    cases = [case(layout, *asked(name, where)) for name, layout in named]
    answers = ranks(2, train_a_little, where, cases)
    for (name, layout), *found in zip(named, *answers, strict=True):
        assert_equal(alone[name], found, f"{name}, layout {layout}")


def test_only_the_adapter_has_gradients_and_it_learns(alone: dict[str, Answer]) -> None:
    for name, answer in alone.items():
        assert {grad.rpartition(".")[2] for grad in answer["grads"]} == {"adapter_a", "adapter_b"}
        assert answer["losses"][-1] < answer["losses"][0], name
    assert {n.split(".")[3] for n in alone["attention alone"]["grads"]} == {"q", "v"}
    # 4 bits change the model, and not by much.
    first = {name: answer["losses"][0] for name, answer in alone.items()}
    assert first["lora"] != first["qlora"] == pytest.approx(first["lora"], rel=0.1)
