"""The user's module is tried before a launch; what only ranks can know is left to them."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from penstock.errors import PenstockError
from penstock.run.load import load
from penstock.run.schema.run import Run
from penstock.train import trial
from penstock.train.trial import Vocabulary, try_loss, try_module

SHAPE = [f"model.{name}" for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "tied")]
GOOD = "self.head(self.embed(tokens))"
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
        return OUTPUT

def build():
    print("built", torch.rand(1))
    return Net()
"""


@pytest.fixture
def run_of(tmp_path: Path, run_file: Callable[..., Path]) -> Callable[[str], Run]:
    def make(before: str = "pass", output: str = GOOD, **fields: object) -> Run:
        (tmp_path / "net.py").write_text(NET.replace("BEFORE", before).replace("OUTPUT", output))
        own: dict[str, object] = {
            "model.module": f"{tmp_path}/net.py:build",
            "train.learning_rate": 0.1,
        }
        own |= {"train.precision": "bf16"}
        return load(run_file(**dict.fromkeys(SHAPE) | own | fields))

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
    monkeypatch.setattr(trial, "MOST_WORK", 1)
    try_module(run, "cpu", Vocabulary(300, "tiny"))
    with pytest.raises(PenstockError, match="fails for token 300"):
        try_module(run, "cpu", Vocabulary(301, "tiny"))


KNOWN = Vocabulary(300, "tiny")
BAD_MODULES = {
    "its output does not depend on the parameters": f"({GOOD}).detach()",
    "its output is NaN before the first step": f"({GOOD}) * float('nan')",
    "its output is inf before the first step": f"({GOOD}) + float('inf')",
    "the gradient of embed.weight is NaN": "self.head((self.embed(tokens) * 0).sqrt() + 1)",
    "no gradient reached embed.weight": "self.head(self.embed(tokens).detach())",
    "its backward pass raised RuntimeError": "(lambda x: (x.exp(), x.exp_())[0])"
    "(self.head(self.embed(tokens)).exp())",
}


@pytest.mark.parametrize("said", BAD_MODULES)
def test_a_module_that_could_not_be_trained_is_refused(
    said: str, run_of: Callable[..., Run]
) -> None:
    run = run_of(output=BAD_MODULES[said], **{"train.precision": "fp32"})
    with pytest.raises(PenstockError, match=rf"model\.module = .*net\.py:build.: {said}"):
        try_module(run, "cpu", KNOWN)


def test_what_was_computed_is_judged_on_machines_with_gpus_too(run_of: Callable[..., Run]) -> None:
    for output in (f"({GOOD}).mean(-1)", f"({GOOD}).detach()", f"({GOOD}) * float('nan')"):
        with pytest.raises(PenstockError):
            try_module(run_of(output=output), "cuda", KNOWN)


@pytest.mark.parametrize(
    "output",
    [
        # Words that are ruled out may be targets here, and never are in the data.
        f"({GOOD}).masked_fill(torch.arange(300) == tokens[0, 0], -torch.inf)",
        # A sequence of nothing but fillers has nothing to attend to.
        f"({GOOD}) + torch.where((tokens == 0).all(), torch.nan, 0.0)",
        "(self.head(self.embed(tokens)), None)",
    ],
)
def test_a_module_that_is_right_for_real_tokens_passes(
    output: str, run_of: Callable[..., Run]
) -> None:
    assert try_module(run_of(output=output), "cpu", KNOWN) == []


def test_a_parameter_that_only_some_batches_reach_is_waited_for(
    run_of: Callable[..., Run],
) -> None:
    """Experts, say: a rank's own batch is larger."""
    often = "self.embed(tokens) if tokens[0, 1] % 2 else self.embed(tokens).detach()"
    assert try_module(run_of(output=f"self.head({often})"), "cpu", KNOWN) == []


def test_a_parameter_that_a_few_tokens_do_not_reach_is_a_warning(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MOST_WORK", 1)
    (told,) = try_module(run_of(output="self.head(self.embed(tokens).detach())"), "cpu", KNOWN)
    assert "a few tokens no gradient reached embed.weight; use it in forward" in told


def test_a_module_too_large_for_its_gradients_is_tried_forward(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MOST_GRADIENTS", 1)
    assert try_module(run_of("assert not torch.is_grad_enabled()"), "cpu", KNOWN) == []


def test_targets_that_do_not_count_are_given_as_a_rank_gives_them(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        NET.replace("forward(self, tokens)", "forward(self, tokens, targets)")
        .replace("BEFORE", "assert (targets >= 0).all(), 'a target of -100'")
        .replace("OUTPUT", "(self.head(self.embed(tokens)).sum() * 0 + 1.0)")
    )
    file = tmp_path / "run.toml"
    file.write_text(
        f'name = "x"\n[model]\nmodule = "{tmp_path}/net.py:build"\n[train]\nsteps = 1\n'
        'learning_rate = 0.1\nprecision = "fp32"\n[data]\nsequence = 16\n'
    )
    try_module(load(file), "cpu", KNOWN)
    with pytest.raises(PenstockError, match="a target of -100"):
        try_module(load(file), "cpu", Vocabulary(300, "tiny", masked=True))


def own_loss(run_of: Callable[..., Run], tmp_path: Path, logits: str) -> Run:
    run = run_of("import torch.nn.functional as F", f"F.cross_entropy({logits}, targets.flatten())")
    file = tmp_path / "net.py"
    file.write_text(file.read_text().replace("(self, tokens)", "(self, tokens, targets)"))
    return run


def test_a_loss_in_few_bits_is_a_warning(run_of: Callable[..., Run], tmp_path: Path) -> None:
    narrow = f"({GOOD}).flatten(0, 1)"
    (told,) = try_module(own_loss(run_of, tmp_path, narrow), "cpu", KNOWN)
    assert "its loss is bfloat16" in told
    assert "logits.float()" in told
    assert try_module(own_loss(run_of, tmp_path, f"{narrow}.float()"), "cpu", KNOWN) == []


@pytest.mark.parametrize("error", ["IndexError", "RuntimeError"])
def test_an_error_of_forward_has_its_line(error: str, run_of: Callable[..., Run]) -> None:
    said = r"net\.py:build\": .*forward raised EE: off \(net\.py:12, in forward\); tokens of shape"
    with pytest.raises(PenstockError, match=said.replace("EE", error)):
        try_module(run_of(f"raise {error}('off')"), "cpu", KNOWN)


LOSSES = """
import torch
import torch.nn.functional as F

def good(logits, targets):
    assert logits.dtype == torch.float32 and logits.requires_grad and targets.dtype == torch.int64
    return F.cross_entropy(logits, targets, reduction="none")

def mean(logits, targets): return F.cross_entropy(logits, targets)
def none(logits, targets): return None
def raises(logits, targets): return logits.no_such_thing()
def detached(logits, targets): return good(logits, targets).detach()
def nan(logits, targets): return good(logits, targets) * float("nan")
def log(logits, targets): return -torch.log(good(logits, targets) * 0)
def steep(logits, targets): return torch.sqrt(good(logits, targets) * 0)
def of_300(logits, targets):
    return F.cross_entropy(logits, targets, torch.ones(300), reduction="none")
"""
BAD_LOSSES = {
    "mean": r"it gave \[\] for logits",
    "none": r"it gave nothing; .* is a `return` missing",
    "raises": "it raised AttributeError",
    "detached": "its losses do not depend on the logits",
    "nan": "its loss is NaN before the first step",
    "log": "its loss is inf before the first step",
}


def with_loss(run_of: Callable[..., Run], name: str, tmp_path: Path, own: bool) -> Run:
    (tmp_path / "mine.py").write_text(LOSSES)
    fields: dict[str, object] = {"train.loss": f"{tmp_path}/mine.py:{name}"}
    if not own:
        fields |= {"model.module": None, "model.layers": 2, "model.hidden": 32, "model.heads": 4}
        fields |= {"model.kv_heads": 2, "model.ffn": 64}
    return run_of(**fields)


@pytest.mark.parametrize("name", BAD_LOSSES)
def test_a_loss_that_could_not_be_trained_by_is_refused_with_any_model(
    name: str, run_of: Callable[..., Run], tmp_path: Path
) -> None:
    said = rf"train\.loss = .*mine\.py:{name}.: {BAD_LOSSES[name]}"
    with pytest.raises(PenstockError, match=said):
        try_loss(with_loss(run_of, name, tmp_path, own=False), "cpu", 300, certain=True)
    with pytest.raises(PenstockError, match=said):
        try_module(with_loss(run_of, name, tmp_path, own=True), "cpu", KNOWN)


def test_a_gradient_of_the_loss_that_is_no_number_is_refused(
    run_of: Callable[..., Run], tmp_path: Path
) -> None:
    run = with_loss(run_of, "steep", tmp_path, own=False)
    with pytest.raises(PenstockError, match="the gradient of its loss is NaN"):
        try_loss(run, "cpu", 300, certain=True)


def test_a_loss_that_is_right_passes_and_a_guessed_vocabulary_is_not_held_against_it(
    run_of: Callable[..., Run], tmp_path: Path
) -> None:
    for kind in ("cpu", "cuda"):
        try_loss(with_loss(run_of, "good", tmp_path, own=False), kind, 300, certain=True)
        try_module(with_loss(run_of, "good", tmp_path, own=True), kind, KNOWN)
    run = with_loss(run_of, "of_300", tmp_path, own=False)
    try_loss(run, "cpu", 300, certain=True)
    try_loss(run, "cpu", 32_000, certain=False)
    try_loss(run, "cuda", 32_000, certain=True)  # it may have a kernel there
    with pytest.raises(PenstockError, match="it raised RuntimeError"):
        try_loss(run, "cpu", 32_000, certain=True)
