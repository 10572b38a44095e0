"""The user's module is tried before a launch; what only ranks can know is left to them."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from penstock.errors import PenstockError
from penstock.run.file import Run
from penstock.run.load import load
from penstock.train.trial import Vocabulary, try_module

SHAPE = [f"model.{name}" for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "tied")]
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 8)
        self.head = nn.Linear(8, 300)

    def forward(self, tokens):
        BEFORE
        return self.head(self.embed(tokens))

def build():
    print("built", torch.rand(1))
    return Net()
"""


@pytest.fixture
def run_of(tmp_path: Path, run_file: Callable[..., Path]) -> Callable[[str], Run]:
    def make(before: str = "pass") -> Run:
        (tmp_path / "net.py").write_text(NET.replace("BEFORE", before))
        own = {"model.module": f"{tmp_path}/net.py:build", "train.learning_rate": 0.1}
        own |= {"train.precision": "bf16"}
        return load(run_file(**dict.fromkeys(SHAPE) | own))

    return make


def test_a_trial_leaves_the_process_as_it_was(
    run_of: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    path, before = list(sys.path), torch.get_rng_state()
    try_module(run_of(), "cpu", Vocabulary(300, "tiny"))
    assert sys.path == path
    assert torch.equal(torch.get_rng_state(), before)
    assert capsys.readouterr().out == ""  # of `--json`, say


def test_a_token_that_the_module_lacks_is_told_on_every_kind_of_machine(
    run_of: Callable[..., Run],
) -> None:
    for kind in ("cpu", "cuda"):
        with pytest.raises(PenstockError, match=r"tiny has 301 tokens.*fails for token 300"):
            try_module(run_of(), kind, Vocabulary(301, "tiny"))


def test_a_forward_that_may_need_a_gpu_is_left_to_the_ranks(run_of: Callable[..., Run]) -> None:
    for error in ("RuntimeError", "ValueError"):
        run = run_of(f"raise {error}('needs a kernel')")
        try_module(run, "cuda", Vocabulary(300, "tiny"))
        with pytest.raises(PenstockError, match="needs a kernel"):
            try_module(run, "cpu", Vocabulary(300, "tiny"))


def test_code_that_asks_for_its_rank_is_left_to_the_ranks(run_of: Callable[..., Run]) -> None:
    try_module(run_of("torch.distributed.get_rank()"), "cpu", None)


def test_a_large_module_is_tried_on_a_few_tokens(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("assert tokens.shape[1] < 16, 'the whole sequence'")
    with pytest.raises(PenstockError, match="the whole sequence"):
        try_module(run, "cpu", None)
    monkeypatch.setattr("penstock.train.trial.MOST_WORK", 1)
    try_module(run, "cpu", Vocabulary(300, "tiny"))
    with pytest.raises(PenstockError, match="fails for token 300"):
        try_module(run, "cpu", Vocabulary(301, "tiny"))
