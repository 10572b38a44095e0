"""The user's own module: its number formats, and what it froze."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CODE = """
import os, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(320, 8), nn.Linear(8, 320, bias=False)
        self.head.weight = self.embed.weight
        self.rnn = nn.LSTM(8, 8, batch_first=True)  # it holds weak references to its weights
        self.fixed = nn.Linear(8, 8).requires_grad_(False)
        drawn = torch.frombuffer(bytearray(os.urandom(64)), dtype=torch.uint8)
        self.fixed.weight.copy_(drawn.view(8, 8))
        self.register_buffer("seen", torch.zeros(()))
        self.eval()

    def forward(self, tokens):
        self.seen += 1
        return self.head(self.fixed(self.rnn(self.embed(tokens))[0]))

build = Net
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(CODE)
    file = tmp_path / "run.toml"
    file.write_text(
        f'name = "own"\n[model]\nmodule = "{tmp_path}/own.py:build"\n[data]\nsequence = 8\n'
        '[train]\nsteps = 2\nbatch_tokens = 16\nlearning_rate = 1e-2\nprecision = "bf16"\n'
    )
    return str(file)


def twice(path: str, layout: dict[str, int], folder: str) -> dict[str, Any]:
    """Saved by one build and loaded by another; and how the numbers are kept."""
    from penstock.guard import checkpoints
    from penstock.plan.job.layout import Layout
    from penstock.run.load import load
    from penstock.train.engine import build_engine
    from penstock.train.parallel.parts import full_tensor
    from penstock.train.state import state_tensors
    from penstock.train.world.world import join

    world = join(Layout(**layout), "cpu", 60.0)
    first, second = (build_engine(load(path), Layout(**layout), 320, world) for _ in range(2))
    fixed = [dict(made.parts.named_parameters())["fixed.weight"] for made in (first, second)]
    before = full_tensor(fixed[1]).equal(full_tensor(fixed[0]))
    saved = checkpoints.save(
        Path(folder), 1, state_tensors(first.parts, first.optimizer), {}, {}, world
    )
    checkpoints.load(saved, state_tensors(second.parts, second.optimizer), world)
    narrow = build_engine(load(path, ["train.weights=bf16"]), Layout(**layout), 320, world)
    trained = narrow.parts.trained()
    return {
        "before": before,
        "after": full_tensor(fixed[1]).equal(full_tensor(fixed[0])),
        "narrow": {name: str(p.dtype) for name, p in trained.items()},
        "masters": [n for n in trained if "master" in narrow.optimizer.moments[n]],
        "buffers": [str(b.dtype) for b in narrow.parts.buffers()],
        "training": all(module.training for module in narrow.parts.single_module.modules()),
        "tied": narrow.parts.single_module.head.weight is narrow.parts.single_module.embed.weight,
    }


@pytest.mark.parametrize("layout", [{"replicate": 2}, {"shard": 2}])
def test_frozen_weights_are_saved_and_bf16_weights_have_no_masters(
    layout: dict[str, int], path: str, tmp_path: Path, ranks: Callable[..., list[Any]]
) -> None:
    for answer in ranks(2, twice, path, layout, str(tmp_path / "saved")):
        assert (answer["before"], answer["after"]) == (False, True)
        assert set(answer["narrow"].values()) == {"torch.bfloat16"}
        assert answer["masters"] == []
        assert answer["buffers"] == ["torch.float32"]
        assert answer["tied"]
        assert answer["training"]  # as it would be after an evaluation


def built(path: str) -> None:
    from penstock.plan.job.layout import Layout
    from penstock.run.load import load
    from penstock.train.engine import build_engine
    from penstock.train.world.world import join

    build_engine(load(path), Layout(), 320, join(Layout(), "cpu", 60.0))


def test_a_module_with_nothing_to_train_is_refused(
    path: str, tmp_path: Path, ranks: Callable[..., list[Any]]
) -> None:
    (tmp_path / "own.py").write_text(CODE.replace("self.eval()", "self.requires_grad_(False)"))
    with pytest.raises(AssertionError, match=r"PenstockError: model\.module = .* nothing to train"):
        ranks(1, built, path)
