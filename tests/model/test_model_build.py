"""First weights are a function of the seed and the name; the user's own module is checked."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.model.decoder import Decoder
from penstock.model.initialize import decoder_on_meta, init_std, initialize
from penstock.model.user_module import build_user_module, summed_loss

SHAPE = ModelShape(
    layers=3, hidden=64, heads=4, kv_heads=2, ffn=160, vocab=300, qk_norm=True, attention_bias=True
)


def filled(shape: ModelShape, seed: int) -> Decoder:
    model = decoder_on_meta(shape)
    initialize(model, torch.device("cpu"), seed)
    return model


def test_the_decoder_on_meta_takes_no_memory() -> None:
    assert all(p.is_meta for p in decoder_on_meta(SHAPE).parameters())
    assert not any(p.is_meta for p in filled(SHAPE, 0).parameters())


def test_the_same_seed_gives_the_same_weights_whatever_was_drawn_before() -> None:
    one = filled(SHAPE, 7).state_dict()
    torch.manual_seed(123)
    torch.randn(10)
    two = filled(SHAPE, 7).state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_another_seed_gives_other_weights_in_every_matrix() -> None:
    one, two = filled(SHAPE, 0).state_dict(), filled(SHAPE, 1).state_dict()
    for name, weight in one.items():
        fixed = name.endswith(("norm.weight", "bias"))
        assert torch.equal(weight, two[name]) == fixed, name


def test_a_weight_depends_on_its_own_name_only() -> None:
    """A deeper model starts with the same first layers: nothing is drawn from a common stream."""
    short, long = filled(replace(SHAPE, layers=1), 0), filled(SHAPE, 0)
    long_weights = long.state_dict()
    for name, weight in short.state_dict().items():
        if not name.endswith(("attention.out.weight", "ffn.down.weight")):  # scaled by depth
            assert torch.equal(weight, long_weights[name]), name
    drawn = [w.flatten()[:16] for w in long_weights.values() if w.dim() == 2]
    assert len({tuple(w.tolist()) for w in drawn}) == len(drawn)


def test_the_spread_of_first_weights_is_what_init_std_says() -> None:
    for name, param in filled(SHAPE, 0).state_dict().items():
        if name.endswith("norm.weight"):
            assert (param == 1).all(), name
        elif name.endswith("bias"):
            assert (param == 0).all(), name
        else:
            error = 4 / (2 * param.numel()) ** 0.5  # four standard errors of a spread
            assert float(param.std()) == pytest.approx(init_std(name, SHAPE), rel=error), name
            assert abs(float(param.mean())) < 4 * init_std(name, SHAPE) / param.numel() ** 0.5


def test_init_std_by_width_and_depth() -> None:
    wide = replace(SHAPE, hidden=2048, layers=8)
    assert init_std("layers.0.attention.q.weight", wide) == 0.02
    assert init_std("layers.0.attention.out.weight", wide) == 0.02 / 4
    assert init_std("layers.0.ffn.down.weight", wide) == 0.02 / 4
    narrow = replace(SHAPE, hidden=192)
    assert init_std("layers.0.ffn.up.weight", narrow) == pytest.approx(0.04)
    assert init_std("embed.weight", replace(narrow, tied=True)) == pytest.approx(0.04)
    assert init_std("embed.weight", narrow) == 1.0
    assert init_std("head.weight", narrow) == 0.02


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """`build_user_module` puts the file's folder on the path: not for the tests that follow."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def code(tmp_path: Path) -> Callable[[str], str]:
    """code(text): a user's file; the spec of its `build`."""

    def write(text: str) -> str:
        path = tmp_path / "mine.py"
        path.write_text(text)
        return f"{path}:build"

    return write


LOGITS = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 11)
    def forward(self, tokens):
        return self.embed(tokens)
def build():
    return Net()
"""
OWN_LOSS = """
from __future__ import annotations
from dataclasses import dataclass
import torch.nn.functional as F
from torch import nn
from neighbour import WIDTH
@dataclass
class Config:
    width: int = WIDTH
class Net(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.embed = nn.Embedding(config.width, config.width)
    def forward(self, tokens, targets):
        logits = self.embed(tokens)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
def build():
    return Net(Config())
"""


def test_a_module_that_gives_logits(code: Callable[[str], str]) -> None:
    model = build_user_module(code(LOGITS), seed=0)
    tokens = torch.randint(11, (3, 6))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    total = summed_loss(model)(inputs, targets)
    expected = sum(
        F.cross_entropy(model(inputs)[b, s], targets[b, s]) for b in range(3) for s in range(5)
    )
    torch.testing.assert_close(total, torch.as_tensor(expected))


def test_a_module_that_gives_its_own_mean_loss(code: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("WIDTH = 11\n")
    model = build_user_module(code(OWN_LOSS), seed=0)
    tokens = torch.randint(11, (3, 6))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    total = summed_loss(model)(inputs, targets)
    torch.testing.assert_close(total, model(inputs, targets) * 15)


def test_the_users_file_may_have_the_name_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text(LOGITS)
    build_user_module(f"{tmp_path / 'random.py'}:build", 0)
    assert hasattr(sys.modules["random"], "shuffle")


def test_both_kinds_of_module_get_the_same_sum(code: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("WIDTH = 11\n")
    logits, own = build_user_module(code(LOGITS), 3), build_user_module(code(OWN_LOSS), 3)
    tokens = torch.randint(11, (2, 5))
    args = tokens[:, :-1], tokens[:, 1:]
    torch.testing.assert_close(summed_loss(logits)(*args), summed_loss(own)(*args))


@pytest.mark.parametrize("text", [LOGITS, OWN_LOSS])
def test_only_targets_that_count_are_in_the_sum(
    text: str, code: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "neighbour.py").write_text("WIDTH = 11\n")
    model = build_user_module(code(text), 0)
    loss_sum, tokens = summed_loss(model), torch.randint(11, (2, 5))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    counted = torch.tensor([[True, False, False, True], [False, True, False, False]])
    logits = model.embed(inputs)
    expected = F.cross_entropy(logits[counted], targets[counted], reduction="sum")
    torch.testing.assert_close(loss_sum(inputs, targets, counted), expected)
    nothing = loss_sum(inputs, targets, torch.zeros_like(counted))
    assert nothing.item() == 0  # and not a mean over nothing
    nothing.backward()
    assert model.embed.weight.grad.eq(0).all()


def test_a_wide_buffer_beside_narrow_weights_is_told() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 4).bfloat16(), nn.Linear(4, 11).bfloat16()
            self.register_buffer("places", torch.ones(5, 4))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(tokens) + self.places)

    tokens = torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(PenstockError, match=r"mixes number formats.*Float.*\.to\(x\.dtype\)"):
        summed_loss(Net())(tokens, tokens)


def test_a_microbatch_adds_up_from_its_samples(code: Callable[[str], str]) -> None:
    loss_sum = summed_loss(build_user_module(code(LOGITS), 0))
    tokens = torch.randint(11, (4, 6))
    parts = sum(loss_sum(row[None, :-1], row[None, 1:]) for row in tokens)
    torch.testing.assert_close(loss_sum(tokens[:, :-1], tokens[:, 1:]), torch.as_tensor(parts))


def test_the_loss_is_taken_in_float32_or_better() -> None:
    class Narrow(nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            self.logits = nn.Parameter(torch.randn(11, 11).to(dtype))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.logits[tokens]

    tokens = torch.randint(11, (2, 5))
    for dtype, wide in [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ]:
        assert summed_loss(Narrow(dtype))(tokens, tokens).dtype == wide


def test_the_seed_reaches_the_users_code(code: Callable[[str], str]) -> None:
    spec = code(LOGITS)
    weights = [build_user_module(spec, seed).state_dict()["embed.weight"] for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"no such file and function.*absent\.py"):
        build_user_module(str(tmp_path / "absent.py:build"), 0)


def test_a_spec_without_a_function_says_how_to_write_it(code: Callable[[str], str]) -> None:
    path = code(LOGITS).removesuffix(":build")
    with pytest.raises(PenstockError, match=r'write "path/to/file\.py:build"'):
        build_user_module(path, 0)


def test_a_missing_function_lists_those_that_are_there(code: Callable[[str], str]) -> None:
    spec = code(LOGITS.replace("def build", "def biuld"))
    with pytest.raises(PenstockError, match=r"no function 'build'; it has: .*biuld"):
        build_user_module(spec, 0)
    with pytest.raises(PenstockError, match="no function 'build'"):
        build_user_module(code("build = 3\n"), 0)


def test_what_is_not_a_module_is_refused(code: Callable[[str], str]) -> None:
    with pytest.raises(PenstockError, match=r"gave int, not an nn\.Module"):
        build_user_module(code("def build():\n    return 3\n"), 0)
