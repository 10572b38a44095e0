"""Principle 3 for pairs: every layout trains the same model from them, and the same adapter."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pair_peer
from equality_cases import Answer, assert_equal, case, prepared, train_a_little
from penstock.run.load import load

ADAPTER = ["model.adapter.rank=4", "model.adapter.alpha=8.0"]
VARIANTS = {
    "full": [],
    "lora": ADAPTER,
    "qlora": [*ADAPTER, "model.adapter.kind=qlora"],
    "ipo": ["train.objective=ipo"],
    "simpo": ["train.objective=simpo"],
    "orpo": ["train.objective=orpo"],
    "orpo-lora": ["train.objective=orpo", *ADAPTER],
}
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("full", {"replicate": 2}),
    ("full", {"shard": 2, "microbatch": 2}),
    ("lora", {"shard": 2, "recompute": "full"}),
    ("qlora", {"replicate": 2}),
    ("ipo", {"shard": 2}),
    ("simpo", {"shard": 2, "microbatch": 2}),
    ("orpo", {"replicate": 2, "microbatch": 2}),
    ("orpo-lora", {"shard": 2}),
]


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pairs")
    base = pair_peer.make_model("llama-3.2", folder / "base")
    data = pair_peer.write_rows(folder / "pairs.jsonl", pair_peer.pair_rows(40))
    path = Path(prepared(folder, {}))
    path.write_text(
        f'name = "pairs"\ndir = "{folder}"\n[model]\nfrom = "{base}"\n'
        f'[data]\ndataset = "{data}"\nsequence = 48\n[train]\nobjective = "dpo"\nsteps = 5\n'
        # Seven pairs: two ranks have unequal parts, and one of them filler.
        f'batch_tokens = {7 * 2 * 48}\nprecision = "fp64"\nlearning_rate = 1e-2\n'
    )
    built = pair_peer.stream_of(load(path)).dataset.id
    for name in VARIANTS:
        (folder / name).mkdir()
        (folder / name / "plan.json").write_text(f'{{"dataset": "{built}"}}')
    return str(path)


@pytest.fixture(scope="module")
def alone(where: str, ranks: Callable[..., list[Any]]) -> dict[str, Answer]:
    cases = [case({"microbatch": 7}, *more, data=name) for name, more in VARIANTS.items()]
    return dict(zip(VARIANTS, ranks(1, train_a_little, where, cases)[0], strict=True))


def test_every_layout_learns_the_same_from_pairs(
    home: Path, where: str, alone: dict[str, Answer], ranks: Callable[..., list[Any]]
) -> None:
    # Two ranks compute for themselves what the reference gives the pairs.
    shutil.rmtree(home / "reference")
    for name in VARIANTS:
        (Path(where).parent / name / "reference.bin").unlink(missing_ok=True)
    cases = [case(layout, *VARIANTS[name], data=name) for name, layout in LAYOUTS]
    answers = ranks(2, train_a_little, where, cases)
    for (name, layout), *found in zip(LAYOUTS, *answers, strict=True):
        assert_equal(alone[name], found, f"{name}, layout {layout}")
        for answer in found:
            assert answer["figures"] == pytest.approx(alone[name]["figures"], rel=1e-8), name


def test_it_learns_to_prefer(alone: dict[str, Answer]) -> None:
    for name in ("simpo", "orpo", "orpo-lora"):
        assert alone[name]["losses"][-1] < alone[name]["losses"][0] - 0.05, name
        assert alone[name]["figures"][0] > alone[name]["figures"][1], name
    for name in ("full", "lora", "qlora"):
        losses = alone[name]["losses"]
        assert losses[0] == pytest.approx(0.6931471805599453)  # as the reference: -log σ(0)
        assert losses[-1] < losses[0] - 0.05, name
        chosen, rejected, accuracy = alone[name]["figures"]
        assert chosen > rejected
        assert accuracy > 0.8
